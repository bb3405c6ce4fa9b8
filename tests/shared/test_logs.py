"""Logs go to their file and to stderr, whatever a value holds, and never stop who writes them."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import re
import signal
import stat
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from shared import log_queue, logs
from shared.errors import ContractBreach, InvalidRequest, ProcessError
from shared.log_config import LogConfig
from shared.log_file import LogFile
from shared.log_lines import encode, readable
from shared.log_traces import OPERATIONAL, WITHHELD, message_of, trace
from shared.logs import DebugLines
from tests.fixtures.harness import wait_until

SECRET = "what a user wrote"
HOSTILE = "a\nb\r\x1b[31mred\x9b2J\u202e\x7f\u2028 end\ud800"


@pytest.fixture(autouse=True)
def _unconfigured() -> Iterator[None]:
    yield
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


def lines(path: Path) -> list[dict[str, Any]]:
    logs.flush()
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def test_an_event_goes_to_the_file_and_to_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("scheduler", LogConfig(log_dir=tmp_path / "made" / "here"))
    log = structlog.get_logger()
    log.debug("request.round", request="r", width=8)
    with structlog.contextvars.bound_contextvars(request="bound"):
        log.warning("request.preempted")
    path = tmp_path / "made" / "here" / "scheduler.log"
    found = lines(path.with_name("scheduler.debug.log")) + lines(path)
    assert [(line["event"], line["level"], line["request"]) for line in found] == [
        ("request.round", "debug", "r"),
        ("request.preempted", "warning", "bound"),
    ]
    for line in found:
        assert (line["service"], line["pid"]) == ("scheduler", os.getpid())
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", line["timestamp"])
    assert [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()] == ["request.preempted"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_levels_are_kept_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("worker", LogConfig(log_dir=tmp_path, log_level="error", log_file_level="info"))
    for level in ("debug", "info", "error"):
        getattr(structlog.get_logger(), level)(f"as.{level}")
    assert [line["event"] for line in lines(tmp_path / "worker.log")] == ["as.info", "as.error"]
    assert "as.error" in (err := capsys.readouterr().err)
    assert "as.info" not in err


@pytest.mark.parametrize(
    "values", [{"log_level": "loud"}, {"log_file_level": ""}, {"log_max_bytes": 10}, {"log_files": 0}]
)
def test_what_cannot_be_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ProcessError):
        LogConfig(**values)


@pytest.mark.parametrize("key", ["request", "event", "reason"])
def test_no_value_breaks_its_line_or_steers_a_terminal(key: str) -> None:
    event = {"timestamp": "2026-01-01T00:00:00.000000Z", "level": "info", "event": "e", "service": "s", key: HOSTILE}
    for text in (encode(event).decode(), readable(event), readable(event, colours=False, date=True)):
        assert text.isprintable()
    assert json.loads(encode(event))[key] == HOSTILE


def test_values_that_json_lacks_are_written_anyhow() -> None:
    found = json.loads(encode({"big": 1 << 70, "path": Path("/x"), "odd": {1}}))
    assert found == {"big": 1 << 70, "path": "/x", "odd": "{1}"}


def test_floats_have_as_many_digits_as_are_measured() -> None:
    assert encode({"seconds": 0.039999999999999994, "count": 12345678}) == b'{"seconds":0.04,"count":12345678}'
    assert encode({"seconds": float("nan"), "rate": 4.22e12}) == b'{"seconds":null,"rate":4220000000000.0}'


def test_a_traceback_stays_below_its_line() -> None:
    event = {"timestamp": "t", "level": "error", "event": "bad", "service": "s", "exception": "one\n\x1b[2Jtwo"}
    first, *below = readable(event).splitlines()
    assert "bad" in first
    assert [line.strip() for line in below] == ["| one", "| \\u001b[2Jtwo"]


def test_an_exception_of_a_library_may_hold_content_and_ours_does_not() -> None:
    try:
        try:
            raise ValueError(SECRET)
        except ValueError as error:
            raise ExceptionGroup("several", [ContractBreach("tokens are missing"), error]) from error
    except ExceptionGroup as error:
        told, whole = trace(error, withhold=True), trace(error, withhold=False)
    assert SECRET not in told
    assert "tokens are missing" in told
    assert f"ValueError: {WITHHELD}" in told
    assert "test_logs.py" in told
    assert SECRET in whole
    assert message_of(RuntimeError("CUDA error"), withhold=True, told=OPERATIONAL) == "CUDA error"
    assert message_of(KeyError(SECRET), withhold=True, told=OPERATIONAL) == WITHHELD
    assert message_of(InvalidRequest(f"unknown field '{SECRET}'"), withhold=True) == WITHHELD
    assert message_of(FileNotFoundError(2, "No such file", SECRET), withhold=True) == "No such file"


def test_a_logged_exception_is_withheld_if_told_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for withhold in (True, False):
        logs.configure("frontend", LogConfig(log_dir=tmp_path), withhold=withhold)
        try:
            raise KeyError(SECRET)
        except KeyError:
            structlog.get_logger().exception("request.fault")
    first, second = (line["exception"] for line in lines(tmp_path / "frontend.log"))
    assert SECRET not in first
    assert SECRET in second
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_a_full_file_is_rotated_and_the_oldest_goes(tmp_path: Path) -> None:
    file = LogFile(tmp_path / "w.log", 1000, 3, pytest.fail)
    for number in range(100):
        file.write(b"%099d" % number)
    file.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["w.log", "w.log.1", "w.log.2"]
    kept = b"".join((tmp_path / name).read_bytes() for name in ("w.log.2", "w.log.1", "w.log"))
    assert [int(line) for line in kept.splitlines()] == list(range(70, 100))
    assert all(path.stat().st_size <= 1000 for path in tmp_path.iterdir())


def test_a_single_file_begins_anew(tmp_path: Path) -> None:
    file = LogFile(tmp_path / "w.log", 1000, 1, pytest.fail)
    for number in range(15):
        file.write(b"%099d" % number)
    assert [path.name for path in tmp_path.iterdir()] == ["w.log"]
    assert len((tmp_path / "w.log").read_bytes().splitlines()) == 5


def test_a_restarted_process_appends_after_a_torn_line(tmp_path: Path) -> None:
    (tmp_path / "w.log").write_bytes(b'{"whole":1}\n{"to')
    LogFile(tmp_path / "w.log", 1000, 2, pytest.fail).write(b'{"whole":2}')
    assert (tmp_path / "w.log").read_bytes() == b'{"whole":1}\n{"to\n{"whole":2}\n'


def test_a_line_that_another_process_is_writing_is_not_a_torn_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel shows a write that crosses a page in halves."""
    path = tmp_path / "w.log"
    path.write_bytes(b'{"who')

    def the_rest_comes(seconds: float) -> None:
        with path.open("ab") as file:
            file.write(b'le":1}\n')

    monkeypatch.setattr("shared.log_file.time.sleep", the_rest_comes)
    LogFile(path, 1000, 2, pytest.fail).write(b'{"whole":2}')
    assert path.read_bytes() == b'{"whole":1}\n{"whole":2}\n'


@pytest.mark.parametrize("how", ["moved", "removed", "truncated"])
def test_the_file_at_the_path_is_the_one_that_is_written(tmp_path: Path, how: str) -> None:
    path = tmp_path / "w.log"
    file = LogFile(path, 1000, 2, pytest.fail)
    file.write(b"before")
    if how == "moved":
        path.rename(tmp_path / "elsewhere")
    elif how == "removed":
        path.unlink()
    else:
        os.truncate(path, 0)
    file.write(b"after")
    assert path.read_bytes() == b"after\n"


def test_an_unwritable_file_costs_one_complaint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    complaints: list[str] = []
    path = tmp_path / "w.log"
    path.mkdir()
    file = LogFile(path, 1000, 2, complaints.append)
    monkeypatch.setattr("shared.log_file.RETRY_S", 0.0)
    for _ in range(3):
        file.write(b"x")
    assert len(complaints) == 1
    path.rmdir()
    file.write(b"again")
    assert path.read_bytes() == b"again\n"


def test_a_full_disk_costs_lines_and_nothing_else(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    logs.configure("worker", LogConfig(log_dir=tmp_path))
    log = structlog.get_logger()
    log.info("before")
    logs.flush()

    def full(descriptor: int, data: bytes) -> int:
        if data.endswith(b"}\n"):
            return real(descriptor, data[:10])
        raise OSError(28, "No space left on device")

    real = os.write
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("shared.log_file.os.write", full)
        patched.setattr("shared.log_file.RETRY_S", 0.0)
        log.info("lost")
        logs.flush()
        log.info("lost too")
        logs.flush()
    log.info("after")
    logs.flush()
    events = [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()]
    assert events.count("log.unwritable") == 1
    assert {"lost", "lost too", "after"} <= set(events)


def test_a_folder_that_cannot_be_made_leaves_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    logs.configure("worker", LogConfig(log_dir=tmp_path / "file" / "logs"))
    structlog.get_logger().info("goes.on")
    logs.flush()
    assert [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()] == [
        "log.unwritable",
        "goes.on",
    ]


def _write_many(path: Path, name: int) -> None:
    file = LogFile(path, 20_000, 50, lambda reason: os._exit(1))
    for number in range(1000):
        file.write(b"%d %090d" % (name, number))


def test_a_file_that_another_process_has_just_moved_away_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    complaints: list[str] = []
    file, path = LogFile(tmp_path / "w.log", 100, 5, complaints.append), tmp_path / "w.log"
    file.write(b"a" * 60)
    lock = fcntl.flock

    def moved_before_the_lock(descriptor: int, how: int) -> None:
        os.replace(path, tmp_path / "w.log.1")
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", moved_before_the_lock)
    file.write(b"b" * 60)
    file.close()
    assert not complaints
    assert path.read_bytes() == b"b" * 60 + b"\n"
    assert (tmp_path / "w.log.1").read_bytes() == b"a" * 60 + b"\n"


def test_two_processes_share_a_file_across_rotations(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write_many, args=(tmp_path / "w.log", name)) for name in (1, 2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert [writer.exitcode for writer in writers] == [0, 0]
    found = Counter(line for path in tmp_path.iterdir() for line in path.read_bytes().splitlines())
    assert found == Counter(b"%d %090d" % (name, number) for name in (1, 2) for number in range(1000))
    assert len(list(tmp_path.iterdir())) > 5


def _described(numbers: range) -> Iterator[dict[str, Any]]:
    for number in numbers:
        yield {"request": HOSTILE, "number": number}


def test_many_debug_lines_come_from_one_call_and_push_out_no_others(tmp_path: Path) -> None:
    logs.configure("scheduler", LogConfig(log_dir=tmp_path, log_max_bytes=8192, log_files=2))
    structlog.get_logger().info("keep.me")
    for _ in range(20):
        DebugLines("request.round", _described).write(range(64), 64)
        logs.flush()
    assert [line["event"] for line in lines(tmp_path / "scheduler.log")] == ["keep.me"]
    assert {path.name for path in tmp_path.iterdir()} == {
        "scheduler.log",
        "scheduler.debug.log",
        "scheduler.debug.log.1",
    }
    found = lines(tmp_path / "scheduler.debug.log.1") + lines(tmp_path / "scheduler.debug.log")
    assert {line["event"] for line in found} == {"request.round"}
    assert {line["request"] for line in found} == {HOSTILE}
    numbers = [line["number"] for line in found]
    assert numbers == [number % 64 for number in range(numbers[0], numbers[0] + len(numbers))]


@pytest.mark.parametrize(("level", "wanted"), [("debug", True), ("info", False)])
def test_debug_lines_cost_nothing_unless_somebody_wants_them(tmp_path: Path, level: str, wanted: bool) -> None:
    logs.configure("scheduler", LogConfig(log_dir=tmp_path, log_file_level=level))
    asked: list[int] = []

    def described(number: int) -> list[dict[str, int]]:
        asked.append(number)
        return [{"number": number}]

    DebugLines("request.round", described).write(1)
    logs.flush()
    assert bool(asked) is logs.wants_debug() is wanted


def test_a_value_is_logged_as_it_was(tmp_path: Path) -> None:
    logs.configure("worker", LogConfig(log_dir=tmp_path))
    value = [1, 2]
    structlog.get_logger().info("said", value=value, odd={"a": 1 << 70}, where=Path("/x"))
    value.append(3)
    [line] = lines(tmp_path / "worker.log")
    assert (line["value"], line["where"]) == ([1, 2], "/x")
    assert str(1 << 70) in line["odd"]


def test_what_a_full_queue_loses_is_told_and_debug_goes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(log_queue, "MOST", 20)
    monkeypatch.setattr(log_queue, "MOST_DEBUG", 10)
    logs.configure("worker", LogConfig(log_dir=tmp_path))
    hung = threading.Event()

    def hang(numbers: range) -> Iterator[dict[str, Any]]:
        hung.set()
        assert released.wait(30)
        return _described(numbers)

    released = threading.Event()
    DebugLines("first", hang).write(range(1))
    assert hung.wait(30)
    for _ in range(13):
        DebugLines("request.round", _described).write(range(4), 4)
    for number in range(12):
        structlog.get_logger().info("kept", number=number)
    released.set()
    found = lines(tmp_path / "worker.log")
    wait_until(lambda: "log.dropped" in (tmp_path / "worker.log").read_text(), 10, "it is told")
    *found, dropped = lines(tmp_path / "worker.log")
    assert [line["number"] for line in found] == list(range(10))
    assert (dropped["event"], dropped["level"], dropped["lines"]) == ("log.dropped", "warning", 3 * 4 + 2)
    assert len(lines(tmp_path / "worker.debug.log")) == 1 + 10 * 4
    assert "log.dropped" in capsys.readouterr().err


def test_an_event_that_cannot_be_made_ends_no_others(tmp_path: Path) -> None:
    logs.configure("worker", LogConfig(log_dir=tmp_path))

    def fail(number: int) -> list[dict[str, Any]]:
        raise ValueError(number)

    DebugLines("bad", fail).write(1)
    structlog.get_logger().info("good")
    wait_until(lambda: len(lines(tmp_path / "worker.log")) == 2, 10, "both lines")
    assert [line["event"] for line in lines(tmp_path / "worker.log")] == ["good", "log.dropped"]


ENDING = """
import os, signal, structlog, sys
from pathlib import Path
from shared import logs
logs.configure("worker", logs.LogConfig(log_dir=Path(sys.argv[1])))
log = structlog.get_logger()
for number in range(100):
    log.info("line", number=number)
{}
"""


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("", 0),
        ("raise SystemExit(3)", 3),
        ("1 / 0", 1),
        ("log.error('bad'); os._exit(4)", 4),
        ("log.error('bad'); os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("import time; time.sleep(1); os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
    ],
)
def test_however_a_process_ends_its_lines_are_written(tmp_path: Path, ending: str, code: int) -> None:
    done = subprocess.run(
        (sys.executable, "-c", ENDING.format(ending), str(tmp_path)), capture_output=True, timeout=60, check=False
    )
    assert done.returncode == code, done.stderr
    found = [line["number"] for line in lines(tmp_path / "worker.log") if line["event"] == "line"]
    assert found == list(range(100))


def test_a_disk_that_hangs_makes_nobody_wait_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "FLUSH_S", 0.2)
    logs.configure("worker", LogConfig(log_dir=tmp_path))
    hung = threading.Event()
    with monkeypatch.context() as patched:
        patched.setattr("shared.log_file.os.write", lambda descriptor, data: hung.wait(60) and len(data))
        structlog.get_logger().error("waits")
        started = time.monotonic()
        for _ in range(200):
            structlog.get_logger().error("goes.on")
        assert time.monotonic() - started < 20, "not 200 times 0.2 s"
        hung.set()
    wait_until(lambda: "goes.on" in (tmp_path / "worker.log").read_text(), 10, "it is written once it can be")
