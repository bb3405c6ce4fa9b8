"""Plans of the toy as frames, and a deterministic traffic of them: what a scheduler would write, without a scheduler.

No torch here: the process that plays the scheduler imports this.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.frames import COPY_TOKENS, ROW_TOKENS, Fault, Layout, Meta, PlanFrame, completion_layout, plan_frame
from shared.frames import plan_layout as layout_of
from shared.manifest import Geometry
from tests.gpu.toy_rules import EMPTY_RECORD, Lane, Slot, State, continuation, first_slot, record, step

GEOMETRY = Geometry(vocab_size=512, hidden_size=8, context_length=8192, concurrency=4, pages=520, snapshot_slots=8)
SLOTS = GEOMETRY.concurrency
PLAN: Layout = layout_of(GEOMETRY, largest_chunk=512)
COMPLETION: Layout = completion_layout(GEOMETRY)

Records = tuple[tuple[int, ...], ...]


def write_plan(frame: PlanFrame, sequence: int, lanes: list[Lane], noise: random.Random | None = None) -> None:
    """Fills a frame in the order that makes a torn one visible: head first, tail last. `noise` fills what is unused."""
    frame.head[0] = sequence
    if noise is not None:
        frame.page_table[:] = np.frombuffer(noise.randbytes(frame.page_table.nbytes), "<i4").reshape(SLOTS, -1)
        frame.chunk_tokens[:] = np.frombuffer(noise.randbytes(frame.chunk_tokens.nbytes), "<i4")
    frame.lanes[0] = len(lanes)
    frame.export_slot[:] = -1
    for index, lane in enumerate(lanes):
        frame.slot[index], frame.epoch[index], frame.request[index] = lane.slot, lane.epoch, lane.request
        frame.ceiling[index], frame.copy_anchor[index] = lane.ceiling, lane.anchor
        frame.copy_length[index], frame.copy_source[index] = len(lane.tokens), lane.source
        frame.copy_tokens[index, : len(lane.tokens)] = lane.tokens
        frame.export_slot[index], frame.export_boundary[index] = lane.export_slot, lane.export_boundary
    frame.tail[0] = sequence


def plan_at(buffer: memoryview, sequence: int) -> PlanFrame:
    """The frame of round `sequence` in a region's payload."""
    return plan_frame(PLAN, buffer, sequence & 1)


def checksum(words: NDArray[np.int64]) -> int:
    """What the device computes of the plan that it copied: every word with its own odd weight, modulo 2^64."""
    weights = 2 * np.arange(len(words), dtype=np.uint64) + np.uint64(1)
    return int(np.sum(words.view(np.uint64) * weights, dtype=np.uint64).view(np.int64))


@dataclass(slots=True)
class Ledger:
    """The slots as they must be, round by round, and the rows that must have been exported."""

    slots: list[Slot] = field(default_factory=lambda: [first_slot(index) for index in range(SLOTS)])
    exports: dict[int, State] = field(default_factory=dict)

    def apply(self, lanes: list[Lane], sequence: int, faults: Fault = Fault.NONE) -> Records:
        """The records of one round, one for each slot. `faults` of the whole frame: nothing happens."""
        if faults:
            return tuple(record(i, slot, sequence, faults=faults) for i, slot in enumerate(self.slots))
        rows = [EMPTY_RECORD] * SLOTS
        for lane in lanes:
            outcome = step(self.slots, lane, sequence)
            if outcome is None:
                continue
            rows[lane.slot], self.slots[lane.slot] = outcome.record, outcome.slot
            if outcome.exported is not None:
                self.exports[lane.export_slot] = outcome.exported
        return tuple(rows)


def lane_of(slots: list[Slot], index: int, **settings: Any) -> Lane:
    """A lane with the identity that its slot has now."""
    return Lane(index, slots[index].epoch, slots[index].request, **settings)


def traffic(known: list[Slot], dice: random.Random) -> list[Lane]:
    """A random plan written from slots as they were some rounds ago: lanes in any order, some texts wrong, exports."""
    lanes = []
    for index in dice.sample(range(SLOTS), dice.randint(1, SLOTS)):
        slot, behind = known[index], dice.randint(-1, 1)
        tokens = list(continuation(slot, dice.randint(0, COPY_TOKENS)))
        if tokens and dice.random() < 0.4:
            tokens[dice.randrange(len(tokens))] ^= 1
        anchor = slot.consumed - 1
        if behind > 0:
            anchor, tokens = anchor - 1, [7, *tokens][:COPY_TOKENS]
        elif behind < 0:
            anchor, tokens = anchor + 1, tokens[1:]
        lanes.append(
            lane_of(
                known,
                index,
                ceiling=dice.randint(1, ROW_TOKENS),
                anchor=anchor,
                tokens=tuple(tokens),
                export_slot=dice.choice((-1, index, index + SLOTS)),
                export_boundary=slot.consumed + dice.randint(0, 2 * ROW_TOKENS),
            )
        )
    return lanes


def accepted(records: Records) -> list[int]:
    """Accepted drafts of the lanes that emitted."""
    return [row[Meta.ACCEPTED] for row in records if row[Meta.EMITTED]]
