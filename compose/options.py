"""The command-line options of each service, once: `flare SERVICE` has its own, `flare run` all of them.

An option's parameter has the name of its configuration field, so configurations are made from options and turned back
into arguments for a child without a table in between.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import click

from shared.errors import ProcessError

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
Config = TypeVar("Config")

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)


class Size(click.ParamType[int]):
    """A number of bytes: 536870912, 512MiB, 0.5G."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        found = _SIZE.fullmatch(str(value).strip())
        if found is None:
            self.fail(f"{value!r} is not a size such as 512MiB", param, ctx)
        return int(float(found[1]) * _UNITS[found[2].lower()])


CORE = click.argument("core", type=click.Path(path_type=Path, exists=True, file_okay=False))
RUN_DIR = click.option(
    "--run-dir", type=click.Path(path_type=Path), required=True, help="Folder of the services' sockets, mode 0700."
)
CONCURRENCY = click.option("--concurrency", type=int, help="Requests that run at once; by default the core's.")
DETERMINISTIC = click.option(
    "--deterministic",
    is_flag=True,
    default=False,
    help="Fixed width and batch-invariant arithmetic: equal seeds give equal tokens.",
)
DRAIN = click.option(
    "--drain-timeout", type=float, default=30.0, show_default=True, help="Seconds that running streams may take to end."
)

FRONTEND: tuple[Decorator, ...] = (
    click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at."),
    click.option("--port", type=int, default=8000, show_default=True, help="Port to listen at; 0 takes a free one."),
    click.option("--served-model-name", help="Name in the API; by default the core's."),
    DRAIN,
)
SCHEDULER: tuple[Decorator, ...] = (
    click.option("--mtp-draft-tokens", "draft_tokens", type=int, help="Most drafts of a round; 0 drafts nothing."),
    click.option(
        "--mtp-adaptive-verification/--no-mtp-adaptive-verification",
        "adaptive",
        default=True,
        help="Verify no wider than there are drafts.",
    ),
    click.option(
        "--history-drafts/--no-history-drafts", default=None, help="Copy drafts from text that was generated before."
    ),
    click.option("--prompt-drafts/--no-prompt-drafts", default=None, help="Copy drafts from the request's own text."),
    CONCURRENCY,
    click.option("--queue-limit", type=int, default=64, show_default=True, help="Requests that may wait."),
    click.option("--metrics-port", type=int, help="Port of the scheduler's /metrics on the loopback address."),
    DETERMINISTIC,
    DRAIN,
)
WORKER: tuple[Decorator, ...] = (
    click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True),
    click.option(
        "--frames",
        type=click.Choice(["ipc", "host"]),
        default="ipc",
        show_default=True,
        help="How the scheduler reads a GPU's frames.",
    ),
    DETERMINISTIC,
    CONCURRENCY,
    click.option(
        "--headroom",
        "headroom_bytes",
        type=Size(),
        default=512 << 20,
        show_default="512MiB",
        help="Memory that stays free on the device.",
    ),
    click.option("--threads", type=int, help="Threads of the CPU's arithmetic; by default all cores but one."),
    click.option(
        "--record", type=click.Path(path_type=Path), help="Write every round's plan and times there, for flare bench."
    ),
    DRAIN,
)


def options(*groups: tuple[Decorator, ...]) -> Decorator:
    """A decorator with each option of the groups once, shown in their order."""
    unique = tuple(dict.fromkeys(option for group in groups for option in group))

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(unique):
            command = option(command)
        return command

    return decorate


def configure(kind: type[Config], values: Mapping[str, Any]) -> Config:
    """A configuration from the options that it has fields for. Raises `ProcessError`."""
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]  # a dataclass, as all of them are
    return kind(**{name: value for name, value in values.items() if name in names})


def arguments(command: click.Command, config: Any) -> tuple[str, ...]:
    """The arguments with which `flare` makes the same configuration again; an option's own default is left out."""
    options = {option.name: option for option in command.params if isinstance(option, click.Option)}
    found = [str(command.name), str(config.core)]
    for field in fields(config):
        value, option = getattr(config, field.name), options.get(field.name)
        if option is None:
            if field.name != "core" and value != field.default:
                raise ProcessError(f"flare {command.name} has no option for {field.name}")
        elif value is None or value == option.default:
            continue
        elif isinstance(value, bool):
            found.append(option.opts[0] if value else option.secondary_opts[0])
        else:
            found += [option.opts[0], str(value)]
    return tuple(found)
