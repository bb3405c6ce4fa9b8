"""A region that another process cannot open: with a card its handle is bad, without one there is no driver."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
import structlog

from services.worker.devices import opened
from services.worker.devices.opened import opened_if_possible, opened_once
from shared.errors import RegionError
from shared.regions import RegionHandle

BAD = RegionHandle("cuda", "00" * 64, 4096, 1)


def test_what_the_other_process_said_is_told() -> None:
    with pytest.raises(RegionError, match=r"could not open a region of this one: [\w.]*RegionError: \w+"):
        opened_once(BAD)


def test_one_that_dies_without_a_word_or_cannot_be_started_is_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    python = sys.executable
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    with pytest.raises(RegionError, match=r"could not be started .*/nowhere/python"):
        opened_once(BAD)
    start = subprocess.Popen
    die = [python, "-c", "import os; os.kill(os.getpid(), 9)"]
    monkeypatch.setattr("subprocess.Popen", lambda command, **options: start(die, **options))
    with pytest.raises(RegionError, match=f"it ended with {-signal.SIGKILL}"):
        opened_once(BAD)


def test_one_that_hangs_costs_its_patience_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[str]] = []
    start, hang = subprocess.Popen, [sys.executable, "-c", "import time; time.sleep(60)"]

    def begin(command: list[str], **options: object) -> subprocess.Popen[str]:
        started.append(start(hang, **options))  # type: ignore[call-overload]
        return started[-1]

    monkeypatch.setattr("subprocess.Popen", begin)
    monkeypatch.setattr(opened, "_PATIENCE_S", 0.2)
    with pytest.raises(RegionError, match=r"did not open a region of this one in 0\.2 s"):
        opened_once(BAD)
    assert started[0].wait(20) == -signal.SIGKILL


def test_a_worker_goes_on_without_it_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(nbytes: int, instance: int) -> None:
        raise RegionError("no memory is left")

    monkeypatch.setattr(opened, "create_cuda", none)
    with structlog.testing.capture_logs() as lines:
        assert opened_if_possible() is None
    assert lines == [{"event": "worker.not_opened", "reason": "no memory is left", "log_level": "warning"}]


def test_the_other_process_ends_with_who_started_it() -> None:
    """Another parent than it was told: it has been orphaned already."""
    command = [sys.executable, "-m", "services.worker.devices.opened", "1", "{}"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 1
