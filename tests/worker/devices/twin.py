"""Two catalogs that are fed the same plans: the CPU's programs, and a device's rounds, which must do what those do.

After every replay records, log probabilities that were asked for, and slot and snapshot state are compared; a test of
the CPU's rounds that runs over a twin is a test of the device's too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from recipes.components.device_drafter import DeviceDrafter
from recipes.components.device_model import DeviceModel
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
    blank_plans,
    completion_frame,
    completion_layout,
    plan_frame,
    plan_layout,
)
from shared.manifest import Manifest, largest_chunk
from tests.worker.devices.lane_by_lane import LaneDrafter, LaneModel
from tests.worker.devices.playback import Logits, PlayedDrafter, PlayedModel, Tape, TapedDrafter, TapedModel
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
    """Frames as a worker makes them."""
    plans, completions = layouts
    made = Buffers(memoryview(bytearray(FRAMES * plans.nbytes)), memoryview(bytearray(FRAMES * completions.nbytes)))
    blank_plans(plans, made.plans)
    return made


class Peer(Protocol):
    """The device's side: its catalog, where its plans are written, and its completion frames once a round is over."""

    catalog: DeviceCatalog

    @property
    def plans(self) -> memoryview: ...

    def completions(self) -> memoryview: ...

    def close(self) -> None: ...


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

    def close(self) -> None:
        """Nothing was taken."""


class TwinCatalog(Catalog):
    """The CPU's catalog, with a device's beside it."""

    vector_error, logprob_error = 0.0, 1e-5
    """What sampling vectors may differ by, of the largest element, and log probabilities."""

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
        ours = completion_frame(self._layout, self._frames.completions, sequence % FRAMES)
        self._compare(ours, theirs, sequence)
        if self._manifest.graphs[index].kind == "scored_prefill":
            self._compare_scores(ours, theirs)
        return sequence

    def _compare_scores(self, ours: CompletionFrame, theirs: CompletionFrame) -> None:
        """Every row that was told of, by what the CPU did."""
        for record in ours.records[(ours.records[:, Meta.SLOT] >= 0) & (ours.records[:, Meta.FAULTS] == 0)]:
            count, asked = int(record[Meta.WIDTH]), max(int(self.state.top_logprobs[record[Meta.SLOT]]), 0)
            pairs = ((theirs.logprobs, ours.logprobs, 1), (theirs.top_logprobs, ours.top_logprobs, asked))
            for found, wanted, columns in pairs:
                mine, yours = (part.reshape(ours.logprobs.size, -1)[:count, :columns] for part in (wanted, found))
                np.testing.assert_allclose(yours, mine, atol=1e-5)

    def _compare(self, ours: CompletionFrame, theirs: CompletionFrame, sequence: int) -> None:
        assert theirs.head[0] == theirs.tail[0] == sequence
        for mine, yours in zip(ours.records, theirs.records, strict=True):
            emitted = int(mine[Meta.EMITTED])
            said, heard = (row[: METADATA + emitted].tolist() for row in (mine, yours))
            assert said == heard, f"round {sequence}: {heard} instead of {said}"
            slot = int(mine[Meta.SLOT])
            if slot >= 0 and emitted and self.state.top_logprobs[slot] >= 0:
                asked = int(self.state.top_logprobs[slot])
                np.testing.assert_allclose(
                    theirs.logprobs[slot, :emitted], ours.logprobs[slot, :emitted], atol=self.logprob_error
                )
                best = ours.top_logprobs[slot, :emitted, :asked]
                np.testing.assert_allclose(theirs.top_logprobs[slot, :emitted, :asked], best, atol=self.logprob_error)
        self._compare_state()

    def _compare_state(self) -> None:
        mine, twin, slots = self.state, self.peer.catalog.state, self.state.slots
        words = twin.words.cpu()
        for word, name in _WORDS.items():
            assert words[:slots, word].tolist() == getattr(mine, name).tolist(), name
        assert torch.equal(twin.seen[:slots].cpu(), mine.seen)
        assert torch.equal(twin.counts[:slots].cpu(), mine.counts)
        held = torch.from_numpy(mine.consumed > 0)
        error = (twin.vectors[:slots].cpu()[held] - mine.vectors[held]).abs()
        assert not (error > self.vector_error * mine.vectors[held].abs().amax(-1, keepdim=True)).any()
        assert not error.isnan().any()
        taken = self.snapshots.consumed >= 0
        assert (
            self.peer.catalog.snapshots.consumed.cpu().numpy()[taken].tolist()
            == self.snapshots.consumed[taken].tolist()
        )


@dataclass(slots=True)
class TurningHost(Host):
    """A host whose slots may have their own pages in any order."""

    order: dict[int, NDArray[np.int32]] = field(default_factory=dict)

    def pages(self, slot: int) -> NDArray[np.int32]:
        """The slot's table."""
        return self.order.get(slot, Host.pages(self, slot))

    def turn(self, slot: int, dice: Random) -> None:
        """Another table for a slot that nobody has filled yet."""
        pages = Host.pages(self, slot).tolist()
        dice.shuffle(pages)
        self.order[slot] = np.array(pages, dtype=np.int32)


def host_over(manifest: Manifest, catalog: TwinCatalog, layouts: Layouts, frames: Buffers) -> TurningHost:
    """A host that writes into the CPU's frames."""
    catalog.capture()
    return TurningHost(
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


MakePeer = Callable[[Manifest, DeviceModel, DeviceDrafter | None, Layouts], Peer]
"""A device's side over these parts, captured and frozen."""


def played_twin(recipe: Recipe, manifest: Manifest, logits: Logits, device: torch.device, make_peer: MakePeer) -> Host:
    """A host over a fixture recipe whose model the CPU runs, and a device plays back from what the CPU computed."""
    geometry, layouts, tape = manifest.geometry, layouts_of(manifest), Tape()
    config = LoadConfig(True, geometry.concurrency, geometry.pages, geometry.snapshot_slots)
    ours = recipe.load(Path(), manifest, config)
    model = PlayedModel(manifest, logits, tape, device)
    drafter = PlayedDrafter(manifest, tape, device) if ours.drafter is not None else None
    peer, frames = make_peer(manifest, model, drafter, layouts), buffers(layouts)
    replay = peer.catalog.replay

    def played(graph: int) -> int:
        model.load()
        if drafter is not None:
            drafter.load()
        tape.clear()
        return replay(graph)

    vars(peer.catalog)["replay"] = played
    parts = TapedModel(ours.model, tape), None if ours.drafter is None else TapedDrafter(ours.drafter, tape)
    return host_over(manifest, TwinCatalog(manifest, parts, peer, layouts, frames), layouts, frames)
