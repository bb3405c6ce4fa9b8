"""Boundary exports on the card: commit replays the accepted prefix to position P into a row, and never beyond it."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from shared.frames import ROW_TOKENS, Meta
from tests.gpu.toy_plans import SLOTS, Ledger, lane_of, plan_at, write_plan
from tests.gpu.toy_rules import WORDS, Lane, Slot, State, absorb, continuation

if TYPE_CHECKING:
    from tests.gpu.toy_worker import ToyWorker

pytestmark = pytest.mark.gpu
NOTHING = (0,) * WORDS


def replayed(slot: Slot, count: int) -> State:
    """The state after `count` more consumed tokens, replayed on the host token by token."""
    state = slot.state
    for token in continuation(slot, 2 + count)[1 : 1 + count]:
        state = absorb(state, token)
    return state


def exporting(slots: list[Slot], index: int, accepts: int, distance: int) -> Lane:
    """A lane that offers seven drafts of which `accepts` are right, and wants the state `distance` tokens on."""
    tokens = list(continuation(slots[index], 2 + 7))
    if accepts < 7:
        tokens[2 + accepts] ^= 1
    where = slots[index].consumed
    return lane_of(
        slots,
        index,
        anchor=where - 1,
        tokens=tuple(tokens),
        export_slot=index,
        export_boundary=where + distance,
    )


def test_a_boundary_is_exported_exactly_when_the_accepted_prefix_reaches_it(worker: ToyWorker) -> None:
    cases = list(itertools.product(range(ROW_TOKENS), range(-1, ROW_TOKENS + 3)))
    for at in range(0, len(cases), SLOTS):
        group = cases[at : at + SLOTS]
        worker.reset()
        ledger = Ledger()
        before = list(ledger.slots)
        lanes = [exporting(before, index, *case) for index, case in enumerate(group)]
        write_plan(plan_at(worker.plans.payload, 0), 0, lanes)
        worker.replay()
        worker.settle()
        records = ledger.apply(lanes, 0)
        assert worker.journal([0])[0][1] == records
        rows = worker.exports()
        for index, (accepts, distance) in enumerate(group):
            assert records[index][Meta.ACCEPTED] == accepts
            assert records[index][Meta.OFFERED] == 7
            reached = 1 <= distance <= accepts + 1
            assert rows[index] == (replayed(before[index], distance) if reached else NOTHING)


def test_the_queued_round_exports_what_the_round_before_did_not_reach(worker: ToyWorker) -> None:
    for distance in range(1, 2 * ROW_TOKENS + 1):
        worker.reset()
        ledger = Ledger()
        before = list(ledger.slots)
        tokens = [continuation(slot, 18) for slot in before]
        for sequence in (0, 1):
            lanes = [
                lane_of(
                    before,
                    index,
                    ceiling=2 * index + 2,
                    anchor=before[index].consumed - 1,
                    tokens=tokens[index],
                    export_slot=index + SLOTS * sequence,
                    export_boundary=before[index].consumed + distance,
                )
                for index in range(SLOTS)
            ]
            write_plan(plan_at(worker.plans.payload, sequence), sequence, lanes)
            ledger.apply(lanes, sequence)
        worker.replay_pair()
        assert worker.slots() == ledger.slots
        rows = worker.exports()
        for index in range(SLOTS):
            first = distance <= 2 * index + 2
            second = not first and distance <= 2 * (2 * index + 2)
            state = replayed(before[index], distance)
            assert rows[index] == (state if first else NOTHING)
            assert rows[index + SLOTS] == (state if second else NOTHING)
