"""The container before the services: which core it makes, which it only looks at, and what it says of none."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from compose import cli, prepare
from tests.fixtures.scripted.recipe import make_core


def test_a_core_of_ones_own_is_looked_at_and_described(tmp_path: Path) -> None:
    core = make_core(tmp_path)
    result = CliRunner().invoke(prepare.main, [str(core)])
    assert result.exit_code == 0, result.output
    assert f"{core} holds" in result.output


def test_a_core_that_is_not_there_is_said_with_the_remedy(tmp_path: Path) -> None:
    result = CliRunner().invoke(prepare.main, [str(tmp_path / "mine")])
    assert result.exit_code == 1
    assert "ignition export" in result.output
    assert "Traceback" not in result.output


def test_a_folder_that_is_no_core_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    result = CliRunner().invoke(prepare.main, [str(tmp_path / "empty")])
    assert result.exit_code == 1
    assert "is not a core" in result.output


def test_the_demo_name_moves_to_a_new_core_and_survives_an_interruption(tmp_path: Path) -> None:
    link = tmp_path / prepare.DEMO
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        prepare.point(link, tmp_path / name)
        assert link.resolve() == tmp_path / name
        assert not link.readlink().is_absolute()  # the volume is mounted elsewhere in another container
    assert sorted(path.name for path in tmp_path.iterdir()) == [prepare.DEMO, "new", "old"]


def test_a_core_of_ones_own_named_demo_is_never_replaced(tmp_path: Path) -> None:
    own = tmp_path / prepare.DEMO
    own.mkdir()
    assert make_core(own) == own
    result = CliRunner().invoke(prepare.main, [str(own)])
    assert result.exit_code == 0, result.output
    assert not own.is_symlink()


def test_a_place_that_cannot_be_written_is_said_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = CliRunner().invoke(prepare.main, [str(tmp_path / "file" / prepare.DEMO)])
    assert result.exit_code == 1
    assert "must be able to write there" in result.output


def test_a_cache_that_cannot_be_written_is_one_line_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("FLARE_CACHE_DIR", str(tmp_path / "file" / "cache"))
    monkeypatch.setenv("FLARE_LOG_DIR", str(tmp_path / "logs"))
    result = CliRunner().invoke(cli.main, ["run", "--run-dir", str(tmp_path / "r"), "--port", "0"])
    assert result.exit_code == 1
    assert "FLARE_CACHE_DIR" in result.output
    assert str(tmp_path / "file" / "cache") in result.output
    assert "Traceback" not in result.output
