"""A host over a device's rounds, with nothing beside them: what it tells of their state is copied from the device.

So bodies of tests that were written for the CPU's catalog run over the device's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recipes.components.device_state import DeviceState, Word
from recipes.components.request_state import NOBODY
from services.worker.devices.snapshots import DeviceSnapshots
from shared.frames import FRAMES, completion_frame, plan_frame
from shared.manifest import Manifest
from tests.worker.devices.twin import Layouts, Peer, TurningHost

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StateView:
    """`RequestState` as far as tests read it."""

    state: DeviceState

    def _column(self, word: Word) -> Integers:
        found: Integers = self.state.words[: self.state.slots, word].cpu().numpy()
        return found

    @property
    def slots(self) -> int:
        return self.state.slots

    @property
    def vocab_size(self) -> int:
        return self.state.vocab_size

    @property
    def consumed(self) -> Integers:
        return self._column(Word.CONSUMED)

    @property
    def pending(self) -> Integers:
        return self._column(Word.PENDING)

    @property
    def previous(self) -> Integers:
        return self._column(Word.PREVIOUS)

    @property
    def vectors(self) -> Tensor:
        return self.state.vectors[: self.state.slots].cpu()

    @property
    def seen(self) -> Tensor:
        return self.state.seen[: self.state.slots].cpu()

    @property
    def counts(self) -> Tensor:
        return self.state.counts[: self.state.slots].cpu()


@dataclass(frozen=True, slots=True)
class SnapshotsView:
    """`Snapshots` as far as tests read it."""

    snapshots: DeviceSnapshots

    @property
    def rows(self) -> int:
        return self.snapshots.rows

    @property
    def consumed(self) -> Integers:
        found: Integers = self.snapshots.consumed.cpu().numpy()
        return found

    def prefix_of(self, row: int) -> int:
        return int(self.consumed[row]) if 0 <= row < self.rows else NOBODY

    def clear(self) -> None:
        self.snapshots.clear()
        if self.snapshots.words.is_cuda:
            torch.cuda.synchronize()


class ModelView:
    """Logits of vectors that lie on the CPU, by the device's model."""

    def __init__(self, model: Any, device: torch.device) -> None:
        self._model, self._device = model, device

    def logits(self, vectors: Tensor) -> Tensor:
        found: Tensor = self._model.logits(vectors.to(self._device)).cpu()
        return found


class AloneCatalog:
    """As much of a `Catalog` as hosts and tests ask for; a replay returns when the round's frame can be read."""

    def __init__(self, peer: Peer) -> None:
        self.peer, device = peer, peer.catalog
        self.state, self.snapshots = StateView(device.state), SnapshotsView(device.snapshots)
        self.model = ModelView(device.model, device.state.device)
        self.launch: Callable[[int], int] = device.replay

    @property
    def counter(self) -> int:
        return self.peer.catalog.counter

    def replay(self, graph: int) -> int:
        sequence = self.launch(graph)
        self.peer.completions()
        return sequence

    def reset(self) -> None:
        self.peer.catalog.reset()


def alone(peer: Peer, manifest: Manifest, layouts: Layouts) -> tuple[TurningHost, AloneCatalog]:
    """A host over the peer's rounds, and its catalog."""
    catalog = AloneCatalog(peer)
    return TurningHost(
        manifest,
        catalog,  # type: ignore[arg-type]
        tuple(plan_frame(layouts[0], peer.plans, index) for index in range(FRAMES)),
        tuple(completion_frame(layouts[1], peer.completions(), index) for index in range(FRAMES)),
    ), catalog
