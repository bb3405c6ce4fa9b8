"""Rows from another process: a captured memory-wait node waits for the answer, or for the poison of a watchdog."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from typing import TYPE_CHECKING

import pytest

from shared.frames import Fault, Meta
from tests.gpu.conftest import MakeWorker
from tests.gpu.toy_plans import SLOTS, Ledger, lane_of, plan_at, write_plan
from tests.gpu.toy_rows import ANSWER, ANSWERED, POISON, RING, TAG, Watchdog, serve_rows, table_rows, words_of

if TYPE_CHECKING:
    from tests.gpu.toy_worker import ToyWorker

pytestmark = pytest.mark.gpu
ROUNDS = 2000
NEVER = -9


@contextmanager
def row_server(worker: ToyWorker, dies_at: int = NEVER) -> Iterator[None]:
    """A row server in a process of its own, and the watchdog that minds it."""
    assert worker.mailbox is not None
    process = get_context("spawn").Process(target=serve_rows, args=(worker.mailbox.handle, dies_at), daemon=True)
    process.start()
    watchdog = Watchdog(words_of(worker.mailbox), process.is_alive)
    try:
        yield
        worker.settle()
    finally:
        watchdog.close()
        process.kill()
        process.join(10)


def plan_all(worker: ToyWorker, ledger: Ledger, sequence: int, faults: Fault = Fault.NONE) -> tuple[int, ...]:
    """A plan of every slot at width one; returns the faults that its records must show."""
    lanes = [lane_of(ledger.slots, index) for index in range(SLOTS)]
    write_plan(plan_at(worker.plans.payload, sequence), sequence, lanes)
    return tuple(row[Meta.FAULTS] for row in ledger.apply(lanes, sequence, faults))


def timed(worker: ToyWorker, ledger: Ledger, rounds: range) -> list[float]:
    """Microseconds of each round, one at a time."""
    found = []
    for sequence in rounds:
        plan_all(worker, ledger, sequence)
        start = worker.event()
        worker.replay()
        end = worker.event()
        end.synchronize()
        found.append(start.elapsed_time(end) * 1000)
    return sorted(found)


def figures_of(sample: list[float]) -> str:
    """Median and p99 of a sorted sample."""
    return f"median {statistics.median(sample):.1f} us, p99 {sample[len(sample) * 99 // 100]:.1f} us"


def test_rows_of_another_process_reach_the_round_that_asked(
    make_worker: MakeWorker, figure: Callable[[str], None]
) -> None:
    worker, plain = make_worker(mailbox=True), make_worker()
    ledger = Ledger()
    with row_server(worker):
        for sequence in range(200):
            ids = [slot.pending for slot in ledger.slots]
            plan_all(worker, ledger, sequence)
            worker.replay()
            worker.settle()
            assert (worker.rows(sequence) == table_rows(ids)).all()
        assert worker.slots() == ledger.slots
        asking = timed(worker, ledger, range(200, 200 + ROUNDS))
        figure(f"(e) round with mailbox, answered by a polling process: {figures_of(asking)}")
        figure(f"(e) the same round without mailbox: {figures_of(timed(plain, Ledger(), range(ROUNDS)))}")
    assert worker.slots() == ledger.slots


def test_two_queued_rounds_share_the_mailbox_in_turn(make_worker: MakeWorker) -> None:
    worker, ledger = make_worker(mailbox=True), Ledger()
    with row_server(worker):
        for sequence in range(0, 600, 2):
            asked = []
            for queued in (sequence, sequence + 1):
                asked.append([slot.pending for slot in ledger.slots])
                plan_all(worker, ledger, queued)
            worker.replay_pair()
            for queued, ids in zip((sequence, sequence + 1), asked, strict=True):
                assert (worker.rows(queued) == table_rows(ids)).all()
    assert worker.slots() == ledger.slots
    assert all(row[Meta.FAULTS] == 0 for _, records in worker.journal(range(600)) for row in records)


def test_an_answer_to_another_round_fails_the_round(make_worker: MakeWorker) -> None:
    worker, ledger = make_worker(mailbox=True), Ledger()
    assert worker.mailbox is not None
    words = words_of(worker.mailbox)
    watchdog = Watchdog(words, alive=lambda: True, deadline_s=10)
    expected = plan_all(worker, ledger, 0, Fault.ROW_SERVER)
    worker.replay()
    while words[RING] != 1 and words[ANSWER] != POISON:
        pass
    words[TAG], words[ANSWER] = 0, ANSWERED
    worker.settle()
    watchdog.close()
    assert words[ANSWER] == 0
    assert tuple(row[Meta.FAULTS] for row in worker.journal([0])[0][1]) == expected
    assert worker.slots() == ledger.slots


@pytest.mark.timeout(120)
def test_a_dead_row_server_fails_both_queued_rounds_and_a_new_one_serves_on(
    make_worker: MakeWorker, figure: Callable[[str], None]
) -> None:
    worker, ledger = make_worker(mailbox=True), Ledger()
    dies_at = 20
    with row_server(worker, dies_at):
        for sequence in range(dies_at):
            plan_all(worker, ledger, sequence)
            worker.replay()
            worker.settle()
        expected = [plan_all(worker, ledger, dies_at + queued, Fault.ROW_SERVER) for queued in (0, 1)]
        start = time.perf_counter()
        worker.replay_pair()
        figure(
            f"(e) server killed while asked: both queued rounds over after {(time.perf_counter() - start) * 1e3:.1f} ms"
        )
        found = worker.journal((dies_at, dies_at + 1))
        assert [tuple(row[Meta.FAULTS] for row in records) for _, records in found] == expected
        assert [row[Meta.EMITTED] for _, records in found for row in records] == [0] * 2 * SLOTS
        assert worker.slots() == ledger.slots
    assert worker.mailbox is not None
    words_of(worker.mailbox)[:] = 0
    with row_server(worker):
        plan_all(worker, ledger, dies_at + 2)
        worker.replay()
        worker.settle()
    assert worker.slots() == ledger.slots
