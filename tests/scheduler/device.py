"""A scripted worker: the device rules of a round over a deterministic next-token function, for tests of the scheduler.

It stands where weights would be. `Slots` follows what shared/frames.py and the issue say of init, chunks, rounds and
copies, and is stricter than a worker: whatever a scheduler may never do raises `Violation`. `ScriptedWorker` of
scripted_worker.py puts it behind a real socket and real shared memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from shared.frames import (
    METADATA,
    CompletionFrame,
    Fault,
    InitFloat,
    InitInt,
    Meta,
    PlanFrame,
    Status,
)
from shared.manifest import PAGE_TOKENS, ExecutionGraph, Manifest

NextToken = Callable[[list[int]], int]
"""The token that follows a context: the whole model."""


class Violation(Exception):
    """The scheduler broke a rule of the device protocol."""


@dataclass(slots=True)
class Slot:
    """A request on the device. `state` holds consumed tokens, `chain` a hash of each prefix of them.

    `noted` is how many tokens its penalties know of.
    """

    epoch: int = -1
    request: int = -1
    state: list[int] = field(default_factory=list)
    pending: int = -1
    generated: int = 0
    status: Status = Status.RUNNING
    budget: int = 0
    min_tokens: int = 0
    prompt_length: int = 0
    ends: frozenset[int] = frozenset()
    penalised: bool = False
    noted: int = 0
    prefix: int = 0
    """Tokens that its first chunk finds in its pages."""
    chain: list[int] = field(default_factory=list)

    def take(self, tokens: list[int]) -> None:
        """These tokens are consumed."""
        self.state += tokens
        self.chain += chained(self.chain, tokens)


def chained(chain: list[int], tokens: list[int]) -> list[int]:
    """The hashes of the prefixes that end with each of `tokens`, behind a prefix."""
    found, last = [], chain[-1] if chain else 0
    for token in tokens:
        last = hash((last, token))
        found.append(last)
    return found


class Slots:
    """All slots, snapshot rows and the page store: a place remembers behind which prefix it was written."""

    def __init__(self, manifest: Manifest, next_token: NextToken) -> None:
        self._manifest = manifest
        self._next = next_token
        self.slots = [Slot() for _ in range(manifest.geometry.concurrency)]
        self.rows: list[list[int] | None] = [None] * manifest.geometry.snapshot_slots
        self._store: dict[tuple[int, int], tuple[int, int]] = {}
        """(page, offset) -> (prefix, token) of what was written there last."""

    def reset(self) -> None:
        self.slots = [Slot() for _ in self.slots]
        self.rows = [None] * len(self.rows)
        self._store.clear()

    def replay(self, graph: ExecutionGraph, plan: PlanFrame, out: CompletionFrame, sequence: int) -> None:
        """One round into a completion frame."""
        out.head[0] = out.tail[0] = -1
        out.records.fill(0)
        out.records[:, Meta.SLOT] = -1
        if plan.head[0] != plan.tail[0] or plan.head[0] != sequence:
            raise Violation(f"round {sequence} found the plan of {plan.head[0]} and {plan.tail[0]}")
        if graph.kind == "init":
            self._init(plan, out, sequence)
        elif graph.kind == "restore":
            self._restore(plan, out, sequence)
        elif graph.kind == "resume":
            self._resume(plan, out, sequence)
        else:
            self._round(graph, plan, out, sequence)
        out.tail[0] = out.head[0] = sequence

    def _init(self, plan: PlanFrame, out: CompletionFrame, sequence: int) -> None:
        slot, integers, floats = int(plan.init_slot[0]), plan.init_integers, plan.init_floats
        if integers[InitInt.PREFIX] and self._manifest.continuation_row_bytes:
            raise Violation("pages alone do not continue a prefix")
        laws = (floats[InitFloat.REPETITION] != 1, floats[InitFloat.FREQUENCY] != 0, floats[InitFloat.PRESENCE] != 0)
        self.slots[slot] = Slot(
            epoch=int(plan.init_epoch[0]),
            request=int(plan.init_request[0]),
            budget=int(integers[InitInt.BUDGET]),
            min_tokens=int(integers[InitInt.MIN_TOKENS]),
            prompt_length=int(integers[InitInt.PROMPT_LENGTH]),
            ends=frozenset(int(token) for token in plan.init_end_ids[: integers[InitInt.END_COUNT]]),
            penalised=any(laws),
            prefix=int(integers[InitInt.PREFIX]),
        )
        self._record(out, slot, sequence, (), 0, 0, 0, 0)

    def _restore(self, plan: PlanFrame, out: CompletionFrame, sequence: int) -> None:
        index, row, total = int(plan.chunk_slot[0]), int(plan.snapshot_row[0]), int(plan.restore_length[0])
        slot = self._current(index, int(plan.chunk_epoch[0]), int(plan.chunk_request[0]))
        if row >= 0:
            held = self.rows[row]
            if slot.state or held is None or len(held) != total:
                raise Violation(f"row {row} is restored as {total} tokens over {len(slot.state)}")
            slot.take(held)
        self._adopt(slot, plan.chunk_page_table)
        if len(slot.state) != total:
            raise Violation(f"a prefix of {total} tokens is noted over {len(slot.state)}")
        self._check(slot, plan.chunk_page_table, total)
        start, length = int(plan.chunk_start[0]), int(plan.chunk_length[0])
        if plan.chunk_tokens[:length].tolist() != slot.state[start : start + length]:
            raise Violation("other tokens are noted than those of the prefix")
        self._note(slot, start, length)
        self._record(out, index, sequence, (), 0, 0, 0, 0)

    def _note(self, slot: Slot, start: int, length: int) -> None:
        if slot.penalised and start != slot.noted:
            raise Violation(f"tokens from {start} on are noted after {slot.noted}")
        slot.noted = start + length

    def _resume(self, plan: PlanFrame, out: CompletionFrame, sequence: int) -> None:
        index = int(plan.chunk_slot[0])
        slot = self._current(index, int(plan.chunk_epoch[0]), int(plan.chunk_request[0]))
        if len(slot.state) != slot.prompt_length or slot.pending >= 0:
            raise Violation("a first token is drawn elsewhere than behind the prompt")
        if slot.penalised and slot.noted != slot.prompt_length:
            raise Violation("a token is drawn before the prompt was noted")
        emitted = [self._draw(slot, slot.state, 0)]
        self._emit(slot, emitted)
        self._record(out, index, sequence, tuple(emitted), 0, 0, 0, 1)

    def _adopt(self, slot: Slot, table: np.ndarray) -> None:
        """A prefix that lies in the pages is read from there."""
        count, slot.prefix = slot.prefix, 0
        places = [(int(table[position // PAGE_TOKENS]), position % PAGE_TOKENS) for position in range(count)]
        if any(place not in self._store for place in places):
            raise Violation("a cached prefix lies in pages that nobody wrote")
        slot.take([self._store[place][1] for place in places])

    def _round(self, graph: ExecutionGraph, plan: PlanFrame, out: CompletionFrame, sequence: int) -> None:
        lanes, chunked = int(plan.lanes[0]), graph.kind in ("prefill", "mixed")
        if lanes > (0 if graph.kind == "prefill" else graph.batch_capacity):
            raise Violation(f"{lanes} lanes for a {graph.kind} graph of {graph.batch_capacity}")
        if len({int(slot) for slot in plan.slot[:lanes]}) != lanes:
            raise Violation("a slot twice in one round")
        width = graph.token_capacity if graph.kind == "speculative" else 1
        for lane in range(lanes):
            self._lane(plan, out, sequence, lane, width)
        if chunked:
            self._chunk(graph, plan, out, sequence)

    def _current(self, slot: int, epoch: int, request: int) -> Slot:
        if not 0 <= slot < len(self.slots):
            raise Violation(f"no slot {slot}")
        found = self.slots[slot]
        if (found.epoch, found.request) != (epoch, request):
            raise Violation(f"slot {slot} holds request {found.request}, not {request}")
        return found

    def _lane(self, plan: PlanFrame, out: CompletionFrame, sequence: int, lane: int, width: int) -> None:
        index = int(plan.slot[lane])
        slot = self._current(index, int(plan.epoch[lane]), int(plan.request[lane]))
        if slot.pending < 0:
            raise Violation("a round for a request without a pending token")
        if slot.status is not Status.RUNNING:
            self._record(out, index, sequence, (), 0, 0, 0, 0)
            return
        room = slot.budget - slot.generated
        limit = min(int(plan.ceiling[lane]), width, room) - 1
        tokens = plan.copy_tokens[lane, : int(plan.copy_length[lane])].tolist()
        at = len(slot.state) - int(plan.copy_anchor[lane])
        agrees = 1 <= at < len(tokens) and tokens[at - 1 : at + 1] == [slot.state[-1], slot.pending]
        drafts = tokens[at + 1 : at + 1 + limit] if agrees and limit > 0 else []
        table, start = plan.page_table[lane], len(slot.state)
        self._check(slot, table, start)
        inputs = [slot.pending, *drafts]
        self._write(slot, table, start, inputs)
        emitted: list[int] = []
        accepted = 0
        for row in range(len(inputs)):
            token = self._draw(slot, slot.state + inputs[: row + 1], len(emitted))
            emitted.append(token)
            survived = row < len(drafts) and token == drafts[row]
            accepted += survived
            if not survived or token in slot.ends or len(emitted) == room:
                break
        slot.take(inputs[: len(emitted)])
        row, boundary = int(plan.export_slot[lane]), int(plan.export_boundary[lane])
        if row >= 0:
            if boundary % PAGE_TOKENS or boundary <= 0:
                raise Violation(f"a snapshot of {boundary} tokens is wanted")
            if start < boundary <= len(slot.state):
                self.rows[row] = slot.state[:boundary]
        self._emit(slot, emitted)
        source = int(plan.copy_source[lane]) if drafts else 0
        self._record(out, index, sequence, tuple(emitted), len(drafts), accepted, source, len(inputs))

    def _draw(self, slot: Slot, context: list[int], emitted: int) -> int:
        token = self._next(context)
        if token in slot.ends and slot.generated + emitted < slot.min_tokens:
            return min(set(range(2, 40)) - slot.ends)
        return token

    def _emit(self, slot: Slot, emitted: list[int]) -> None:
        slot.pending = emitted[-1]
        slot.generated += len(emitted)
        if emitted[-1] in slot.ends:
            slot.status = Status.ENDED
        elif slot.generated >= slot.budget:
            slot.status = Status.LENGTH

    def _chunk(self, graph: ExecutionGraph, plan: PlanFrame, out: CompletionFrame, sequence: int) -> None:
        index, length, final = int(plan.chunk_slot[0]), int(plan.chunk_length[0]), int(plan.chunk_final[0])
        slot = self._current(index, int(plan.chunk_epoch[0]), int(plan.chunk_request[0]))
        start = int(plan.chunk_start[0])
        self._adopt(slot, plan.chunk_page_table)
        if start != len(slot.state) or not 1 <= length <= graph.token_capacity:
            raise Violation(f"a chunk of {length} at {start} after {len(slot.state)} tokens")
        tokens = plan.chunk_tokens[:length].tolist()
        self._check(slot, plan.chunk_page_table, start)
        self._write(slot, plan.chunk_page_table, start, tokens)
        self._note(slot, start, length)
        slot.take(tokens)
        if plan.chunk_export_slot[0] >= 0:
            if len(slot.state) % PAGE_TOKENS:
                raise Violation(f"a snapshot of {len(slot.state)} tokens is wanted")
            self.rows[int(plan.chunk_export_slot[0])] = list(slot.state)
        emitted: list[int] = []
        if final == 1:
            emitted = [self._draw(slot, slot.state, 0)]
            self._emit(slot, emitted)
        elif final == 2:
            slot.generated = start + length + 1 - slot.prompt_length
            slot.pending = int(plan.chunk_pending[0])
        self._record(out, index, sequence, tuple(emitted), 0, 0, 0, length)

    def _write(self, slot: Slot, table: np.ndarray, start: int, tokens: list[int]) -> None:
        places = zip(tokens, chained(slot.chain, tokens), strict=True)
        for position, (token, prefix) in enumerate(places, start):
            page = int(table[position // PAGE_TOKENS])
            if not 0 <= page < self._manifest.geometry.pages:
                raise Violation(f"position {position} has no page")
            self._store[page, position % PAGE_TOKENS] = (prefix, token)

    def _check(self, slot: Slot, table: np.ndarray, start: int) -> None:
        """All consumed tokens must still lie where the table says, behind exactly their prefix."""
        for position, (token, prefix) in enumerate(zip(slot.state[:start], slot.chain, strict=False)):
            if self._store.get((int(table[position // PAGE_TOKENS]), position % PAGE_TOKENS)) != (prefix, token):
                raise Violation(f"position {position} of request {slot.request} was overwritten or moved")

    def _record(
        self,
        out: CompletionFrame,
        index: int,
        sequence: int,
        tokens: tuple[int, ...],
        offered: int,
        accepted: int,
        source: int,
        width: int,
    ) -> None:
        slot, record = self.slots[index], out.records[index]
        record[:METADATA] = (
            index,
            slot.epoch,
            slot.request,
            len(slot.state),
            slot.generated,
            slot.generated - (slot.status is Status.ENDED),
            slot.status,
            len(tokens),
            offered,
            accepted,
            source,
            0,
            width,
            sequence,
            Fault.NONE,
            accepted,
        )
        record[METADATA : METADATA + len(tokens)] = tokens
