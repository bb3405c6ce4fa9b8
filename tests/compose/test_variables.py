"""Every option of a service has an environment variable; an empty one is none, so that compose may always pass it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from compose import cli
from compose.ignition import debug_serve
from compose.options import arguments, configure, variable
from services.frontend.config import FrontendConfig
from services.scheduler.config import SchedulerConfig
from services.worker.config import WorkerConfig

COMMANDS = (cli.frontend, cli.scheduler, cli.worker, cli.run, debug_serve)


def parsed(command: click.Command, given: list[str]) -> dict[str, Any]:
    with command.make_context(command.name, list(given)) as context:
        return dict(context.params)


def options(command: click.Command) -> list[click.Option]:
    return [option for option in command.params if isinstance(option, click.Option)]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: str(command.name))
def test_every_option_has_a_variable_and_says_so(command: click.Command) -> None:
    for option in options(command):
        assert isinstance(option.envvar, str)
        assert option.show_envvar
        assert option.envvar.startswith("FLARE_")


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: str(command.name))
def test_an_empty_variable_is_none(command: click.Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = [str(tmp_path), "--run-dir", str(tmp_path)]
    plain = parsed(command, given)
    for option in options(command):
        monkeypatch.setenv(str(option.envvar), "")
    assert parsed(command, given) == plain


@pytest.mark.parametrize(
    ("command", "name", "value", "field", "result"),
    [
        (cli.frontend, "FLARE_PORT", "9000", "port", 9000),
        (cli.scheduler, "FLARE_MTP_DRAFT_TOKENS", "0", "draft_tokens", 0),
        (cli.scheduler, "FLARE_HISTORY_DRAFTS", "0", "history_drafts", False),
        (cli.scheduler, "FLARE_PREFIX_CACHE", "0", "prefix_cache", False),
        (cli.scheduler, "FLARE_MTP_ADAPTIVE_VERIFICATION", "false", "adaptive", False),
        (cli.worker, "FLARE_HEADROOM", "2GiB", "headroom", 2 << 30),
        (cli.worker, "FLARE_EMBEDDING_TABLE_CACHE_SIZE", "1.5G", "embedding_table_cache_size", 3 << 29),
        (cli.worker, "FLARE_DETERMINISTIC", "1", "deterministic", True),
    ],
)
def test_a_variable_is_the_option(
    command: click.Command,
    name: str,
    value: str,
    field: str,
    result: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(name, value)
    assert parsed(command, [str(tmp_path), "--run-dir", str(tmp_path)])[field] == result


@pytest.mark.parametrize(
    ("command", "kind"),
    [(cli.frontend, FrontendConfig), (cli.scheduler, SchedulerConfig), (cli.worker, WorkerConfig)],
)
def test_what_a_supervisor_decided_survives_a_contrary_environment(
    command: click.Command, kind: type[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its children inherit the environment, which must not speak where an argument equal to the default was left out.
    contrary = {"drain_timeout": "1", "port": "9", "queue_limit": "1", "headroom": "7"}
    given = [str(tmp_path), "--run-dir", str(tmp_path)]
    for option in options(command):
        if option.name in contrary:
            monkeypatch.setenv(variable(option), contrary[str(option.name)])
    decided = configure(kind, parsed(command, given) | {name: _default(command, name) for name in contrary})
    _, *told = arguments(command, decided)
    assert configure(kind, parsed(command, told)) == decided


def _default(command: click.Command, name: str) -> Any:
    found = [option.default for option in options(command) if option.name == name]
    return found[0] if found else None
