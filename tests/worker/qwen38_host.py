"""The tiny Qwen3.8 through a worker's real programs and frames, in which all that a round may not read is NaN."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from recipes.qwen38.mtp import MtpDrafter
from recipes.qwen38.target import Target
from services.worker.config import WorkerConfig
from services.worker.preparation import Frames, create_frames, prepare
from shared.frames import FRAMES, PlanFrame, completion_frame, plan_frame
from shared.manifest import Kind, read
from shared.messages.common import Sampling
from tests.worker.host import Host, LanePlan, Record
from tests.worker.qwen38_reference import Reference
from tests.worker.qwen38_state import committed_state, poison
from tests.worker.qwen38_talk import GREEDY, Talk, Watch

MEASURED = 1e-4
"""No difference of logits between two ways of computing the same row is larger; about 1e-5 was measured."""


class Qwen38Host(Host):
    """A host whose slots may share pages, with everything that it watches and compares."""

    watch: Watch
    frames: Frames
    reference: Reference
    deterministic: bool
    tables: dict[int, list[int]]
    """Pages that a slot's table begins with instead of its own."""
    held: dict[int, Tensor]
    """Rows in use, with their pages: slots, and behind them snapshot rows."""

    @classmethod
    def open(cls, folder: Path, reference: Reference, instance: int, *, deterministic: bool) -> Qwen38Host:
        core = folder / "core"
        manifest = read(core)
        frames = create_frames(manifest, instance)
        catalog = prepare(
            WorkerConfig(core=core, run_dir=core, deterministic=deterministic, threads=1), manifest, frames
        )
        plans = tuple(plan_frame(frames.plan_layout, frames.plan.payload, i) for i in range(FRAMES))
        outs = tuple(completion_frame(frames.completion_layout, frames.completion.payload, i) for i in range(FRAMES))
        host = cls(manifest, catalog, plans, outs)
        host.frames, host.reference, host.tables, host.held = frames, reference, {}, {}
        host.watch, host.deterministic = Watch(host.target, catalog.state), deterministic
        return host

    @property
    def target(self) -> Target:
        model = self.catalog.model
        assert isinstance(model, Target)
        return model

    @property
    def drafter(self) -> MtpDrafter:
        drafter = self.catalog._drafter
        assert isinstance(drafter, MtpDrafter)
        return drafter

    def pages(self, slot: int) -> np.ndarray:
        """Each slot has its own pages, some of its first ones perhaps another's."""
        own = super().pages(slot)
        shared = self.tables.get(slot, [])
        own[: len(shared)] = shared
        return own

    def replay(self, graph: int) -> dict[int, Record]:
        """A replay in which everything that the round has no business with is NaN."""
        poison(self.target, self.drafter, self.catalog.state, self.catalog.snapshots, self.held)
        return super().replay(graph)

    def init(
        self,
        slot: int,
        prompt_length: int,
        sampling: Sampling,
        budget: int,
        end_ids: tuple[int, ...] = (),
        prefix: int = 0,
    ) -> Record:
        """The slot's last request is over: nothing of it is kept."""
        self.held.pop(slot, None)
        self.watch.seen[slot].clear()
        record = super().init(slot, prompt_length, sampling, budget, end_ids, prefix)
        self.held[slot] = self.table(slot)
        return record

    def table(self, slot: int) -> Tensor:
        return torch.from_numpy(self.pages(slot).astype(np.int64))

    def hold(self, row: int, slot: int) -> None:
        """Snapshot row `row` was taken of a request in `slot`, whose pages it refers to."""
        self.held[self.manifest.geometry.concurrency + row] = self.table(slot)

    def drop(self, row: int) -> None:
        """Nobody wants snapshot row `row` any more."""
        self.held.pop(self.manifest.geometry.concurrency + row, None)

    def restore(self, slot: int, row: int, prefix: tuple[int, ...]) -> Record:
        """Puts a snapshot row into a slot that `init` has just reset."""
        graph = self.manifest.index_of("restore", 1, 0)
        plan = self._of_slot(graph, slot)
        plan.chunk_start[0], plan.chunk_length[0], plan.chunk_tokens[: len(prefix)] = 0, len(prefix), prefix
        plan.snapshot_row[0], plan.restore_length[0] = row, len(prefix)
        record = self.replay(graph)[slot]
        assert not record.faults
        return record

    def snapshot(self, slot: int, row: int) -> None:
        """Copies the slot's committed state into a snapshot row, which then refers to its pages."""
        graph = self.manifest.index_of("snapshot", 1, 0)
        self._of_slot(graph, slot).snapshot_row[0] = row
        assert not self.replay(graph)[slot].faults
        self.hold(row, slot)

    def resume(self, slot: int) -> Record:
        """Draws the token after a restored prefix."""
        graph = self.manifest.index_of("resume", 1, 0)
        self._of_slot(graph, slot)
        record = self.replay(graph)[slot]
        assert not record.faults
        return record

    def _of_slot(self, graph: int, slot: int) -> PlanFrame:
        plan = self.plan(graph)
        plan.chunk_slot[0], plan.chunk_epoch[0], plan.chunk_request[0] = slot, self.epochs[slot], 100 + slot
        return plan

    def begin(
        self, slot: int, prompt: tuple[int, ...], budget: int, sampling: Sampling = GREEDY, shared: tuple[int, ...] = ()
    ) -> Talk:
        """Admits a request, feeds its prompt; for greedy ones the truth comes from the reference."""
        self.tables[slot] = list(shared)
        truth = self.reference.continuation(prompt, budget) if sampling == GREEDY else []
        record = self.start(slot, prompt, sampling, budget)
        return Talk(slot, prompt, truth, record, list(record.tokens))

    def turn(self, plans: list[tuple[Talk, LanePlan]], width: int, kind: Kind = "speculative") -> None:
        """One round of these requests."""
        found = self.round([plan for _, plan in plans], width, kind)
        for talk, _ in plans:
            talk.take(found[talk.slot])

    def mixed(
        self, plans: list[tuple[Talk, LanePlan]], slot: int, start: int, chunk: tuple[int, ...], last: bool
    ) -> Record:
        """One row of each of these requests beside a prompt chunk of another; returns the chunk's record."""
        batch, tokens = next(shape for shape in self.manifest.capacities("mixed") if shape[0] >= len(plans))
        assert len(chunk) <= tokens
        graph = self.manifest.index_of("mixed", batch, tokens)
        plan = self.plan(graph)
        self.fill_lanes(plan, [lane for _, lane in plans])
        self.fill_chunk(plan, slot, start, chunk, int(last), -1, -1)
        found = self.replay(graph)
        for talk, _ in plans:
            talk.take(found[talk.slot])
        return found[slot]

    def check(self, talk: Talk, since: int | None = None) -> None:
        """A request's tokens, and the logits of its rows from position `since` on, by default the prompt's last.

        Where arithmetic is deterministic, logits and all state in its slot are those of recomputation. In the fast
        arithmetic logits differ from transformers' by what is measured here; no token could have gone another way.
        """
        assert talk.said == talk.truth[: len(talk.said)]
        first, whole = len(talk.prompt) - 1 if since is None else since, [*talk.prompt, *talk.said]
        assert talk.consumed > first
        found = torch.stack([self.watch.seen[talk.slot][place] for place in range(first, talk.consumed)])
        if self.deterministic:
            logits, state = self.reference.exact(whole[:-1])
            assert torch.equal(found, logits[first:])
            own = committed_state(self.target, self.drafter, talk.slot, self.table(talk.slot))
            assert [name for name in state if not torch.equal(own[name], state[name])] == []
            return
        wanted = self.reference.foreign(whole[:-1])[first:]
        difference = float((found - wanted).abs().max())
        print(f"{len(talk.prompt)} + {len(talk.said)} tokens: logits differ by {difference:.1e}")
        assert difference < MEASURED
        best = wanted.topk(2).values
        near = best[:, 0] - best[:, 1] <= 2 * difference
        assert not near.any(), "two best logits are nearer than the arithmetic tells apart: take another prompt"
