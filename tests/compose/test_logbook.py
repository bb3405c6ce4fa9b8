"""What `flare logs` picks from the files of a server, how it merges them, and how it goes on reading them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from compose import log_place
from compose.cli import main
from compose.log_reader import ServiceLog, log_files
from compose.logbook import Choice, merged, parse, since
from compose.run_directory import LOGS, LockedRunDirectory
from shared.log_file import LogFile
from shared.log_lines import encode


def line(second: float, event: str = "e", service: str = "scheduler", level: str = "info", **rest: Any) -> bytes:
    at = f"2026-01-01T00:00:{second:09.6f}Z"
    return encode({"timestamp": at, "level": level, "service": service, "pid": 1, "event": event, **rest})


def events(choice: Choice, *lines: bytes) -> list[str]:
    return [entry.event["event"] for entry in choice.entries(lines)]


def test_a_request_is_followed_through_its_choices_and_rounds() -> None:
    lines = [
        line(1, "whole", request="id"),
        line(2, "choice", request="id/0"),
        line(3, "round", requests=["other", "id/12"]),
        line(4, "longer", request="id0"),
        line(5, "mentioned", reason="id"),
        line(6, "others", requests=["idea", "x"]),
        line(7, "odd", request=["id"], requests="id"),
    ]
    assert events(Choice(request="id"), *lines) == ["whole", "choice", "round"]
    assert events(Choice(request="id/0"), *lines) == ["choice"]


def test_the_id_of_an_answer_finds_its_request_and_a_request_of_that_very_name() -> None:
    lines = [line(1, "a", request="id"), line(2, "b", request="chatcmpl-id/0"), line(3, "c", request="cmpl-id")]
    assert events(Choice(request="chatcmpl-id"), *lines) == ["a", "b"]
    assert events(Choice(request="cmpl-id"), *lines) == ["a", "c"]
    assert events(Choice(request="chatcmpl-"), *lines) == []


def test_levels_and_spans() -> None:
    lines = [line(1, "a", level="debug"), line(2, "b", level="error"), line(3, "c", level="warning")]
    assert events(Choice(level="warning"), *lines) == ["b", "c"]
    assert events(Choice(start="2026-01-01T00:00:02.000000Z"), *lines) == ["b", "c"]


@pytest.mark.parametrize("broken", [b"", b'{"timestamp": "2026', b"[]", b'{"event": "x"}', b"\xff\xfe", b"hello"])
def test_what_is_no_entry_is_left_out(broken: bytes) -> None:
    assert parse(broken) is None


@pytest.mark.parametrize(
    ("span", "found"),
    [("90s", "11:58:30"), ("10m", "11:50:00"), ("2h", "10:00:00"), ("1.5", "11:59:58.5"), ("0d", "12:00:00")],
)
def test_spans_of_time(span: str, found: str) -> None:
    now = datetime(2026, 1, 1, 12, tzinfo=UTC)
    assert since(span, now).startswith(f"2026-01-01T{found}")
    assert len(since(span, now)) == len("2026-01-01T00:00:00.000000Z")


def test_no_spans_of_time() -> None:
    for span in ("", "-1m", "soon", "1 w"):
        with pytest.raises(ValueError, match="span"):
            since(span, datetime.now(UTC))
    assert since("9999999d", datetime.now(UTC)) == ""


def test_logs_are_merged_by_time() -> None:
    logs = [[line(1, "a"), line(4, "d")], [line(2, "b"), line(3, "c"), line(5, "e")], []]
    found = merged(Choice().entries(log) for log in logs)
    assert [entry.event["event"] for entry in found] == ["a", "b", "c", "d", "e"]


@contextmanager
def opened(path: Path) -> Iterator[ServiceLog]:
    log = ServiceLog(path)
    yield log
    log.close()


def numbers(lines: Any) -> list[int]:
    return [int(line) for line in lines]


def test_history_and_news_lose_and_repeat_nothing_across_rotations(tmp_path: Path) -> None:
    path = tmp_path / "w.log"
    file = LogFile(path, 300, 20, pytest.fail)

    def write(start: int, end: int) -> None:
        for number in range(start, end):
            file.write(b"%019d" % number)

    write(0, 50)
    with opened(path) as log:
        write(50, 53)
        assert numbers(log.history()) == list(range(50))
        assert numbers(log.news()) == list(range(50, 53))
        write(53, 110)  # several rotations between two looks
        assert numbers(log.news()) == list(range(53, 110))
        assert list(log.news()) == []
        write(110, 112)
        assert numbers(log.news()) == [110, 111]


def test_more_rotations_than_files_lose_only_what_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "w.log"
    file = LogFile(path, 300, 3, pytest.fail)
    file.write(b"%019d" % 0)
    with opened(path) as log:
        assert numbers(log.history()) == [0]
        for number in range(1, 100):
            file.write(b"%019d" % number)
        found = numbers(log.news())
    kept = found[14:]
    assert found[:14] == list(range(1, 15)), "what was in the file that it held open"
    assert kept == list(range(kept[0], 100))
    assert len(kept) > 30


def test_a_line_counts_once_its_end_is_there(tmp_path: Path) -> None:
    path = tmp_path / "w.log"
    path.write_bytes(b"1\n2")
    with opened(path) as log:
        assert numbers(log.history()) == [1]
        with path.open("ab") as file:
            file.write(b"3\n4")
        assert numbers(log.news()) == [23]
        assert list(log.news()) == []


def test_truncated_and_removed_files_are_read_from_their_start(tmp_path: Path) -> None:
    path = tmp_path / "w.log"
    path.write_bytes(b"1\n2\n")
    with opened(path) as log:
        assert numbers(log.history()) == [1, 2]
        path.write_bytes(b"3\n")
        assert numbers(log.news()) == [3]
        path.unlink()
        assert list(log.news()) == []
        path.write_bytes(b"4\n")
        assert numbers(log.news()) == [4]


@pytest.fixture(autouse=True)
def runtime(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where run directories are: none but a test's own."""
    folder = tmp_path_factory.mktemp("runtime")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    return folder


def run(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(main, ["logs", *arguments], env={"FLARE_LOG_DIR": "", **environment})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three services' logs, one of them rotated."""
    (tmp_path / "frontend.log").write_bytes(line(1, "request.received", "frontend", request="q") + b"\n")
    (tmp_path / "scheduler.log.1").write_bytes(line(2, "request.received", request="q") + b"\n")
    (tmp_path / "scheduler.log").write_bytes(line(5, "request.finished", request="q") + b"\n")
    rounds = line(4, "request.round", level="debug", request="q", width=8) + b"\n"
    (tmp_path / "scheduler.debug.log").write_bytes(rounds)
    torn = line(3, "round.replayed", "worker", "debug", requests=["q"]) + b'\n{"timestamp":"2026-01-01T00:00:09'
    (tmp_path / "worker.debug.log").write_bytes(torn)
    return tmp_path


def test_one_request_through_three_services(folder: Path) -> None:
    result = run("--request", "q", "--log-dir", str(folder))
    assert result.exit_code == 0
    shown = [shown.split()[1:4] for shown in result.stdout.splitlines()]
    assert shown == [
        ["frontend", "info", "request.received"],
        ["scheduler", "info", "request.received"],
        ["worker", "debug", "round.replayed"],
        ["scheduler", "debug", "request.round"],
        ["scheduler", "info", "request.finished"],
    ]
    assert "\x1b" not in result.stdout
    assert "width=8" in result.stdout


def test_options_choose(folder: Path) -> None:
    where = {"FLARE_LOG_DIR": str(folder)}
    assert len(run(**where).stdout.splitlines()) == 3  # rounds are not shown unless asked for
    assert len(run("--level", "debug", **where).stdout.splitlines()) == 5
    assert len(run("--level", "debug", "-n", "1", **where).stdout.splitlines()) == 1
    assert len(run("scheduler", **where).stdout.splitlines()) == 2
    assert len(run("scheduler", "--level", "debug", **where).stdout.splitlines()) == 3
    assert [json.loads(text)["service"] for text in run("--json", **where).stdout.splitlines()] == [
        "frontend",
        "scheduler",
        "scheduler",
    ]
    assert run("--since", "1s", **where).stdout == ""
    assert run("--since", "tomorrow", **where).exit_code == 2


def test_a_request_without_a_line_is_told(folder: Path) -> None:
    where = {"FLARE_LOG_DIR": str(folder)}
    assert len(run("--request", "chatcmpl-q", **where).stdout.splitlines()) == 5
    nothing = run("--request", "r", **where)
    assert (nothing.exit_code, nothing.stdout) == (1, "")
    assert nothing.stderr == f"Error: no line about r in {folder}\n"


def serving(port: int, log_dir: Path, event: str, **values: Any) -> LockedRunDirectory:
    """What a living server leaves, with one line in its log."""
    held = LockedRunDirectory(None)
    (held.path / "frontend.json").write_text(json.dumps({"host": "127.0.0.1", "port": port, "pid": 1}))
    (held.path / LOGS).symlink_to(log_dir)
    log_dir.mkdir(parents=True, exist_ok=True)
    (log_dir / "frontend.log").write_bytes(line(port, event, "frontend", **values) + b"\n")
    return held


def test_of_several_servers_one_is_chosen_and_a_request_is_found_in_all(tmp_path: Path) -> None:
    state = {"XDG_STATE_HOME": str(tmp_path)}
    first = serving(1, tmp_path / "a", "one", request="x")
    assert "one" in run(**state).stdout
    second = serving(2, tmp_path / "b", "two", request="y")
    os.utime(tmp_path / "b" / "frontend.log", (1, 1))  # traffic decides nothing
    several = run(**state)
    assert several.exit_code == 1
    assert several.stderr.startswith("Error: several servers run; choose one:\n")
    assert f"--port 1  or  --run-dir {first.path}" in several.stderr
    assert f"--port 2  or  --run-dir {second.path}" in several.stderr
    assert "two" in run("--port", "2", **state).stdout
    assert "one" in run("--run-dir", str(first.path), FLARE_LOG_DIR=str(tmp_path / "b"), **state).stdout
    assert "two" in run("--request", "y", **state).stdout
    assert run("--request", "y", "--port", "1", **state).exit_code == 1
    both = run("--port", "1", "--log-dir", str(tmp_path), **state)
    assert "give one of them" in both.stderr
    for held in (first, second):
        held.release()
    assert "no server of port 2 has left logs" in run("--port", "2", **state).stderr


def test_no_log_is_told(tmp_path: Path, folder: Path) -> None:
    nothing = run(XDG_STATE_HOME=str(tmp_path / "none"))
    assert nothing.exit_code == 1
    assert "no server has left logs" in nothing.stderr
    assert "no log of router" in run("router", "--log-dir", str(folder)).stderr
    assert run("--log-dir", str(tmp_path / "none")).exit_code == 1


def test_each_living_server_has_a_place_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    first, lock = log_place.claim(8000)
    second, other = log_place.claim(8000)
    third, free = log_place.claim(0)
    assert len({first, second, third}) == 3
    for place in (first, second, third):
        (place / "worker.log").write_bytes(line(1, str(place.name)) + b"\n")
        os.utime(place / "worker.log", (place is third, 1000 + (place is third)))
    assert all(place.live for place in log_place.places())
    os.close(lock)
    os.close(other)
    latest = log_place.places()[0]
    assert (latest.path, latest.live) == (third, True)
    assert "any" in run().stdout
    os.close(free)
    again, lock = log_place.claim(8000)
    assert again == first, "a restarted server goes on in its files"
    assert log_place.places()[0].path == first
    os.close(lock)


def test_without_a_place_there_is_a_warning_and_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert log_place.choose(None, 8000) is None
    assert "no log files" in capsys.readouterr().err
    assert log_place.choose(tmp_path / "mine", 8000) == tmp_path / "mine"


def test_only_current_files_name_services(folder: Path) -> None:
    (folder / "worker.log").touch()
    found = {name: [path.name for path in paths] for name, paths in log_files(folder).items()}
    assert found == {
        "frontend": ["frontend.log"],
        "scheduler": ["scheduler.log", "scheduler.debug.log"],
        "worker": ["worker.log", "worker.debug.log"],
    }
    assert log_files(folder, debug=False)["worker"] == [folder / "worker.log"]
