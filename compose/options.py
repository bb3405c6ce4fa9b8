"""The command-line options of each service, once: `flare SERVICE` has its own, `flare run` all of them.

An option's parameter has the name of its configuration field, so configurations are made from options and turned back
into arguments for a child without a table in between.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import click

from shared.byte_sizes import Room, Share, byte_size, room
from shared.errors import ProcessError
from shared.log_config import CHOICES
from shared.metrics_address import LOOPBACK

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
Config = TypeVar("Config")


class Size(click.ParamType[int]):
    """A number of bytes: 536870912, 512MiB, 0.5G."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return byte_size(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Headroom(click.ParamType[Room]):
    """A number of bytes, or a part of a device's memory: 512MiB, 5%."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Room:
        if isinstance(value, int | Share):
            return value
        try:
            return room(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Listed(click.ParamType[str]):
    """One of several words; a variable separates them by commas."""

    def __init__(self, name: str) -> None:
        self.name = name

    def split_envvar_value(self, rv: str) -> Sequence[str]:
        """The words in a variable; an empty variable has none, but one of mere commas is a mistake."""
        return [word.strip() for word in rv.split(",") if word.strip()] or [""] * bool(rv.strip())


class Secret(Listed):
    """A word that a child gets by environment, since everybody may read arguments."""


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

_LEVEL = click.Choice(CHOICES)
LOGS: tuple[Decorator, ...] = (
    click.option(
        "--log-dir",
        type=click.Path(path_type=Path, file_okay=False),
        envvar="FLARE_LOG_DIR",
        show_envvar=True,
        help="Folder of the log files, two a service; by default flare run has one below ~/.local/state/flare/logs.",
    ),
    click.option(
        "--log-level", type=_LEVEL, default="info", show_default=True, help="Least level of what goes to stderr."
    ),
    click.option(
        "--log-file-level",
        type=_LEVEL,
        default="debug",
        show_default=True,
        help="Least level of what goes to the files; at debug, each round of a request, to SERVICE.debug.log.",
    ),
    click.option(
        "--log-max-bytes", type=Size(), default=16 << 20, show_default="16MiB", help="Size at which a file is rotated."
    ),
    click.option("--log-files", type=int, default=4, show_default=True, help="Files kept of each log."),
)
LOG_CONTENT = click.option(
    "--log-content",
    is_flag=True,
    default=False,
    help="Log the text of prompts and answers with their requests. Whoever reads the logs reads what users wrote.",
)

SERVED_MODEL_NAME = click.option(
    "--served-model-name", help="Name of the model in the API and in the metrics; by default the core's."
)
METRICS: tuple[Decorator, ...] = (
    click.option(
        "--metrics-host", default=LOOPBACK, show_default=True, help="Address of /metrics, /health and /ready."
    ),
    click.option(
        "--metrics-port",
        type=int,
        help="Their port; 0 takes a free one. Without it a service serves none, while flare run takes free ones; "
        "there, it is the frontend's, and the next two are the scheduler's and the worker's.",
    ),
)
ROUND_TIMEOUT = click.option(
    "--round-timeout",
    type=float,
    default=120.0,
    show_default=True,
    help="Seconds that one round may take; a worker whose round takes longer ends with an error.",
)

HANG = click.option(
    "--hang-timeout",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    help="Seconds without a sign of life after which a service is killed and started again; 0: never.",
)

FRONTEND: tuple[Decorator, ...] = (
    click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at."),
    click.option("--port", type=int, default=8000, show_default=True, help="Port to listen at; 0 takes a free one."),
    SERVED_MODEL_NAME,
    click.option(
        "--api-key",
        "api_keys",
        type=Secret("key"),
        multiple=True,
        default=(),
        envvar="FLARE_API_KEYS",
        show_envvar=True,
        help="Key that opens the API; may be repeated. Without any, the API is open to all who reach it.",
    ),
    click.option(
        "--cors-origin",
        "cors_origins",
        type=Listed("origin"),
        multiple=True,
        default=(),
        help="Origin whose pages may use the API from a browser, or *; may be repeated.",
    ),
    click.option(
        "--keep-alive",
        type=float,
        default=5.0,
        show_default=True,
        help="Seconds without output after which a waiting stream gets a comment line.",
    ),
    LOG_CONTENT,
    DRAIN,
    *METRICS,
    *LOGS,
)
SCHEDULER: tuple[Decorator, ...] = (
    click.option(
        "--mtp-draft-tokens",
        "draft_tokens",
        type=int,
        help="Most drafts of a round; 0 serves without speculation, by the core's ordinary graphs.",
    ),
    click.option(
        "--mtp-adaptive-verification/--no-mtp-adaptive-verification",
        "adaptive",
        default=None,
        help="Choose each round's width by what drafts have brought, or always take one; by default as the core says.",
    ),
    click.option(
        "--speculative-fixed-width",
        "fixed_width",
        type=int,
        help="The one width of all rounds, the pending token included; a prepared one. By default the widest.",
    ),
    click.option(
        "--history-drafts/--no-history-drafts", default=None, help="Copy drafts from text that was generated before."
    ),
    click.option("--prompt-drafts/--no-prompt-drafts", default=None, help="Copy drafts from the request's own text."),
    click.option(
        "--prefix-cache/--no-prefix-cache",
        default=True,
        help="Keep the state of prompts and answers for requests that begin alike.",
    ),
    CONCURRENCY,
    click.option("--queue-limit", type=int, default=256, show_default=True, help="Requests that may wait."),
    SERVED_MODEL_NAME,
    DETERMINISTIC,
    DRAIN,
    *METRICS,
    *LOGS,
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
        type=Headroom(),
        default=512 << 20,
        show_default="512MiB",
        help="Memory that stays free on the device: a size, or a part of all of it, such as 5%.",
    ),
    click.option(
        "--embedding-table-storage",
        type=click.Choice(["gpu", "ram", "disk"]),
        help="Where embedding tables lie: the device's memory, the host's, or a file that a row server reads; "
        "by default as the core says.",
    ),
    click.option(
        "--embedding-table-cache-size",
        type=Size(),
        default=256 << 20,
        show_default="256MiB",
        help="Memory for the rows of tables on disk that were asked for lately.",
    ),
    click.option(
        "--embedding-row-timeout",
        type=float,
        default=10.0,
        show_default=True,
        help="Seconds without progress after which a row server is replaced; the rounds that wait for it fail.",
    ),
    click.option("--threads", type=int, help="Threads of the CPU's arithmetic; by default all cores but one."),
    click.option(
        "--record", type=click.Path(path_type=Path), help="Write every round's plan and times there, for flare bench."
    ),
    SERVED_MODEL_NAME,
    ROUND_TIMEOUT,
    DRAIN,
    *METRICS,
    *LOGS,
)


def options(*groups: tuple[Decorator, ...]) -> Decorator:
    """A decorator with each option of the groups once, shown in their order."""
    unique = tuple(dict.fromkeys(option for group in groups for option in group))

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(unique):
            command = option(command)
        return command

    return decorate


def variable(option: click.Option) -> str:
    """The environment variable of an option: FLARE_ and its long name."""
    return "FLARE_" + max(option.opts, key=len).lstrip("-").replace("-", "_").upper()


def name_variables(*commands: click.Command) -> None:
    """Lets the environment give every option too; an empty variable is none, so that compose may always pass it."""
    for command in commands:
        for option in command.params:
            if isinstance(option, click.Option) and option.envvar is None:
                option.envvar, option.show_envvar = variable(option), True


def configure(kind: type[Config], values: Mapping[str, Any]) -> Config:
    """A configuration from the options that it has fields for. Raises `ProcessError`."""
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]  # a dataclass, as all of them are
    return kind(**{name: value for name, value in values.items() if name in names})


def arguments(command: click.Command, config: Any) -> tuple[str, ...]:
    """The arguments with which `flare` makes the same configuration of a service again."""
    return str(command.name), str(config.core), *flags(command, config)


def flags(command: click.Command, config: Any) -> tuple[str, ...]:
    """The options with which `command` makes the same configuration again; an option's own default is left out.

    Secrets are left to `secrets`.
    """
    options = {option.name: option for option in command.params if isinstance(option, click.Option)}
    found: list[str] = []
    for field in fields(config):
        value, option = getattr(config, field.name), options.get(field.name)
        if option is None:
            if field.name != "core" and value != field.default:
                raise ProcessError(f"flare {command.name} has no option for {field.name}")
        elif value is None or _implied(option, value) or isinstance(option.type, Secret):
            continue
        elif isinstance(value, tuple):
            found += [part for single in value for part in (option.opts[0], str(single))]
        elif isinstance(value, bool):
            found.append(option.opts[0] if value else option.secondary_opts[0])
        else:
            found += [option.opts[0], str(value)]
    return tuple(found)


def _implied(option: click.Option, value: Any) -> bool:
    """Whether a child has this value without being told: the default, if its environment says nothing else."""
    told = isinstance(option.envvar, str) and os.environ.get(option.envvar)
    unspeakable = value is False and not option.secondary_opts
    return value == option.default and (unspeakable or not told)


def secrets(command: click.Command, config: Any) -> dict[str, str]:
    """The environment that tells `flare COMMAND` the secrets of a configuration; empty ones too, to tell of none."""
    return {
        str(option.envvar): ",".join(getattr(config, str(option.name)))
        for option in command.params
        if isinstance(option, click.Option) and isinstance(option.type, Secret)
    }
