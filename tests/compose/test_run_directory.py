"""Run directories: private, one per server, removed by their owner or, once it is dead, by the next server."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from compose import run_directory
from compose.run_directory import LockedRunDirectory
from shared.errors import ProcessError


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


def test_a_new_one_is_private_and_goes_with_its_owner(runtime: Path) -> None:
    held = LockedRunDirectory(None)
    assert held.path.parent == runtime
    assert stat.S_IMODE(held.path.stat().st_mode) == 0o700
    (held.path / "scheduler-workers.sock").touch()
    held.release()
    assert not held.path.exists()


def test_a_chosen_one_stays_but_is_emptied_of_ours(tmp_path: Path) -> None:
    chosen = tmp_path / "chosen"
    chosen.mkdir(mode=0o700)
    (chosen / "note").touch()
    (chosen / "frontend.json").touch()
    held = LockedRunDirectory(chosen)
    assert not (chosen / "frontend.json").exists()
    held.release()
    assert [path.name for path in chosen.iterdir()] == ["note"]


def test_two_servers_cannot_share_one(tmp_path: Path) -> None:
    held = LockedRunDirectory(tmp_path / "chosen")
    with pytest.raises(ProcessError, match="another server"):
        LockedRunDirectory(tmp_path / "chosen")
    held.release()


def test_one_that_others_can_enter_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    with pytest.raises(ProcessError, match="0700"):
        LockedRunDirectory(tmp_path / "open")


def test_only_a_dead_servers_is_swept(runtime: Path) -> None:
    living = LockedRunDirectory(None)
    dead = runtime / "flare-run-dead"
    dead.mkdir(mode=0o700)
    (dead / "supervisor.lock").touch()
    (runtime / "flare-making-now").mkdir(mode=0o700)
    (runtime / "flare-run-link").symlink_to(runtime)
    (runtime / "other").mkdir()
    assert run_directory.sweep() == ("flare-run-dead",)
    assert living.path.exists()
    assert (runtime / "other").exists()
    living.release()
