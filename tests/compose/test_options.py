"""Options become configurations and, for a child, arguments that make the same configuration again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from compose import cli
from compose.options import Headroom, Size, arguments, configure, flags, secrets
from services.frontend.config import FrontendConfig
from services.scheduler.config import SchedulerConfig
from services.worker.config import WorkerConfig
from shared.byte_sizes import Share, bytes_of
from shared.errors import REFUSED
from shared.logs import LogConfig


def parsed(command: click.Command, given: list[str]) -> dict[str, Any]:
    """The parameters that a command line gives its command."""
    with command.make_context(command.name, given) as context:
        return dict(context.params)


@pytest.mark.parametrize(
    ("command", "kind", "values"),
    [
        (cli.frontend, FrontendConfig, {}),
        (cli.frontend, FrontendConfig, {"host": "0.0.0.0", "port": 0, "served_model_name": "m", "drain_timeout": 1.5}),
        (cli.frontend, FrontendConfig, {"cors_origins": ("https://a.example", "*"), "keep_alive": 1.5}),
        (cli.scheduler, SchedulerConfig, {}),
        (cli.scheduler, SchedulerConfig, {"draft_tokens": 0, "history_drafts": False, "prompt_drafts": True}),
        (cli.scheduler, SchedulerConfig, {"adaptive": False, "deterministic": True, "queue_limit": 3}),
        (cli.scheduler, SchedulerConfig, {"adaptive": True}),
        (cli.scheduler, SchedulerConfig, {"prefix_cache": False}),
        (cli.scheduler, SchedulerConfig, {"fixed_width": 4}),
        (cli.worker, WorkerConfig, {}),
        (cli.worker, WorkerConfig, {"headroom": 5, "threads": 2, "frames": "host", "drain_timeout": 40.0}),
        (cli.worker, WorkerConfig, {"embedding_table_storage": "disk", "embedding_table_cache_size": 0}),
        (cli.worker, WorkerConfig, {"headroom": Share(12.5)}),
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


def test_secrets_go_by_environment_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = FrontendConfig(core=tmp_path, run_dir=tmp_path, api_keys=("sk-one", "sk-two"))
    _, *given = arguments(cli.frontend, config)
    assert not any("sk-" in argument for argument in given)
    for name, value in secrets(cli.frontend, config).items():
        monkeypatch.setenv(name, value)
    assert configure(FrontendConfig, parsed(cli.frontend, given)) == config


@pytest.mark.parametrize(
    ("value", "keys"), [("", ()), ("  ", ()), ("a", ("a",)), (" a , b,", ("a", "b")), (",", ("",)), (" , ", ("",))]
)
def test_keys_of_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, keys: tuple[str, ...]) -> None:
    """Mere commas must not leave the API open: an empty key is refused by the configuration."""
    monkeypatch.setenv("FLARE_API_KEYS", value)
    assert parsed(cli.frontend, [str(tmp_path), "--run-dir", str(tmp_path)])["api_keys"] == keys


@pytest.mark.parametrize(("text", "size"), [("5", 5), ("2KiB", 2048), ("512MiB", 512 << 20), ("1.5G", 3 << 29)])
def test_sizes(text: str, size: int) -> None:
    assert Size().convert(text, None, None) == size


@pytest.mark.parametrize(("text", "free"), [("5", 5), ("2KiB", 2048), ("5%", 50), ("12.5 %", 125), ("0%", 0)])
def test_headroom_is_a_size_or_a_part(text: str, free: int) -> None:
    assert bytes_of(Headroom().convert(text, None, None), 1000) == free


@pytest.mark.parametrize("text", ["", "%", "101%", "-1%", "half", "nan%"])
def test_no_headroom(text: str) -> None:
    with pytest.raises(click.BadParameter):
        Headroom().convert(text, None, None)


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
    assert result.exit_code == REFUSED
    assert "is not a core" in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize("command", [cli.frontend, cli.scheduler, cli.worker])
def test_a_child_logs_where_its_supervisor_says(tmp_path: Path, command: click.Command) -> None:
    for config in (LogConfig(), LogConfig(tmp_path, "error", "warning", 5000, 2)):
        given = [str(tmp_path), "--run-dir", str(tmp_path), *flags(command, config)]
        assert configure(LogConfig, parsed(command, given)) == config
