"""Options become configurations and, for a child, arguments that make the same configuration again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from compose import cli
from compose.options import Size, arguments, configure
from services.frontend.config import FrontendConfig
from services.scheduler.config import SchedulerConfig
from services.worker.config import WorkerConfig


def parsed(command: click.Command, given: list[str]) -> dict[str, Any]:
    """The parameters that a command line gives its command."""
    with command.make_context(command.name, given) as context:
        return dict(context.params)


@pytest.mark.parametrize(
    ("command", "kind", "values"),
    [
        (cli.frontend, FrontendConfig, {}),
        (cli.frontend, FrontendConfig, {"host": "0.0.0.0", "port": 0, "served_model_name": "m", "drain_timeout": 1.5}),
        (cli.scheduler, SchedulerConfig, {}),
        (cli.scheduler, SchedulerConfig, {"draft_tokens": 0, "history_drafts": False, "prompt_drafts": True}),
        (cli.scheduler, SchedulerConfig, {"adaptive": False, "deterministic": True, "queue_limit": 3}),
        (cli.worker, WorkerConfig, {}),
        (cli.worker, WorkerConfig, {"headroom_bytes": 5, "threads": 2, "frames": "host", "drain_timeout": 40.0}),
        (cli.worker, WorkerConfig, {"concurrency": 2, "deterministic": True, "drain_timeout": 30.0}),
    ],
)
def test_a_configuration_survives_the_command_line(
    tmp_path: Path, command: click.Command, kind: type[Any], values: dict[str, Any]
) -> None:
    config = kind(core=tmp_path, run_dir=tmp_path, **values)
    name, *given = arguments(command, config)
    assert name == command.name
    assert configure(kind, parsed(command, given)) == config


@pytest.mark.parametrize(("text", "size"), [("5", 5), ("2KiB", 2048), ("512MiB", 512 << 20), ("1.5G", 3 << 29)])
def test_sizes(text: str, size: int) -> None:
    assert Size().convert(text, None, None) == size


@pytest.mark.parametrize("text", ["", "-1", "many", "1 EiB"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(click.BadParameter):
        Size().convert(text, None, None)


def test_run_takes_every_option_of_the_services() -> None:
    taken = {parameter.name for parameter in cli.run.params}
    for command in (cli.frontend, cli.scheduler, cli.worker):
        assert {parameter.name for parameter in command.params} <= taken


def test_an_error_is_one_line(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli.main, ["scheduler", str(tmp_path), "--run-dir", str(tmp_path / "run")])
    assert result.exit_code == 1
    assert "is not a core" in result.output
    assert "Traceback" not in result.output
