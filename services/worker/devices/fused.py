"""Rounds in few kernels: what `programs.py` does in torch operations, lane by lane on the device.

A round is then its fetch, one kernel that opens lanes, a drafter's proposals and one kernel that takes them, the model,
five that say what each row says, one that settles lanes, one for log probabilities, and the frame.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from recipes.components.device_acceptance import Candidates
from recipes.components.device_drafter import DeviceDrafter, DeviceTask
from recipes.components.device_model import DeviceRows
from recipes.components.gpu.launch import chained, power_above
from recipes.components.gpu.sampling import say_rows
from services.worker.devices.fused_chunks import FusedChunks
from services.worker.devices.parts import Parts
from shared.frames import Layout
from shared.manifest import ExecutionGraph

FusedBody = Callable[[Tensor], None]
"""A program over the round counter int64 [1]; it judges the plan itself."""


@dataclass(frozen=True, slots=True)
class Opened:
    """Lanes as `lane_kernels.open_lanes` finds them."""

    candidates: Candidates
    rows: DeviceRows
    faults: Tensor
    sources: Tensor


@dataclass(frozen=True, slots=True)
class Settled:
    """Rows kept, rows up to a wanted boundary, and the snapshot row for it or -1: int64 [B] each."""

    kept: Tensor
    at: Tensor
    target: Tensor


class FusedRounds:
    """The bodies of all graphs but `restore` and `scored_prefill` on a device that runs Triton."""

    def __init__(self, parts: Parts, taken: Tensor, layout: Layout) -> None:
        self._parts, self._taken, self._layout = parts, taken, layout
        early = chained(taken)
        self._options: dict[str, Any] = {"CHAINED": early, **({"launch_pdl": True} if early else {})}
        self._chunks = FusedChunks(parts, taken, layout)

    def body(self, index: int, graph: ExecutionGraph) -> FusedBody | None:
        """The program of graph `index`; None where `programs.py` has it."""
        drafter = self._parts.drafter if graph.speculation_enabled is not False else None
        if graph.kind in ("prefill", "mixed"):
            return self._chunked(index, graph, drafter)
        if graph.kind == "init":
            return self._chunks.init(index)
        if graph.kind == "resume":
            return self._chunks.resume(index)
        if graph.kind == "snapshot":
            return self._chunks.snapshot(index, self._parts.drafter)
        if graph.kind not in ("decode", "speculative"):
            return None
        return self._lanes(index, graph, drafter)

    def _lanes(self, index: int, graph: ExecutionGraph, drafter: DeviceDrafter | None) -> FusedBody:
        """The lanes of a decode, verification or mixed graph."""
        # A catalog's largest batch is a power of two; a plan names no more lanes than there are slots.
        batch = min(graph.batch_capacity, self._parts.state.slots)
        width = graph.verify_tokens if graph.kind == "speculative" else 1
        return lambda counter: self._verify(counter, index, batch, width, drafter)

    def _chunked(self, index: int, graph: ExecutionGraph, drafter: DeviceDrafter | None) -> FusedBody:
        """A prompt chunk, beside lanes of one row in a mixed graph."""
        alone = graph.kind == "prefill"
        chunk = self._chunks.prefill(index, graph.token_capacity, drafter, alone)
        if alone:
            return chunk
        lanes = self._lanes(index, graph, drafter)

        def mixed(counter: Tensor) -> None:
            lanes(counter)
            chunk(counter)

        return mixed

    def _word(self, name: str) -> int:
        return self._layout.offset_of(name) // 8

    def _verify(self, counter: Tensor, index: int, batch: int, width: int, drafter: DeviceDrafter | None) -> None:
        """Lanes of at most `width` rows: draft, verify, accept, export, commit, absorb, note."""
        parts = self._parts
        opened, task = self._open(counter, index, batch, width, drafter is not None)
        if drafter is not None and width > 1:
            opened = self._join(opened, task, drafter)
        rows, found = opened.rows, opened.candidates
        vectors = parts.model.forward(rows)
        logits = parts.model.logits(vectors)
        tokens, finite = say_rows(found, logits, parts.state)
        done = self._settle(opened, vectors, tokens, finite, drafter is not None)
        parts.model.export(rows, done.at, done.target)
        parts.model.commit(rows, done.kept)
        if drafter is not None:
            drafter.absorb(rows, vectors, done.kept)
            drafter.export(rows, vectors, done.at, done.target)
        parts.out.tell(counter, logits, found.rows, done.kept, tokens)

    def _open(self, counter: Tensor, index: int, batch: int, width: int, learns: bool) -> tuple[Opened, DeviceTask]:
        """The lanes of the plan with their copies, and what they ask of a drafter if the round `learns`."""
        from services.worker.devices.lane_kernels import open_lanes

        parts, device, word = self._parts, counter.device, self._word
        lanes = [torch.empty(batch, dtype=torch.int64, device=device) for _ in range(10)]
        row, slots, faults, first, room, offered, sources, counts, asked, pendings = lanes
        live = torch.empty(batch, dtype=torch.uint8, device=device)
        drafts = torch.empty(batch, width - 1, dtype=torch.int64, device=device)
        draws = torch.empty(batch, width - 1, device=device)
        tokens = torch.empty(batch * width, dtype=torch.int64, device=device)
        state = parts.state
        open_lanes[(max(batch, state.slots),)](
            self._taken, counter, state.words, parts.out.notes, row, slots, live, faults, first, room, offered, drafts,
            sources, tokens, counts, asked, pendings, draws, index, width, batch, state.slots, word("head"),
            word("tail"), word("graph"), word("lanes"), word("slot"), word("epoch"), word("request"), word("ceiling"),
            word("copy_anchor"), word("copy_length"), word("copy_source"), word("copy_tokens"), learns, num_warps=1,
            **self._options,
        )  # fmt: skip
        tables = parts.plan.page_table[:batch]
        rows = DeviceRows(tokens, slots, first, counts, tables, width)
        # Nothing is learned yet, and without a law nobody asks.
        found = Candidates(row, live.view(torch.bool), first, room, offered, drafts, drafts, None)
        return Opened(found, rows, faults, sources), DeviceTask(
            slots, row, first, pendings, asked, tables, draws, state
        )

    def _join(self, opened: Opened, task: DeviceTask, drafter: DeviceDrafter) -> Opened:
        """The lanes with what the drafter proposes behind their copies."""
        from services.worker.devices.lane_kernels import join_drafts

        found, rows = opened.candidates, opened.rows
        proposal = drafter.propose(task)
        learned = torch.empty(found.drafts.shape, dtype=torch.uint8, device=rows.tokens.device)
        join_drafts[(len(found.rows),)](
            proposal.tokens.contiguous(), proposal.counts.contiguous(), task.limits, found.offered, found.drafts,
            learned, opened.sources, rows.tokens, rows.counts, rows.width, power_above(rows.width - 1), num_warps=1,
            **self._options,
        )  # fmt: skip
        return replace(opened, candidates=replace(found, learned=learned.view(torch.bool), law=proposal.law))

    def _settle(self, opened: Opened, vectors: Tensor, tokens: Tensor, finite: Tensor, learns: bool) -> Settled:
        from services.worker.devices.lane_kernels import settle_lanes

        parts, found, state = self._parts, opened.candidates, self._parts.state
        batch, snapshots, hidden = len(found.rows), parts.snapshots, state.hidden_size
        kept, at, target = (torch.empty_like(found.rows) for _ in range(3))
        chains = learns and found.law is not None
        learned = (found.learned if chains else found.live).view(torch.uint8)
        settle_lanes[(batch,)](
            self._taken, state.words, parts.out.notes, state.end_ids, state.seen.view(torch.uint8), state.counts,
            vectors, state.vectors, snapshots.words, snapshots.vectors, found.rows, found.live.view(torch.uint8),
            opened.faults, parts.faults, found.first, found.room, found.offered, found.drafts, learned,
            opened.sources, opened.rows.tokens, tokens, finite.view(torch.uint8), kept, at, target,
            opened.rows.width, state.vocab_size, state.slots, snapshots.rows, self._word("export_slot"),
            self._word("export_boundary"), hidden, min(1024, power_above(hidden)), learns, num_warps=4,
            **self._options,
        )  # fmt: skip
        return Settled(kept, at, target)
