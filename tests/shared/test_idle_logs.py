"""A loop that turns without sleep makes lines itself, between looks for work; it never writes one."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from shared import log_queue, logs
from shared.log_config import LogConfig
from shared.logs import DebugLines
from tests.fixtures.harness import wait_until


@pytest.fixture(autouse=True)
def _unconfigured() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def told(numbers: range) -> Iterator[dict[str, Any]]:
    for number in numbers:
        yield {"number": number, "thread": threading.get_ident()}


def debug(folder: Path) -> list[dict[str, Any]]:
    logs.flush()
    return [json.loads(line) for line in (folder / "worker.debug.log").read_bytes().splitlines()]


def test_lines_come_once_and_in_order_whoever_makes_them(tmp_path: Path) -> None:
    """Now and then the loop sleeps, as the scheduler's does, and leaves them to the log's thread."""
    logs.configure("worker", LogConfig(log_dir=tmp_path))
    rounds = DebugLines("request.round", told)
    for turn in range(300):
        rounds.write(range(turn * 5, turn * 5 + 5), 5)
        if turn % 50 == 0:
            time.sleep(2 * log_queue.COLLECT_S)
        until = time.monotonic() + 0.001
        while time.monotonic() < until:
            logs.idle()
    found = debug(tmp_path)
    assert [line["number"] for line in found] == list(range(1500))
    assert {line["thread"] == threading.get_ident() for line in found} == {True, False}


def test_a_look_for_work_comes_between_the_lines_of_one_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_queue, "COLLECT_S", 60.0)
    logs.configure("worker", LogConfig(log_dir=tmp_path))
    made: list[int] = []

    def slow(numbers: range) -> Iterator[dict[str, Any]]:
        for number in numbers:
            time.sleep(log_queue.IDLE_NS / 1e9)
            made.append(number)
            yield {"number": number}

    DebugLines("request.round", slow).write(range(50), 50)
    for turn in range(1, 4):
        logs.idle()
        assert made == list(range(turn)), "a line of it at a time, for each takes as long as may be spent"
    assert [line["number"] for line in debug(tmp_path)] == list(range(50))


def test_others_get_their_turn_between_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One write each: lines that take as long as a slice may are not collected into longer ones."""
    writes: list[int] = []
    write = os.write

    def noted(descriptor: int, data: bytes) -> int:
        writes.append(data.count(b"\n"))
        return write(descriptor, data)

    def slow(numbers: range) -> Iterator[dict[str, Any]]:
        for number in numbers:
            time.sleep(log_queue.SLICE_NS / 1e9)
            yield {"number": number}

    logs.configure("worker", LogConfig(log_dir=tmp_path))
    monkeypatch.setattr("shared.log_file.os.write", noted)
    DebugLines("request.round", slow).write(range(20), 20)
    wait_until(lambda: sum(writes) == 20, 20, "all lines")
    assert writes == [1] * 20


def test_a_disk_that_hangs_holds_no_loop_up_and_bounds_what_it_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_queue, "MOST_UNWRITTEN", 100)
    logs.configure("worker", LogConfig(log_dir=tmp_path))
    hung, released, write = threading.Event(), threading.Event(), os.write

    def stuck(descriptor: int, data: bytes) -> int:
        if not released.is_set():
            hung.set()
            assert released.wait(30)
        return write(descriptor, data)

    monkeypatch.setattr("shared.log_file.os.write", stuck)
    rounds = DebugLines("request.round", told)
    rounds.write(range(1))
    assert hung.wait(20)
    for number in range(1, 301):
        rounds.write(range(number, number + 1))
        logs.idle()
    queue = logs._current.queue if logs._current is not None else None
    assert queue is not None
    assert len(queue._lines) == 100
    released.set()
    wait_until(lambda: len(debug(tmp_path)) == 301, 20, "every line")
    assert [line["number"] for line in debug(tmp_path)] == list(range(301))
