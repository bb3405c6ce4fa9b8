"""A catalog of captured rounds on the card, and what a test needs of it: the device's side of a twin."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

import recipes.components.gpu.delta_prefill as delta_prefill
from recipes.components.device_drafter import DeviceDrafter
from recipes.components.device_model import DeviceModel, DeviceRows
from services.worker.devices.catalog import DeviceCatalog
from services.worker.devices.cuda import CudaFrames
from shared.frames import FRAMES, blank_plans
from shared.manifest import Manifest
from shared.regions import create
from tests.worker.devices.twin import Layouts

_instances = itertools.count(0x60D)
CUDA = torch.device("cuda")


@contextmanager
def short_pieces() -> Iterator[None]:
    """Prompt chunks go through the delta rule in pieces of 16 rows, so that a tiny chunk has several.

    In float32 a piece of 64 rows takes ptxas over 30 s, which every file of tests would wait for; one of 16, 0.7 s.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delta_prefill, "_PIECE", 16)
        yield


class CudaPeer:
    """`tests.worker.devices.twin.Peer`: frames in registered and in device memory, rounds captured and frozen."""

    def __init__(
        self,
        manifest: Manifest,
        model: DeviceModel,
        drafter: DeviceDrafter | None,
        layouts: Layouts,
        mirrored: bool = False,
    ) -> None:
        plan_layout, completion_layout = layouts
        instance = next(_instances)
        self._plans = create("plan", FRAMES * plan_layout.nbytes, instance)
        blank_plans(plan_layout, self._plans.payload)
        nbytes = FRAMES * completion_layout.nbytes
        self._mirror = create("completion", nbytes, instance) if mirrored else None
        self.frames = CudaFrames(layouts, self._plans, instance, self._mirror)
        self.catalog = DeviceCatalog(manifest, model, drafter, layouts, self.frames, CUDA)
        with short_pieces():
            self.catalog.warm()
            self.catalog.capture()
        self.allocated = 0
        """Allocations by torch during replays, which must be none."""

    def count_allocations(self) -> None:
        """From here on: it takes longer than a launch does."""
        replay = self.catalog.replay

        def counted(graph: int) -> int:
            before = allocations()
            sequence = replay(graph)
            self.allocated += allocations() - before
            return sequence

        vars(self.catalog)["replay"] = counted

    @property
    def plans(self) -> memoryview:
        return self._plans.payload

    def completions(self) -> memoryview:
        """Both frames, after everything that was launched."""
        self.frames.stream.synchronize()
        if self._mirror is not None:
            return self._mirror.payload
        assert self.frames.region is not None
        return self.frames.region.refresh(0, self.frames.region.handle.nbytes)

    def close(self) -> None:
        self.frames.close()
        self._plans.close()
        if self._mirror is not None:
            self._mirror.close()


def allocations() -> int:
    """How often torch has allocated device memory so far."""
    return int(torch.cuda.memory_stats()["allocation.all.allocated"])


class FlatModel:
    """A `DeviceModel` that costs two nodes: vectors from a table, always the same logits. For what the rest costs."""

    vocab_size = 49152
    hidden_size = 576

    def __init__(self) -> None:
        torch.manual_seed(5)
        self._vectors = torch.randn(64, self.hidden_size, device=CUDA).bfloat16()
        self._logits = torch.randn(128, self.vocab_size, device=CUDA) * 3.0

    def forward(self, rows: DeviceRows) -> torch.Tensor:
        return self._vectors.index_select(0, rows.tokens & 63)

    def logits(self, vectors: torch.Tensor) -> torch.Tensor:
        return self._logits[: len(vectors)]

    def commit(self, rows: DeviceRows, kept: torch.Tensor) -> None:
        """Nothing."""

    def export(self, rows: DeviceRows, kept: torch.Tensor, target: torch.Tensor) -> None:
        """Nothing."""

    def reset(self, slot: torch.Tensor) -> None:
        """Nothing."""

    def snapshot(self, slot: torch.Tensor, target: torch.Tensor) -> None:
        """Nothing."""

    def restore(self, source: torch.Tensor, slot: torch.Tensor) -> None:
        """Nothing."""
