"""The processes beside the worker: one that schedules and checks every record, one that only reads. No torch here."""

from __future__ import annotations

import os
import random
import sys
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from shared.cuda_driver import bind
from shared.cuda_regions import create_cuda
from shared.frames import FRAMES, completion_frame
from shared.regions import Region, RegionHandle, open_region
from tests.gpu.toy_plans import COMPLETION, PLAN, Ledger, Records, plan_at, traffic, write_plan
from tests.gpu.toy_rules import State


@dataclass(slots=True)
class Report:
    """What such a process saw. `latencies_s`: one for each read of a frame."""

    wrong: list[str] = field(default_factory=list)
    torn: int = 0
    latencies_s: list[float] = field(default_factory=list)
    exports: dict[int, State] = field(default_factory=dict)
    imported_torch: bool = False


def drive(wire: Connection[Any, Any], plans: RegionHandle, completions: RegionHandle, rounds: int, seed: int) -> None:
    """Schedules `rounds` rounds, two at a time: plans written from what was acknowledged two rounds before.

    Sends a sequence to have its round launched, receives it when the round is done; a `Report` ends it.
    """
    plan_region, frames = open_region(plans), open_region(completions)
    buffer = plan_region.refresh(0, FRAMES * PLAN.nbytes)
    dice, ledger, report = random.Random(seed), Ledger(), Report()
    known, expected = [list(ledger.slots)] * 2, dict[int, Records]()
    for sequence in range(rounds + FRAMES):
        if sequence >= FRAMES:
            _check(frames, int(wire.recv()), expected, report)
        if sequence < rounds:
            lanes = traffic(known[0], dice)
            known = [known[1], list(ledger.slots)]
            expected[sequence] = ledger.apply(lanes, sequence)
            write_plan(plan_at(buffer, sequence), sequence, lanes, dice)
            wire.send(sequence)
    report.exports, report.imported_torch = ledger.exports, "torch" in sys.modules
    wire.send(report)
    del buffer
    plan_region.close()
    frames.close()


def _check(frames: Region, sequence: int, expected: dict[int, Records], report: Report) -> None:
    start = time.perf_counter()
    view = frames.refresh((sequence & 1) * COMPLETION.nbytes, COMPLETION.nbytes)
    report.latencies_s.append(time.perf_counter() - start)
    frame = completion_frame(COMPLETION, view, 0)
    if not frame.head[0] == frame.tail[0] == sequence:
        report.torn += 1
        report.wrong.append(f"round {sequence}: ends {frame.head[0]} and {frame.tail[0]}")
    found = tuple(tuple(row) for row in frame.records.tolist())
    if found != expected.pop(sequence):
        report.wrong.append(f"round {sequence}: {found}")


def watch(wire: Connection[Any, Any], completions: RegionHandle) -> None:
    """Reads a frame `rate` times a second, at no particular moment: receives rates, answers each with a `Report`.

    A rate of zero reads nothing and only holds its context; a negative one ends the process.
    """
    frames = open_region(completions)
    wire.send(Report())
    while (rate := float(wire.recv())) >= 0:
        report, index = Report(), 0
        due = time.perf_counter()
        while not wire.poll(0 if rate else None):
            due += 1 / rate
            while time.perf_counter() < due:
                pass
            start = time.perf_counter()
            view = frames.refresh(index * COMPLETION.nbytes, COMPLETION.nbytes)
            report.latencies_s.append(time.perf_counter() - start)
            frame = completion_frame(COMPLETION, view, 0)
            report.torn += int(frame.head[0] != frame.tail[0])
            index = 1 - index
        wire.recv()
        wire.send(report)
    frames.close()


def own_region(wire: Connection[Any, Any], nbytes: int) -> None:
    """Owns a region of device memory full of 0xab until it is killed."""
    driver = bind()
    region = create_cuda(nbytes, 0xDEAD, driver)
    driver.write(region.pointer, b"\xab" * nbytes)
    wire.send((region.handle, os.getpid()))
    time.sleep(600)
