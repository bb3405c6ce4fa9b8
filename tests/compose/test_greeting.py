"""The greeting of `flare run` holds commands that work as they stand, and never a key."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from compose.greeting import choice, command, greeting
from compose.readiness import Address
from compose.run_directory import LockedRunDirectory

ADDRESS = Address("0.0.0.0", 9551, 1)


def executable(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def flare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed `flare` that is not on the PATH; this process is its."""
    path = executable(tmp_path / "a b" / "bin" / "flare")
    monkeypatch.setattr(sys, "argv", [str(path)])
    monkeypatch.setenv("PATH", str(tmp_path))
    return path


def test_the_command_is_named_as_it_works_from_here(
    flare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert shlex.split(command()) == ["a b/bin/flare"]
    monkeypatch.chdir(flare.parent)
    assert command() == "./flare"
    monkeypatch.chdir("/")
    assert Path(shlex.split(command())[0]).samefile(flare)
    other = executable(tmp_path / "other" / "flare")
    monkeypatch.setenv("PATH", str(other.parent))
    assert command() != "flare", "that one is another's"
    monkeypatch.setenv("PATH", str(flare.parent))
    assert command() == "flare"


def test_without_an_installed_command_it_is_the_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["cli.py"])
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert command() == f"{tmp_path / 'python'} -m compose.cli"


def test_a_choice_is_shown_where_one_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    held = [LockedRunDirectory(None)]
    assert choice(ADDRESS, None) == ""
    held.append(LockedRunDirectory(None))
    assert choice(ADDRESS, None) == " --port 9551"
    assert choice(ADDRESS, tmp_path / "x y") == f" --run-dir '{tmp_path / 'x y'}'"
    for each in held:
        each.release()


def test_the_page_the_commands_and_the_header_of_a_key() -> None:
    plain = greeting(ADDRESS, "it's", flare="bin/flare", which=" --port 9551", keys=False, logs=True)
    assert "http://127.0.0.1:9551/ in a browser" in plain
    assert "  bin/flare chat --port 9551\n  bin/flare logs --follow --port 9551\n" in plain
    assert "Authorization" not in plain
    locked = greeting(ADDRESS, "it's", flare="bin/flare", which="", keys=True, logs=False)
    assert "logs" not in locked
    words = shlex.split(locked[locked.index("curl") :].replace("\\\n", ""))
    assert "Authorization: Bearer $FLARE_API_KEY" in words
    assert json.loads(words[-1])["model"] == "it's"
