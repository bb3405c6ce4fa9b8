"""What a captured round launches beside its model, for `compile_kernels.py`: fetch, lanes, sampling, records."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch import Tensor

import recipes.components.gpu.sampling as sampling
import services.worker.devices.catalog as catalog
import services.worker.devices.completion as completion
import services.worker.devices.fused as fused
import services.worker.devices.fused_chunks as fused_chunks
from recipes.components.device_drafter import DeviceDrafts, DeviceTask
from recipes.components.device_model import DeviceRows
from services.worker.devices.cuda import HostFetch
from shared.manifest import Manifest, read
from tests.fixtures.scripted.recipe import COPIES, make_core
from tests.worker.devices.twin import HostPeer, layouts_of

CPU = torch.device("cpu")


class ZeroModel:
    """A `DeviceModel` that says nothing: kernels that are compiled alone leave nothing for a real one."""

    hidden_size = 576

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def forward(self, rows: DeviceRows) -> Tensor:
        return torch.zeros(len(rows.tokens), self.hidden_size)

    def logits(self, vectors: Tensor) -> Tensor:
        return torch.zeros(len(vectors), self.vocab_size)

    def commit(self, rows: DeviceRows, kept: Tensor) -> None:
        """Nothing."""

    def export(self, rows: DeviceRows, kept: Tensor, target: Tensor) -> None:
        """Nothing."""

    def reset(self, slot: Tensor) -> None:
        """Nothing."""

    def snapshot(self, slot: Tensor, target: Tensor) -> None:
        """Nothing."""

    def restore(self, source: Tensor, slot: Tensor) -> None:
        """Nothing."""


class ZeroDrafter:
    """A `DeviceDrafter` that draws proposals from a law of nothing."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size

    def propose(self, task: DeviceTask) -> DeviceDrafts:
        lanes, depths = task.draws.shape
        laws = torch.zeros(lanes, depths, self._vocab_size)
        logits = torch.zeros(lanes, self._vocab_size)
        sampling.propose_rows(logits, task.state, task.rows, task.limits > 0, task.draws[:, 0], laws[:, 0])
        return DeviceDrafts(torch.zeros(lanes, depths, dtype=torch.int64), task.limits, laws)

    def absorb(self, rows: DeviceRows, vectors: Tensor, kept: Tensor) -> None:
        """Nothing."""

    def reset(self, slot: Tensor) -> None:
        """Nothing."""

    def snapshot(self, slot: Tensor, target: Tensor) -> None:
        """Nothing."""

    def export(self, rows: DeviceRows, vectors: Tensor, kept: Tensor, target: Tensor) -> None:
        """Nothing."""

    def restore(self, source: Tensor, slot: Tensor) -> None:
        """Nothing."""


def manifest_of(hidden: int) -> Manifest:
    """Two shapes of rounds, and those of one request."""
    import msgspec

    with tempfile.TemporaryDirectory() as folder:
        made = read(make_core(Path(folder), COPIES, concurrency=2, context_length=128))
    kept = tuple(
        graph
        for graph in made.graphs
        if graph.kind in ("init", "prefill", "mixed", "resume", "snapshot")
        or (graph.kind == "speculative" and graph.token_capacity in (1, 8))
    )
    geometry = msgspec.structs.replace(made.geometry, hidden_size=hidden)
    return msgspec.structs.replace(made, geometry=geometry, graphs=kept)


def rounds() -> None:
    """Compiles every kernel of these rounds."""
    for module in (sampling, catalog, completion):
        module.runs_triton = lambda tensor: True  # type: ignore[attr-defined]
    for module in (sampling, fused, fused_chunks):
        module.chained = lambda tensor: True  # type: ignore[attr-defined]
    manifest = manifest_of(ZeroModel.hidden_size)
    layouts = layouts_of(manifest)
    peer, vocab = HostPeer(layouts), manifest.geometry.vocab_size
    for drafter in (None, ZeroDrafter(vocab)):
        catalog.DeviceCatalog(manifest, ZeroModel(vocab), drafter, layouts, peer.frames, CPU).warm()
    words, tail = layouts[0].nbytes // 8, layouts[0].offset_of("tail") // 8
    one = torch.zeros(1, dtype=torch.int64)
    HostFetch(1 << 40, words, tail)(one, torch.zeros(words, dtype=torch.int64), words)
