"""Plan frames on the card: queued replays take their own, and a torn or foreign one does nothing but say so."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from shared.frames import Fault, Meta, completion_frame
from tests.gpu.conftest import MakeWorker
from tests.gpu.toy_plans import COMPLETION, PLAN, SLOTS, Ledger, checksum, lane_of, plan_at, traffic, write_plan
from tests.gpu.toy_rules import Lane, Slot, continuation

if TYPE_CHECKING:
    from tests.gpu.toy_worker import ToyWorker

pytestmark = pytest.mark.gpu
ROUNDS = 4000
RACES = 3000


def written(sequence: int, lanes: list[Lane], dice: random.Random) -> bytes:
    """A plan as bytes."""
    buffer = bytearray(2 * PLAN.nbytes)
    write_plan(plan_at(memoryview(buffer), sequence), sequence, lanes, dice)
    start = (sequence & 1) * PLAN.nbytes
    return bytes(buffer[start : start + PLAN.nbytes])


def sum_of(plan: bytes) -> int:
    """The checksum that the device must find."""
    return checksum(np.frombuffer(plan, dtype=np.int64))


def test_queued_replays_of_one_graph_take_their_own_frames(
    make_worker: MakeWorker, figure: Callable[[str], None]
) -> None:
    worker = make_worker(busy_cycles=150_000)
    dice, ledger = random.Random(7), Ledger()
    known: list[list[Slot]] = [list(ledger.slots)] * 2
    plans, expected = [], []
    for sequence in range(ROUNDS):
        lanes = traffic(known[0], dice)
        known = [known[1], list(ledger.slots)]
        plans.append(written(sequence, lanes, dice))
        expected.append((sum_of(plans[-1]), ledger.apply(lanes, sequence)))
    events: list[Any] = [worker.event(), worker.event()]
    queued = 0
    for sequence, plan in enumerate(plans):
        events[sequence & 1].synchronize()
        start = (sequence & 1) * PLAN.nbytes
        worker.plans.payload[start : start + PLAN.nbytes] = plan
        queued += not events[1 - (sequence & 1)].query()
        worker.replay()
        events[sequence & 1] = worker.event()
    worker.settle()
    wrong = [r for r, found in enumerate(worker.journal(range(ROUNDS))) if found != expected[r]]
    accepted = Counter(row[Meta.ACCEPTED] for _, records in expected for row in records if row[Meta.EMITTED])
    figure(f"(a) {ROUNDS} replays of one graph, {queued} launched while the one before still ran, {len(wrong)} wrong")
    figure(f"(a) accepted drafts a lane and round: {dict(sorted(accepted.items()))}")
    assert not wrong
    assert queued > ROUNDS * 0.9
    assert worker.slots() == ledger.slots
    assert {row: worker.exports()[row] for row in ledger.exports} == ledger.exports
    assert set(accepted) == set(range(8))


@pytest.mark.parametrize(
    ("head", "tail", "fault"),
    [
        (0, -2, Fault.TORN_PLAN),
        (-2, 0, Fault.TORN_PLAN),
        (-2, -2, Fault.UNEXPECTED_PLAN),
        (2, 2, Fault.UNEXPECTED_PLAN),
        (1, 1, Fault.UNEXPECTED_PLAN),
    ],
)
def test_a_bad_frame_does_nothing_but_say_so(worker: ToyWorker, head: int, tail: int, fault: Fault) -> None:
    worker.reset(sequence := 6)
    ledger = Ledger()
    lanes = [
        lane_of(
            ledger.slots,
            index,
            anchor=2,
            tokens=continuation(ledger.slots[index], 9),
            export_slot=index,
            export_boundary=4,
        )
        for index in range(SLOTS)
    ]
    for round_ in (sequence, sequence + 1):
        write_plan(plan_at(worker.plans.payload, round_), round_, lanes)
    bad = plan_at(worker.plans.payload, sequence)
    bad.head[0], bad.tail[0] = sequence + head, sequence + tail
    worker.replay()
    worker.settle()
    records = ledger.apply([], sequence, fault)
    assert worker.slots() == ledger.slots
    assert not any(map(any, worker.exports()))
    frame = completion_frame(COMPLETION, worker.completions.refresh(0, COMPLETION.nbytes), 0)
    assert frame.head[0] == frame.tail[0] == sequence
    assert tuple(map(tuple, frame.records.tolist())) == records
    worker.replay()
    worker.settle()
    assert worker.journal([sequence + 1])[0][1] == ledger.apply(lanes, sequence + 1)
    assert worker.slots() == ledger.slots


def test_a_frame_that_nobody_wrote_is_for_no_round(worker: ToyWorker) -> None:
    worker.replay()
    worker.settle()
    assert worker.journal([0])[0][1] == Ledger().apply([], 0, Fault.UNEXPECTED_PLAN)


def test_a_lane_of_another_epoch_or_slot_costs_itself_alone(worker: ToyWorker) -> None:
    ledger = Ledger()
    good, stale = lane_of(ledger.slots, 0), lane_of(ledger.slots, 1)
    lanes = [Lane(1, stale.epoch + 1, stale.request), Lane(SLOTS, 1, 1), good, Lane(-1, 1, 1)]
    write_plan(plan_at(worker.plans.payload, 0), 0, lanes)
    worker.replay()
    worker.settle()
    records = ledger.apply(lanes, 0)
    assert worker.journal([0])[0][1] == records
    assert [row[Meta.FAULTS] for row in records] == [0, Fault.STALE_EPOCH, 0, 0]
    assert worker.slots() == ledger.slots


def test_a_frame_written_while_it_is_fetched_is_whole_or_refused(
    worker: ToyWorker, figure: Callable[[str], None]
) -> None:
    dice, ledger, seen, wrong = random.Random(3), Ledger(), Counter[str](), []
    payload = worker.plans.payload
    for sequence in range(RACES):
        lanes = [lane_of(ledger.slots, index) for index in range(SLOTS)]
        plan, start = written(sequence, lanes, dice), (sequence & 1) * PLAN.nbytes
        delay = dice.random() * 250e-6
        worker.idle(300_000)
        worker.replay()
        begin = time.perf_counter()
        while time.perf_counter() - begin < delay:
            pass
        for at in range(0, PLAN.nbytes, 256):
            payload[start + at : start + min(at + 256, PLAN.nbytes)] = plan[at : at + 256]
        worker.settle()
        ((total, records),) = worker.journal([sequence])
        fault = Fault(records[0][Meta.FAULTS])
        seen[str(fault.name)] += 1
        if records != ledger.apply(lanes, sequence, fault) or (not fault and total != sum_of(plan)):
            wrong.append(sequence)
    figure(f"(b) {RACES} frames written while fetched: {dict(seen)}, {len(wrong)} wrong")
    assert not wrong
    assert worker.slots() == ledger.slots
    assert set(seen) >= {"NONE", "TORN_PLAN", "UNEXPECTED_PLAN"}
