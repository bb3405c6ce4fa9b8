"""Rounds of a device in torch operations: what `services/worker/programs.py` does lane after lane, for all at once.

Where kernels can run, fused rounds take their place (`fused.py`), for which they are the reference, in all graphs but
`restore` and `scored_prefill`.
Every program reads the fetched plan, advances the state of its lanes and notes what they did; a plan that is torn or
not for this round and graph changes nothing. No shape and no branch depends on a value, nothing waits for the host.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from recipes.components.device_acceptance import Candidates, Verdicts, walk
from recipes.components.device_model import Adopting, DeviceRows
from recipes.components.device_state import Admission, Word
from recipes.components.gpu.sampling import say_rows
from services.worker.devices.chunk import Chunk, named_slot, open_chunk, open_restoration
from services.worker.devices.completion import Emissions
from services.worker.devices.lanes import Drafted, Lanes, draft, lane_rows, open_lanes, take_faults, without_broken
from services.worker.devices.parts import Parts
from services.worker.devices.snapshots import row_index
from shared.frames import Fault, InitInt, Status
from shared.manifest import ExecutionGraph

Body = Callable[[Tensor], None]
"""A program over `good` bool [1]: whether the plan is whole and for this round and graph."""


class DevicePrograms:
    """The bodies of all graphs."""

    def __init__(self, parts: Parts, counter: Tensor) -> None:
        self._counter = counter
        self._model, self._drafter, self._state = parts.model, parts.drafter, parts.state
        self._snapshots, self._plan, self._out, self._faults = parts.snapshots, parts.plan, parts.out, parts.faults

    def body(self, graph: ExecutionGraph) -> Body:
        """The program of one graph."""
        # A catalog's largest batch is a power of two; a plan names no more lanes than there are slots.
        batch = min(graph.batch_capacity, self._state.slots)
        width, bucket = graph.verify_tokens or 1, graph.token_capacity
        learns = graph.speculation_enabled is not False
        bodies: dict[str, Body] = {
            "init": self._init,
            "resume": self._resume,
            "snapshot": self._snapshot,
            "restore": self._restore,
            "prefill": lambda good: self._prefill(good, bucket, learns),
            "scored_prefill": lambda good: self._scored(good, bucket, learns),
            "mixed": lambda good: self._mixed(good, batch, bucket, learns),
            "decode": lambda good: self._verify(good, batch, 1, learns),
            "speculative": lambda good: self._verify(good, batch, width, learns),
        }
        return bodies[graph.kind]

    def _verify(self, good: Tensor, batch: int, width: int, learns: bool) -> None:
        """Lanes of at most `width` rows: draft, verify, accept, export, commit, note."""
        drafter = self._drafter if learns else None
        lanes = open_lanes(self._plan, self._state, good, batch)
        drafted = draft(self._plan, self._state, lanes, width, drafter)
        rows = lane_rows(self._plan, lanes, drafted)
        vectors = self._model.forward(rows)
        lanes = without_broken(lanes, self._faults)
        logits = self._model.logits(vectors)
        verdicts = self._accept(replace(drafted.candidates, live=lanes.live), logits)
        kept, target = self._export(rows, verdicts, vectors)
        self._commit(rows, verdicts.emitted, vectors, learns)
        if learns:
            self._snapshots.export_drafts(rows, kept, target, vectors)
        self._settle(lanes, rows, verdicts, learns)
        self._note(lanes, drafted, rows, verdicts)
        self._out.tell(self._counter, logits, lanes.rows, verdicts.emitted, verdicts.tokens)

    def _accept(self, found: Candidates, logits: Tensor) -> Verdicts:
        tokens, finite = say_rows(found, logits, self._state)
        return walk(found, tokens, finite, self._state)

    def _export(self, rows: DeviceRows, verdicts: Verdicts, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Exports wanted boundaries inside the kept prefixes; how many rows each has and its snapshot row or -1."""
        batch = len(rows.slots)
        at = self._plan.export_boundary[:batch] - rows.first
        inside = (at > 0) & (at <= verdicts.emitted)
        target = torch.where(inside, self._snapshots.existing(self._plan.export_slot[:batch]), -1)
        at = torch.where(target >= 0, at, 0)
        self._snapshots.export(rows, at, target, vectors)
        return at, target

    def _commit(self, rows: DeviceRows, kept: Tensor, vectors: Tensor, learns: bool) -> None:
        """Selects the state after each lane's first `kept` inputs; rejected rows stay unreachable."""
        self._model.commit(rows, kept)
        if self._drafter is not None and learns:
            self._drafter.absorb(rows, vectors, kept)
        target = self._state.safe(torch.where(kept > 0, rows.slots, -1))
        self._state.vectors.index_copy_(0, target, vectors[row_index(rows, kept)].float())

    def _settle(self, lanes: Lanes, rows: DeviceRows, verdicts: Verdicts, learns: bool) -> None:
        """Counters, pending token and terminal status of lanes that emitted something."""
        state, kept = self._state, verdicts.emitted
        words, last = lanes.words.clone(), (kept - 1).clamp(min=0)[:, None]
        words[:, Word.CONSUMED] += kept
        words[:, Word.PREVIOUS] = rows.tokens[row_index(rows, kept)]
        words[:, Word.PENDING] = verdicts.tokens.gather(1, last)[:, 0]
        words[:, Word.GENERATED] += kept
        words[:, Word.STATUS] = self._status(words, verdicts.ended)
        if self._drafter is not None and learns:
            words[:, Word.DRAFT_CACHE] = (words[:, Word.CONSUMED] - 1).clamp(min=0)
        state.words.index_copy_(0, torch.where(kept > 0, lanes.rows, state.scratch), words)
        mask = torch.arange(rows.width, device=kept.device) < kept[:, None]
        everything = lanes.rows.repeat_interleave(rows.width)
        state.note(everything, verdicts.tokens.flatten(), mask.flatten(), mask.flatten())

    def _status(self, words: Tensor, ended: Tensor) -> Tensor:
        """int64 [n]: the terminal status after an emission: an end token first, then the budget."""
        spent = torch.where(words[:, Word.GENERATED] >= words[:, Word.BUDGET], int(Status.LENGTH), int(Status.RUNNING))
        return torch.where(ended, int(Status.ENDED), spent)

    def _note(self, lanes: Lanes, drafted: Drafted, rows: DeviceRows, verdicts: Verdicts) -> None:
        zero, void = torch.zeros_like(rows.counts), verdicts.void
        kept = lanes.live & ~void
        self._out.note(
            Emissions(
                lanes.rows,
                verdicts.tokens,
                verdicts.emitted,
                torch.where(kept, drafted.candidates.offered, zero),
                verdicts.accepted,
                verdicts.copied,
                torch.where(kept, drafted.sources, zero),
                rows.counts,
                torch.where(void, int(Fault.NOT_FINITE), lanes.faults),
            )
        )

    def _prefill(self, good: Tensor, bucket: int, learns: bool) -> None:
        chunk = open_chunk(self._plan, self._state, good, bucket)
        self._out.blame(chunk.slot, chunk.fault)
        vectors = self._model.forward(chunk.rows)
        self._finish_chunk(self._unbroken(chunk), vectors, learns)

    def _unbroken(self, chunk: Chunk) -> Chunk:
        """The chunk, if its rows could be computed; else its slot's record has the reason, and nothing is kept."""
        row = self._state.safe(chunk.rows.slots)
        lost = take_faults(self._faults, row)
        zero, fine = torch.zeros_like(lost), lost == 0
        into = torch.where(fine, self._state.scratch, row)
        width = chunk.rows.counts
        self._out.note(Emissions(into, zero[:, None], zero, zero, zero, zero, zero, width, lost))
        slots, counts = torch.where(fine, chunk.rows.slots, -1), torch.where(fine, width, 0)
        return replace(chunk, rows=replace(chunk.rows, slots=slots, counts=counts))

    def _scored(self, good: Tensor, bucket: int, learns: bool) -> None:
        """A chunk whose row i tells how likely token i + 1 was, the last one how likely the token behind the chunk."""
        plan, state = self._plan, self._state
        chunk = open_chunk(plan, state, good, bucket, scored=True)
        self._out.blame(chunk.slot, chunk.fault)
        rows = chunk.rows
        vectors = self._model.forward(rows)
        behind = rows.tokens.roll(-1).index_copy(0, (rows.counts - 1).clamp(min=0), plan.chunk_pending)
        behind = torch.where(rows.slots >= 0, behind, 0)
        self._out.score(self._counter, self._model.logits(vectors), state.safe(rows.slots), rows.counts, behind[None])
        self._finish_chunk(self._unbroken(chunk), vectors, learns)

    def _mixed(self, good: Tensor, batch: int, bucket: int, learns: bool) -> None:
        """Lanes of one row, and a chunk beside them."""
        self._verify(good, batch, 1, learns)
        self._prefill(good, bucket, learns)

    def _finish_chunk(self, chunk: Chunk, vectors: Tensor, learns: bool) -> None:
        """Commits a chunk; the last one draws the first token, or puts a replayed pending token back."""
        state, plan, rows, final = self._state, self._plan, chunk.rows, self._plan.chunk_final
        kept, slot = rows.counts, rows.slots
        taken, row = slot >= 0, state.safe(slot)
        self._commit(rows, kept, vectors, learns)
        words = state.words[row]
        words[:, Word.CONSUMED] = rows.first + kept
        words[:, Word.PREVIOUS] = rows.tokens[row_index(rows, kept)]
        if self._drafter is not None and learns:
            words[:, Word.DRAFT_CACHE] = (words[:, Word.CONSUMED] - 1).clamp(min=0)
        state.words.index_copy_(0, row, words)
        places = rows.first + torch.arange(rows.width, device=kept.device)
        replayed = places >= words[0, Word.PROMPT_LENGTH]
        mask = torch.arange(rows.width, device=kept.device) < kept
        state.note(row.expand(rows.width), rows.tokens, mask, replayed)
        self._snapshots.take(slot, self._snapshots.existing(plan.chunk_export_slot))
        self._replay_pending(row, taken & (final == 2))
        zero = torch.zeros_like(kept)
        self._out.note(Emissions(row, zero[:, None], zero, zero, zero, zero, zero, kept, zero))
        self._draw_pending(row, taken & (final == 1), kept)

    def _replay_pending(self, row: Tensor, wanted: Tensor) -> None:
        """Ends a replayed history: the pending token that a preemption took away is pending again, and counted."""
        state, pending = self._state, self._plan.chunk_pending
        words = state.words[row]
        words[:, Word.GENERATED] = words[:, Word.CONSUMED] - words[:, Word.PROMPT_LENGTH] + 1
        words[:, Word.PENDING] = pending
        state.words.index_copy_(0, torch.where(wanted, row, state.scratch), words)
        state.note(row, pending, wanted, wanted)

    def _draw_pending(self, row: Tensor, wanted: Tensor, width: Tensor) -> None:
        """Samples the pending token from the saved sampling vector: ends a prompt, or a restored prefix."""
        state, words = self._state, self._state.words[row]
        nothing = torch.zeros_like(row)
        logits = self._model.logits(state.vectors[row])
        position = words[:, Word.CONSUMED] - 1
        none = torch.empty(1, 0, dtype=torch.int64, device=row.device)
        room = torch.ones_like(row)
        found = Candidates(row, wanted, position, room, nothing, none, none.bool(), None)
        verdict = self._accept(found, logits)
        words[:, Word.PENDING] = verdict.tokens[:, 0]
        words[:, Word.GENERATED] += verdict.emitted
        words[:, Word.STATUS] = self._status(words, verdict.ended)
        state.words.index_copy_(0, torch.where(verdict.emitted > 0, row, state.scratch), words)
        state.note(row, verdict.tokens[:, 0], verdict.emitted > 0, wanted)
        fault = torch.where(verdict.void, int(Fault.NOT_FINITE), 0)
        into = torch.where(wanted, row, state.scratch)
        done = verdict.emitted
        self._out.note(Emissions(into, verdict.tokens, done, nothing, nothing, nothing, nothing, width, fault))
        self._out.tell(self._counter, logits, into, done, verdict.tokens)

    def _named(self, good: Tensor) -> Tensor:
        """int64 [1]: the slot of the `chunk_*` fields, or -1; a foreign one is blamed."""
        slot, fault = named_slot(self._plan, self._state, good)
        self._out.blame(self._plan.chunk_slot, fault)
        return slot

    def _resume(self, good: Tensor) -> None:
        slot = self._named(good)
        self._draw_pending(self._state.safe(slot), slot >= 0, torch.ones_like(slot))

    def _snapshot(self, good: Tensor) -> None:
        slot, row = self._named(good), self._snapshots.existing(self._plan.snapshot_row)
        self._snapshots.take(slot, row)
        self._empty_note(torch.where(row >= 0, slot, -1))

    def _restore(self, good: Tensor) -> None:
        """Puts a prefix into a slot that `init` has reset, or notes a stretch of one that is there already, or both."""
        state, row = self._state, self._plan.snapshot_row
        found = open_restoration(self._plan, state, good, self._snapshots.prefix_of(row))
        self._out.blame(found.slot, found.fault)
        self._snapshots.restore(self._snapshots.existing(row), found.target)
        mine = state.safe(found.target)
        replayed = found.positions >= state.words[mine, Word.PROMPT_LENGTH]
        state.note(mine.expand(len(found.tokens)), found.tokens, found.mask, replayed)
        self._empty_note(found.target)

    def _empty_note(self, slot: Tensor) -> None:
        zero = torch.zeros_like(slot)
        row = self._state.safe(slot)
        self._out.note(Emissions(row, zero[:, None], zero, zero, zero, zero, zero, zero, zero))

    def _init(self, good: Tensor) -> None:
        plan, state = self._plan, self._state
        exists = (plan.init_slot >= 0) & (plan.init_slot < state.slots)
        self._out.fail(torch.where(good & ~exists, int(Fault.BAD_SLOT), 0))
        slot = torch.where(good & exists, plan.init_slot, -1)
        admission = Admission(
            state.safe(slot),
            plan.init_epoch,
            plan.init_request,
            plan.init_integers,
            plan.init_floats,
            plan.init_end_ids,
            plan.init_bias_ids,
            plan.init_bias_values,
        )
        state.admit(admission)
        self._model.reset(slot)
        if isinstance(self._model, Adopting):
            self._model.adopt(slot, plan.init_integers[InitInt.PREFIX : InitInt.PREFIX + 1])
        if self._drafter is not None:
            self._drafter.reset(slot)
        self._empty_note(slot)
