"""Structured logs: one event a line, in a file of the service and on stderr, a request id in each line about one.

Every process calls `configure` once, first thing. Prompts and outputs are never passed to a logger, unless the operator
asked for them (`--log-content`). What cannot be written is lost; it never stops a service.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import MutableMapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TextIO

import structlog

from shared.errors import ProcessError
from shared.log_file import LogFile
from shared.log_lines import encode, readable
from shared.log_traces import trace

Form = Literal["auto", "json", "console"]
LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
MIN_BYTES = 4096


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Where events go: `log_dir`/SERVICE.log from `log_file_level` up, and stderr from `log_level` up.

    A file holds about `log_max_bytes`; there are at most `log_files` of each service. No `log_dir`, no files.
    """

    log_dir: Path | None = None
    log_level: str = "info"
    log_file_level: str = "debug"
    log_max_bytes: int = 16 << 20
    log_files: int = 4

    def __post_init__(self) -> None:
        for level in (self.log_level, self.log_file_level):
            if level not in LEVELS:
                raise ProcessError(f"{level!r} is not a log level; there are {', '.join(LEVELS)}")
        if self.log_max_bytes < MIN_BYTES:
            raise ProcessError(f"log files must be allowed at least {MIN_BYTES} bytes, not {self.log_max_bytes}")
        if self.log_files < 1:
            raise ProcessError("there must be at least one log file")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")[:26] + "Z"


class _Terminal:
    """stderr: readable on a terminal, JSON otherwise."""

    def __init__(self, form: Form, stream: TextIO) -> None:
        self._stream = stream
        self._readable = form == "console" or (form == "auto" and stream.isatty())
        self._colours = stream.isatty() and not os.environ.get("NO_COLOR")

    def write(self, event: dict[str, Any]) -> None:
        """Writes an event; one that cannot be written is lost."""
        text = readable(event, colours=self._colours) if self._readable else encode(event).decode()
        try:
            self._stream.write(text + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            return  # the terminal is gone; the service stays


class _Sinks:
    """What structlog hands complete events to. `withhold` as in `shared.log_traces`."""

    def __init__(self, service: str, config: LogConfig, form: Form, withhold: bool) -> None:
        self._service = service
        self._pid = os.getpid()
        self._withhold = withhold
        self._terminal = _Terminal(form, sys.stderr)
        self._terminal_level = LEVELS[config.log_level]
        self._file_level = LEVELS[config.log_file_level]
        self._file = self._opened(config)

    def _opened(self, config: LogConfig) -> LogFile | None:
        if config.log_dir is None:
            return None
        try:
            config.log_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            self._complain(f"{config.log_dir} cannot be made, there will be no log files: {error.strerror}")
            return None
        path = config.log_dir / f"{self._service}.log"
        return LogFile(path, config.log_max_bytes, config.log_files, self._complain)

    @property
    def level(self) -> int:
        """The least level that anybody wants."""
        return self._terminal_level if self._file is None else min(self._terminal_level, self._file_level)

    def complete(self, logger: Any, method: str, event: MutableMapping[str, Any]) -> tuple[Any, ...]:
        """A structlog processor, the last one: stamps an event, and turns an exception into text."""
        error = event.pop("exc_info", None)
        stamped: dict[str, Any] = {
            "timestamp": _now(),
            "level": method,
            "service": self._service,
            "pid": self._pid,
            "event": event.pop("event", ""),
        }
        if "request" in event:
            stamped["request"] = event.pop("request")
        stamped.update(event)
        if error:
            caught = error if isinstance(error, BaseException) else sys.exc_info()[1]
            if caught is not None:
                stamped["exception"] = trace(caught, self._withhold)
        return (stamped,), {}

    def write(self, event: dict[str, Any]) -> None:
        """Sends an event where its level is wanted."""
        level = LEVELS.get(event["level"], logging.CRITICAL)
        if self._file is not None and level >= self._file_level:
            self._file.write(encode(event))
        if level >= self._terminal_level:
            self._terminal.write(event)

    debug = info = warning = error = critical = write

    def _complain(self, reason: str) -> None:
        """About the log itself, where that can be heard."""
        (stamped,), _ = self.complete(None, "warning", {"event": "log.unwritable", "reason": reason})
        self._terminal.write(stamped)


def configure(service: str, config: LogConfig | None = None, *, form: Form = "auto", withhold: bool = False) -> None:
    """Sends this process's events where `config` says. With `withhold`, tracebacks leave out what could be content.

    stderr is readable if it is a terminal and JSON if not, unless `form` says which.
    """
    sinks = _Sinks(service, config or LogConfig(), form, withhold)
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, sinks.complete],
        wrapper_class=structlog.make_filtering_bound_logger(sinks.level),
        logger_factory=lambda *names: sinks,
        cache_logger_on_first_use=False,
    )
    structlog.contextvars.clear_contextvars()
