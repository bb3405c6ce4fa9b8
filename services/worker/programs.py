"""The programs behind the graphs, on the CPU: recorded callables over fixed buffers, as a graph's are.

Each takes a plan that the catalog has checked, advances the state of its lanes and writes their records. Nothing here
decides policy. The round is mtp-design.md's state transaction: draft, verify, accept, commit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from recipes.components.acceptance import Drafts, Verdict, accept
from recipes.components.copies import continuation_slice
from recipes.components.model import Drafter, DraftTask, Lane, Model, rows_of
from recipes.components.philox import ordinary, proposals
from recipes.components.request_state import RequestState
from recipes.components.target_law import NotFinite, raw_logprobs
from services.worker.completion import Completion, Emission
from services.worker.prefixes import PrefixLaws
from services.worker.snapshots import Snapshots
from shared.errors import ContractBreach, HistoryMissing, RowsLost
from shared.frames import Fault, InitInt, PlanFrame, Source, Status
from shared.manifest import ExecutionGraph

Program = Callable[[PlanFrame, Completion], None]


@dataclass(frozen=True, slots=True)
class LaneJob:
    """A live lane of a round: its plan index, its drafts and how many tokens it may still emit."""

    index: int
    slot: int
    drafts: Drafts
    source: Source
    room: int


class Programs:
    """The bodies of all graphs over one model, one drafter and one request state."""

    def __init__(self, model: Model, drafter: Drafter | None, state: RequestState, snapshots: Snapshots) -> None:
        self._model = model
        self._drafter = drafter
        self._state = state
        self._snapshots = snapshots

    def record(self, graph: ExecutionGraph) -> Program:
        """The callable of one graph."""
        width = graph.verify_tokens or 1
        learns = graph.speculation_enabled is not False
        bodies: dict[str, Program] = {
            "init": self._init,
            "resume": self._resume,
            "snapshot": self._snapshot,
            "restore": self._restore,
            "prefill": lambda plan, out: self._round(plan, out, 0, True, learns),
            "scored_prefill": lambda plan, out: self._round(plan, out, 0, True, learns, scored=True),
            "mixed": lambda plan, out: self._round(plan, out, 1, True, learns),
            "decode": lambda plan, out: self._round(plan, out, 1, False, learns),
            "speculative": lambda plan, out: self._round(plan, out, width, False, learns),
        }
        return bodies[graph.kind]

    def _round(
        self, plan: PlanFrame, out: Completion, width: int, chunked: bool, learns: bool, scored: bool = False
    ) -> None:
        """Lanes of at most `width` rows and, if `chunked`, one prompt chunk, in one forward pass."""
        jobs = self._jobs(plan, out, width, learns) if width else []
        chunk = self._chunk(plan, out, scored) if chunked else None
        state, parts, lanes, start = self._state, [], [], 0
        for job in jobs:
            tokens = (int(state.pending[job.slot]), *job.drafts.tokens)
            lanes.append(self._lane(job.slot, start, len(tokens), plan.page_table[job.index]))
            parts.append(torch.tensor(tokens))
            start += len(tokens)
        if chunk is not None:
            lanes.append(self._lane(int(plan.chunk_slot[0]), start, len(chunk), plan.chunk_page_table))
            parts.append(chunk)
        if not lanes:
            return
        try:
            vectors = self._model.forward(rows_of(torch.cat(parts), tuple(lanes)))
        except (RowsLost, HistoryMissing) as error:
            fault = Fault.ROW_SERVER if isinstance(error, RowsLost) else Fault.MISSING_HISTORY
            for lane in lanes:
                self._model.commit(lane, 0)
                out.write(lane.slot, Emission(width=lane.count, faults=fault))
            return
        if jobs:
            logits = self._model.logits(vectors[:start])
            for job, lane, inputs in zip(jobs, lanes, parts, strict=False):
                self._finish_lane(plan, out, job, lane, inputs, logits, vectors, learns)
        if chunk is not None:
            if scored:
                self._score(plan, out, int(plan.chunk_slot[0]), chunk, vectors[start:])
            self._finish_chunk(plan, out, lanes[-1], chunk, vectors[start:], learns)

    def _lane(self, slot: int, start: int, count: int, table: np.ndarray) -> Lane:
        return Lane(slot, start, count, int(self._state.consumed[slot]), torch.from_numpy(table.astype(np.int64)))

    def _identity_fault(self, slot: int, epoch: int, request: int) -> Fault:
        if not 0 <= slot < self._state.slots:
            return Fault.BAD_SLOT
        if self._state.epoch[slot] != epoch or self._state.request[slot] != request:
            return Fault.STALE_EPOCH
        return Fault.NONE

    def _jobs(self, plan: PlanFrame, out: Completion, width: int, learns: bool) -> list[LaneJob]:
        """Live lanes with their drafts. A finished lane gets an empty record, a foreign one its error bit."""
        state, found = self._state, []
        for index in range(int(plan.lanes[0])):
            slot = int(plan.slot[index])
            fault = self._identity_fault(slot, int(plan.epoch[index]), int(plan.request[index]))
            if fault == Fault.BAD_SLOT:
                continue
            if not fault and state.status[slot] == Status.RUNNING and state.pending[slot] < 0:
                fault = Fault.UNEXPECTED_PLAN
            if fault or state.status[slot] != Status.RUNNING:
                out.write(slot, Emission(faults=fault))
                continue
            room = int(state.budget[slot] - state.generated[slot])
            limit = min(int(plan.ceiling[index]), width, room) - 1
            found.append(self._job(plan, index, slot, limit, room, learns))
        return found

    def _job(self, plan: PlanFrame, index: int, slot: int, limit: int, room: int, learns: bool) -> LaneJob:
        """Copied drafts first; learned ones where no copy stands, if they agree with it so far."""
        state = self._state
        consumed, pending = int(state.consumed[slot]), int(state.pending[slot])
        continuation = plan.copy_tokens[index, : int(plan.copy_length[index])].tolist()
        previous = int(state.previous[slot])
        copied = continuation_slice(continuation, int(plan.copy_anchor[index]), consumed, previous, pending, limit)
        source = Source(int(plan.copy_source[index])) if copied else Source.NONE
        if self._drafter is None or not learns or limit <= len(copied):
            return LaneJob(index, slot, Drafts(copied, (False,) * len(copied)), source, room)
        draws = torch.tensor(proposals(state.seeds[slot], consumed, limit))
        pages = torch.from_numpy(plan.page_table[index].astype(np.int64))
        task = DraftTask(slot, consumed, pending, limit, pages, draws, state.values[slot])
        proposal = self._drafter.propose(task)
        learned = tuple(proposal.tokens.tolist())
        agrees = learned[: len(copied)] == copied
        tokens = learned if agrees and len(learned) > len(copied) else copied
        marks = (False,) * len(copied) + (True,) * (len(tokens) - len(copied))
        if any(marks):
            source |= Source.LEARNED
        return LaneJob(index, slot, Drafts(tokens, marks, proposal.law), source, room)

    def _finish_lane(
        self,
        plan: PlanFrame,
        out: Completion,
        job: LaneJob,
        lane: Lane,
        inputs: torch.Tensor,
        logits: torch.Tensor,
        vectors: torch.Tensor,
        learns: bool,
    ) -> None:
        """Accept, export, commit and record one lane."""
        state, slot = self._state, job.slot
        rows = slice(lane.start, lane.start + lane.count)
        laws = PrefixLaws(state, slot, logits[rows], job.drafts.tokens)
        try:
            verdict = accept(job.drafts, laws.law, state.seeds[slot], lane.first, state.end_ids[slot], job.room)
        except NotFinite:
            self._model.commit(lane, 0)
            out.write(slot, Emission(width=lane.count, faults=Fault.NOT_FINITE))
            return
        kept, boundary = len(verdict.tokens), int(plan.export_boundary[job.index])
        row = int(plan.export_slot[job.index])
        at = boundary - lane.first if self._snapshots.holds(row) else 0
        exports = 0 < at <= kept
        if exports:
            self._snapshots.export(lane, at, row, int(inputs[at - 1]), vectors[lane.start + at - 1])
        self._commit(lane, kept, inputs, vectors[rows], learns)
        if exports and learns:
            self._snapshots.export_drafts(lane, at, row, vectors[rows])
        state.pending[slot] = verdict.tokens[-1]
        self._emit(slot, verdict, out, logits[rows])
        out.write(
            slot,
            Emission(
                verdict.tokens,
                len(job.drafts.tokens),
                verdict.accepted,
                verdict.copied,
                job.source,
                lane.count,
            ),
        )

    def _commit(self, lane: Lane, kept: int, inputs: torch.Tensor, vectors: torch.Tensor, learns: bool) -> None:
        """Selects the state after input `kept - 1`; rejected rows stay unreachable."""
        state, slot = self._state, lane.slot
        self._model.commit(lane, kept)
        if self._drafter is not None and learns:
            self._drafter.absorb(lane, inputs, vectors, kept)
            state.draft_cache[slot] = max(lane.first + kept - 1, 0)
        state.consumed[slot] = lane.first + kept
        state.previous[slot] = int(inputs[kept - 1])
        state.vectors[slot] = vectors[kept - 1]

    def _emit(self, slot: int, verdict: Verdict, out: Completion, logits: torch.Tensor) -> None:
        state, wanted = self._state, int(self._state.top_logprobs[slot])
        state.emit(slot, verdict.tokens)
        state.settle(slot, verdict.ended)
        if wanted >= 0:
            for row, token in enumerate(verdict.tokens):
                logprob, ids, values = raw_logprobs(logits[row], token, wanted)
                out.write_logprobs(slot, row, logprob, ids.numpy(), values.numpy())

    def _score(self, plan: PlanFrame, out: Completion, slot: int, tokens: torch.Tensor, vectors: torch.Tensor) -> None:
        """Row i tells how likely the model finds token i + 1, the last one how likely what is behind the chunk."""
        logits, wanted = self._model.logits(vectors), max(int(self._state.top_logprobs[slot]), 0)
        followers = (*tokens[1:].tolist(), int(plan.chunk_pending[0]))
        for row, token in enumerate(followers):
            logprob, ids, values = raw_logprobs(logits[row], token, wanted)
            out.write_logprobs(0, row, logprob, ids.numpy(), values.numpy())

    def _chunk(self, plan: PlanFrame, out: Completion, scored: bool = False) -> torch.Tensor | None:
        """The prompt chunk int64 [n], if it continues exactly what its slot has consumed."""
        slot, start, length = self._named_slot(plan, out), int(plan.chunk_start[0]), int(plan.chunk_length[0])
        if slot is None:
            return None
        fault = Fault.NONE
        tokens = torch.from_numpy(plan.chunk_tokens[: max(length, 0)].astype(np.int64))
        if self._state.consumed[slot] != start or len(tokens) != length or length < 1:
            fault = Fault.UNEXPECTED_PLAN
        elif not 0 <= int(tokens.min()) <= int(tokens.max()) < self._state.vocab_size:
            fault = Fault.BAD_TOKEN
        elif scored and (plan.chunk_final[0] == 1 or not 0 <= plan.chunk_pending[0] < self._state.vocab_size):
            fault = Fault.UNEXPECTED_PLAN
        if fault:
            out.write(slot, Emission(faults=fault))
            return None
        return tokens

    def _finish_chunk(
        self, plan: PlanFrame, out: Completion, lane: Lane, tokens: torch.Tensor, vectors: torch.Tensor, learns: bool
    ) -> None:
        """Commits a chunk; the last one draws the first token, or puts a replayed pending token back."""
        state, slot, final = self._state, lane.slot, int(plan.chunk_final[0])
        self._commit(lane, lane.count, tokens, vectors, learns)
        state.note_prompt(slot, lane.first, tokens)
        row = int(plan.chunk_export_slot[0])
        if self._snapshots.holds(row):
            self._snapshots.take(slot, row)
        if final == 2:
            state.generated[slot] = state.consumed[slot] - state.prompt_length[slot]
            state.pending[slot] = plan.chunk_pending[0]
            state.emit(slot, (int(plan.chunk_pending[0]),))
        if final == 1:
            self._draw_pending(slot, out, lane.count)
        else:
            out.write(slot, Emission(width=lane.count))

    def _draw_pending(self, slot: int, out: Completion, width: int) -> None:
        """Samples the pending token from the saved sampling vector: ends a prompt, or a restored prefix."""
        state = self._state
        logits = self._model.logits(state.vectors[slot].unsqueeze(0))
        try:
            law = PrefixLaws(state, slot, logits, ()).law(0)
        except NotFinite:
            out.write(slot, Emission(width=width, faults=Fault.NOT_FINITE))
            return
        token = law.draw(ordinary(state.seeds[slot], int(state.consumed[slot]) - 1))
        verdict = Verdict((token,), 0, 0, token in state.end_ids[slot])
        state.pending[slot] = token
        self._emit(slot, verdict, out, logits)
        out.write(slot, Emission(verdict.tokens, width=width))

    def _init(self, plan: PlanFrame, out: Completion) -> None:
        slot = int(plan.init_slot[0])
        if not 0 <= slot < self._state.slots:
            out.fail(Fault.BAD_SLOT)
            return
        self._state.admit(slot, plan)
        self._model.reset(slot)
        if self._drafter is not None:
            self._drafter.reset(slot)
        prefix = int(plan.init_integers[InitInt.PREFIX])
        if prefix:
            if self._drafter is not None:
                raise ContractBreach("a drafter's state of a prefix comes from a snapshot row")
            self._model.adopt(slot, prefix)
        out.write(slot, Emission())

    def _named_slot(self, plan: PlanFrame, out: Completion) -> int | None:
        """The slot that the `chunk_*` fields name; None, with its error bit recorded, if it is not that request's."""
        slot = int(plan.chunk_slot[0])
        fault = self._identity_fault(slot, int(plan.chunk_epoch[0]), int(plan.chunk_request[0]))
        if not fault:
            return slot
        if fault != Fault.BAD_SLOT:
            out.write(slot, Emission(faults=fault))
        return None

    def _resume(self, plan: PlanFrame, out: Completion) -> None:
        slot = self._named_slot(plan, out)
        if slot is not None:
            self._draw_pending(slot, out, 1)

    def _snapshot(self, plan: PlanFrame, out: Completion) -> None:
        slot, row = self._named_slot(plan, out), int(plan.snapshot_row[0])
        if slot is not None and self._snapshots.holds(row):
            self._snapshots.take(slot, row)
            out.write(slot, Emission())

    def _restore(self, plan: PlanFrame, out: Completion) -> None:
        """Puts a prefix into a slot that `init` has reset, or notes a stretch of one that is there already, or both.

        Counts for penalties are a request's own, so they are in no row: the plan brings the prefix's tokens.
        """
        slot, row, length = self._named_slot(plan, out), int(plan.snapshot_row[0]), int(plan.restore_length[0])
        if slot is None:
            return
        state, start, count = self._state, int(plan.chunk_start[0]), int(plan.chunk_length[0])
        tokens = torch.from_numpy(plan.chunk_tokens[: max(count, 0)].astype(np.int64))
        held = self._snapshots.prefix_of(row) if row >= 0 else int(state.consumed[slot])
        fault = Fault.NONE
        if held != length or (row >= 0 and state.consumed[slot] != 0):
            fault = Fault.WRONG_PREFIX
        elif len(tokens) != count or not 0 <= start <= start + count <= length:
            fault = Fault.UNEXPECTED_PLAN
        elif count and not 0 <= int(tokens.min()) <= int(tokens.max()) < state.vocab_size:
            fault = Fault.BAD_TOKEN
        if fault:
            out.write(slot, Emission(faults=fault))
            return
        if row >= 0:
            self._snapshots.restore(row, slot)
        state.note_prompt(slot, start, tokens)
        out.write(slot, Emission())
