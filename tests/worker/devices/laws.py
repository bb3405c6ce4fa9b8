"""A hashed model of a flat law and drafters of it, for the joint law of two tokens through a device's rounds.

The favourite has about a half of the mass that top-k 4 leaves; the drafter's favourite is often the same, and its law
is its own. `Broken` ones report laws that their drafts were not drawn from.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from recipes.components.device_drafter import DeviceDrafts, DeviceTask
from shared.manifest import Manifest, read
from tests.acceptance.test_joint_law import LANES, Experiment
from tests.fixtures.scripted.recipe import SCRIPTED, make_core
from tests.worker.devices.hashed import _ALPHABET, HashedDrafter, HashedModel, mixed

_FLATTER = 0.25


class FlatModel(HashedModel):
    """`HashedModel` whose favourite is little more likely than the next ones."""

    def logits(self, vectors: Tensor) -> Tensor:
        return super().logits(vectors) * _FLATTER


class EagerDrafter(HashedDrafter):
    """`HashedDrafter` that offers as many drafts as it may."""

    def propose(self, task: DeviceTask) -> DeviceDrafts:
        return replace(super().propose(task), counts=task.limits)


class AnotherRowsLaw(EagerDrafter):
    """Reports each draft with its neighbour's law: what retaining one row too late would give."""

    def propose(self, task: DeviceTask) -> DeviceDrafts:
        found = super().propose(task)
        return replace(found, law=found.law.roll(1, 1))


class TooCool(EagerDrafter):
    """Draws at temperature one and reports a half."""

    def propose(self, task: DeviceTask) -> DeviceDrafts:
        found = super().propose(task)
        squares = found.law.square()
        return replace(found, law=squares / squares.sum(-1, keepdim=True))


class HashedExperiment(Experiment):
    """The experiment over hashes, whose drafter's first favourite is known."""

    def _proposed(self) -> int:
        return int(mixed(torch.tensor([self.pending + 1]))[0]) % _ALPHABET + 3


def law_core(folder: Path) -> Manifest:
    """A manifest of sixteen lanes and the graphs that the experiment replays."""
    made = read(
        make_core(
            folder, SCRIPTED, concurrency=LANES, draft_tokens=4, context_length=128, prefill_buckets=(128,),
            mixed_chunk=32, snapshot_slots=1,
        )
    )  # fmt: skip
    kept = tuple(
        graph
        for graph in made.graphs
        if graph.kind in ("init", "prefill", "snapshot", "restore", "resume")
        or (graph.kind == "speculative" and graph.batch_capacity == LANES)
    )
    return msgspec.structs.replace(made, graphs=kept)


def parts_of(manifest: Manifest, drafter: type[HashedDrafter], device: torch.device) -> tuple[FlatModel, HashedDrafter]:
    """A flat model and a drafter over the manifest's slots."""
    found = manifest.geometry
    model = FlatModel(found.vocab_size, found.pages, found.concurrency, found.snapshot_slots, device)
    return model, drafter(found.vocab_size, found.concurrency, found.snapshot_slots, device)
