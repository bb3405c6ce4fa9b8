"""Completion frames in device memory, read by another process through an IPC handle while rounds run."""

from __future__ import annotations

import itertools
import os
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import pytest

from shared.errors import RegionError
from shared.frames import Meta
from shared.regions import RegionHandle, open_region
from tests.gpu.conftest import MakeWorker
from tests.gpu.toy_plans import SLOTS, Ledger, lane_of, plan_at, write_plan
from tests.gpu.toy_scheduler import Report, drive, own_region, watch

if TYPE_CHECKING:
    from tests.gpu.toy_worker import ToyWorker

pytestmark = pytest.mark.gpu
DRIVEN = 2000
TIMED = 1500


@contextmanager
def peer(target: Callable[..., None], *arguments: Any) -> Iterator[Connection[Any, Any]]:
    """A process of its own with a wire to it; killed at the end."""
    context = get_context("spawn")
    wire, theirs = context.Pipe()
    process = context.Process(target=target, args=(theirs, *arguments), daemon=True)
    process.start()
    theirs.close()
    try:
        yield wire
    finally:
        process.kill()
        process.join(10)
        wire.close()


def frames_of(worker: ToyWorker, kind: str) -> RegionHandle:
    """Where the other process reads."""
    return worker.mirror.handle if kind == "host" and worker.mirror is not None else worker.completions.handle


def latency(sample: list[float]) -> str:
    """Median and p99 of seconds."""
    ordered = sorted(sample)
    return f"median {statistics.median(ordered) * 1e6:.1f} us, p99 {ordered[len(ordered) * 99 // 100] * 1e6:.1f} us"


@pytest.mark.parametrize("kind", ["ipc", "host"])
def test_a_scheduler_process_reads_every_record_right(
    make_worker: MakeWorker, figure: Callable[[str], None], kind: str
) -> None:
    worker = make_worker(mirrored=kind == "host")
    running: list[tuple[int, Any]] = []
    begin = time.monotonic()
    with peer(drive, worker.plans.handle, frames_of(worker, kind), DRIVEN, 11) as wire:
        while time.monotonic() - begin < 120:
            if wire.poll(0):
                message = wire.recv()
                if isinstance(message, Report):
                    break
                worker.replay()
                running.append((message, worker.event()))
            while running and running[0][1].query():
                wire.send(running.pop(0)[0])
    assert isinstance(message, Report)
    figure(f"(f) {kind}: {DRIVEN} rounds, {len(message.wrong)} wrong; one frame read in {latency(message.latencies_s)}")
    assert not message.wrong[:3]
    assert not message.imported_torch
    assert {row: worker.exports()[row] for row in message.exports} == message.exports


def run_rounds(worker: ToyWorker, ledger: Ledger, first: int) -> list[float]:
    """Seconds between the ends of successive rounds, two queued at any time."""
    frames, events = [plan_at(worker.plans.payload, index) for index in (0, 1)], list[Any]()
    for frame in frames:
        write_plan(frame, 0, [lane_of(ledger.slots, index) for index in range(SLOTS)])
    for sequence in range(first, first + TIMED):
        if len(events) >= 2:
            events[-2].synchronize()
        frames[sequence & 1].head[0] = frames[sequence & 1].tail[0] = sequence
        worker.replay()
        events.append(worker.event())
    worker.settle()
    return [one.elapsed_time(two) / 1e3 for one, two in itertools.pairwise(events[100:])]


@pytest.mark.parametrize("kind", ["ipc", "host"])
@pytest.mark.parametrize("megabytes", [160, 1200])
def test_round_time_beside_a_reader(
    make_worker: MakeWorker, figure: Callable[[str], None], kind: str, megabytes: int
) -> None:
    import torch

    source = torch.ones(megabytes << 18, dtype=torch.float32, device="cuda")
    target = torch.empty_like(source)
    worker = make_worker(mirrored=kind == "host", work=lambda: target.copy_(source))
    alone = run_rounds(worker, Ledger(), 0)
    what = f"(f) {kind}, a round that copies {megabytes} MiB"
    figure(f"{what}: no second process: {latency(alone)}, mean {statistics.mean(alone) * 1e6:.1f} us")
    with peer(watch, frames_of(worker, kind)) as wire:
        wire.recv()
        for turn, rate in enumerate((0, 500, 2000, 0)):
            wire.send(rate)
            beside = run_rounds(worker, Ledger(), (turn + 1) * TIMED)
            wire.send(None)
            report = wire.recv()
            reads = (
                f"{len(report.latencies_s)} reads in {latency(report.latencies_s)}, {report.torn} mid-round"
                if rate
                else "no reads"
            )
            figure(f"{what}: reader {rate}/s: {latency(beside)}, mean {statistics.mean(beside) * 1e6:.1f} us; {reads}")
        wire.send(-1)
    journal = worker.journal(range(5 * TIMED))
    assert all(row[Meta.FAULTS] == 0 for _, records in journal for row in records)


def test_a_process_cannot_open_its_own_region_and_is_told_why(worker: ToyWorker) -> None:
    with pytest.raises(RegionError, match="share the PID and IPC namespaces"):
        open_region(worker.completions.handle)


@pytest.mark.timeout(60)
def test_a_dead_owner_neither_hangs_a_reader_nor_hands_its_handle_on(figure: Callable[[str], None]) -> None:
    with peer(own_region, 4096) as wire:
        handle, process_id = wire.recv()
        region = open_region(handle)
        assert bytes(region.refresh(0, 8)) == b"\xab" * 8
        os.kill(process_id, signal.SIGKILL)
        time.sleep(1)
        try:
            figure(f"(f) region of a killed owner, opened before: still reads {bytes(region.refresh(0, 8)).hex()}")
        except RegionError as error:
            figure(f"(f) region of a killed owner, opened before: {error}")
        region.close()
        with pytest.raises(RegionError, match="CUDA error") as caught:
            open_region(handle)
        figure(f"(f) region of a killed owner, opened after: {caught.value}")
