"""Two catalogs that are fed the same plans: the CPU's programs, and a device's rounds, which must do what those do.

After every replay records, log probabilities that were asked for, and slot and snapshot state are compared; a test of
the CPU's rounds that runs over a twin is a test of the device's too.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from recipes.components.device_state import Word
from recipes.components.model import Drafter, Model
from recipes.declaration import LoadConfig, Recipe
from services.worker.catalog import Catalog
from services.worker.devices.catalog import DeviceCatalog
from services.worker.devices.host import HostFrames
from shared.frames import (
    FRAMES,
    METADATA,
    CompletionFrame,
    Layout,
    Meta,
    completion_frame,
    completion_layout,
    plan_frame,
    plan_layout,
)
from shared.manifest import Manifest, largest_chunk
from tests.worker.devices.lane_by_lane import LaneDrafter, LaneModel
from tests.worker.host import Host

Layouts = tuple[Layout, Layout]
_WORDS = {
    Word.EPOCH: "epoch",
    Word.REQUEST: "request",
    Word.CONSUMED: "consumed",
    Word.PENDING: "pending",
    Word.PREVIOUS: "previous",
    Word.GENERATED: "generated",
    Word.STATUS: "status",
    Word.DRAFT_CACHE: "draft_cache",
    Word.BUDGET: "budget",
    Word.PROMPT_LENGTH: "prompt_length",
    Word.TOP_LOGPROBS: "top_logprobs",
}


@dataclass(frozen=True, slots=True)
class Buffers:
    """Plan and completion frames of one of the two."""

    plans: memoryview
    completions: memoryview


def layouts_of(manifest: Manifest) -> Layouts:
    """Of plan and completion frames."""
    return plan_layout(manifest.geometry, largest_chunk(manifest)), completion_layout(manifest.geometry)


def buffers(layouts: Layouts) -> Buffers:
    """Zeroed frames."""
    plans, completions = layouts
    return Buffers(memoryview(bytearray(FRAMES * plans.nbytes)), memoryview(bytearray(FRAMES * completions.nbytes)))


class Peer(Protocol):
    """The device's side: its catalog, where its plans are written, and its completion frames once a round is over."""

    catalog: DeviceCatalog

    @property
    def plans(self) -> memoryview: ...

    def completions(self) -> memoryview: ...


class HostPeer:
    """A device's rounds on the CPU."""

    def __init__(self, layouts: Layouts) -> None:
        self._buffers = buffers(layouts)
        self.frames = HostFrames(layouts, self._buffers.plans, self._buffers.completions)
        self.catalog: DeviceCatalog

    @property
    def plans(self) -> memoryview:
        return self._buffers.plans

    def completions(self) -> memoryview:
        return self._buffers.completions


class TwinCatalog(Catalog):
    """The CPU's catalog, with a device's beside it."""

    def __init__(
        self, manifest: Manifest, parts: tuple[Model, Drafter | None], peer: Peer, layouts: Layouts, frames: Buffers
    ) -> None:
        super().__init__(manifest, *parts, layouts, frames.plans, frames.completions)
        self._frames, self._layout, self.peer = frames, layouts[1], peer

    def replay(self, index: int) -> int:
        self.peer.plans[:] = self._frames.plans
        sequence = super().replay(index)
        assert self.peer.catalog.replay(index) == sequence
        theirs = completion_frame(self._layout, self.peer.completions(), sequence % FRAMES)
        self._compare(completion_frame(self._layout, self._frames.completions, sequence % FRAMES), theirs, sequence)
        return sequence

    def _compare(self, ours: CompletionFrame, theirs: CompletionFrame, sequence: int) -> None:
        assert theirs.head[0] == theirs.tail[0] == sequence
        for mine, yours in zip(ours.records, theirs.records, strict=True):
            emitted = int(mine[Meta.EMITTED])
            said, heard = (row[: METADATA + emitted].tolist() for row in (mine, yours))
            assert said == heard, f"round {sequence}: {heard} instead of {said}"
            slot = int(mine[Meta.SLOT])
            if slot >= 0 and emitted and self.state.top_logprobs[slot] >= 0:
                asked = int(self.state.top_logprobs[slot])
                np.testing.assert_allclose(theirs.logprobs[slot, :emitted], ours.logprobs[slot, :emitted], atol=1e-5)
                best = ours.top_logprobs[slot, :emitted, :asked]
                np.testing.assert_allclose(theirs.top_logprobs[slot, :emitted, :asked], best, atol=1e-5)
        self._compare_state()

    def _compare_state(self) -> None:
        mine, twin, slots = self.state, self.peer.catalog.state, self.state.slots
        words = twin.words.cpu()
        for word, name in _WORDS.items():
            assert words[:slots, word].tolist() == getattr(mine, name).tolist(), name
        assert torch.equal(twin.seen[:slots].cpu(), mine.seen)
        assert torch.equal(twin.counts[:slots].cpu(), mine.counts)
        held = torch.from_numpy(mine.consumed > 0)
        assert torch.equal(twin.vectors[:slots].cpu()[held], mine.vectors[held])
        taken = self.snapshots.consumed >= 0
        assert (
            self.peer.catalog.snapshots.consumed.cpu().numpy()[taken].tolist()
            == self.snapshots.consumed[taken].tolist()
        )


def host_over(manifest: Manifest, catalog: TwinCatalog, layouts: Layouts, frames: Buffers) -> Host:
    """A host that writes into the CPU's frames."""
    catalog.capture()
    return Host(
        manifest,
        catalog,
        tuple(plan_frame(layouts[0], frames.plans, index) for index in range(FRAMES)),
        tuple(completion_frame(layouts[1], frames.completions, index) for index in range(FRAMES)),
    )


def twin_of(recipe: Recipe, manifest: Manifest) -> Host:
    """A host over a fixture recipe, whose model both catalogs load afresh; the device is the CPU."""
    geometry, layouts = manifest.geometry, layouts_of(manifest)
    config = LoadConfig(True, geometry.concurrency, geometry.pages, geometry.snapshot_slots)
    ours, theirs = recipe.load(Path(), manifest, config), recipe.load(Path(), manifest, config)
    drafter = LaneDrafter(theirs.drafter, geometry.vocab_size) if theirs.drafter is not None else None
    peer, frames = HostPeer(layouts), buffers(layouts)
    model = LaneModel(theirs.model)
    peer.catalog = DeviceCatalog(manifest, model, drafter, layouts, peer.frames, torch.device("cpu"))
    peer.catalog.capture()
    return host_over(
        manifest, TwinCatalog(manifest, (ours.model, ours.drafter), peer, layouts, frames), layouts, frames
    )
