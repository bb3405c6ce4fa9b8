"""Where log lines end up: a file, a file for debug lines, and stderr. Every process. Only the log's thread writes.

Lines are also made by a loop that turns, maybe at the same time, so nothing here changes when one is made.

Debug lines have a file of their own, with its own rotation: however many there are, they push nothing else out.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TextIO

from shared.log_config import LEVELS, LogConfig
from shared.log_file import LogFile
from shared.log_lines import continued, encode, readable
from shared.log_queue import Entry

Form = Literal["auto", "json", "console"]


class Line(NamedTuple):
    """One line in the forms that are wanted; empty: not there."""

    debug: bool
    data: bytes
    text: str


def _stamp(at: int) -> str:
    seconds, rest = divmod(at, 1_000_000_000)
    return f"{_second(seconds)}.{rest // 1000:06d}Z"


@lru_cache(maxsize=2)
def _second(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}"


class Terminal:
    """stderr: readable on a terminal, JSON otherwise."""

    def __init__(self, form: Form, stream: TextIO) -> None:
        self._stream = stream
        self._readable = form == "console" or (form == "auto" and stream.isatty())
        self._colours = stream.isatty() and not os.environ.get("NO_COLOR")

    def form(self, event: dict[str, Any]) -> str:
        """An event as it is shown, with its end."""
        return (readable(event, colours=self._colours) if self._readable else encode(event).decode()) + "\n"

    def write(self, text: str) -> None:
        """Shows lines; what cannot be shown is lost."""
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            return  # the terminal is gone; the service stays


class Sinks:
    """The writer behind a `LogQueue`."""

    def __init__(self, service: str, config: LogConfig, form: Form) -> None:
        self._service = service
        self._pid = os.getpid()
        self._terminal = Terminal(form, sys.stderr)
        self._terminal_level = LEVELS[config.log_level]
        self._file_level = LEVELS[config.log_file_level]
        self._files = self._opened(config)

    def _opened(self, config: LogConfig) -> tuple[LogFile, LogFile] | None:
        """The files of ordinary and of debug lines."""
        folder = config.log_dir
        if folder is None:
            return None
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            self._complain(f"{folder} cannot be made, there will be no log files: {error.strerror}")
            return None
        ordinary, debug = (
            LogFile(folder / f"{self._service}{kind}.log", config.log_max_bytes, config.log_files, self._complain)
            for kind in ("", ".debug")
        )
        return ordinary, debug

    @property
    def level(self) -> int:
        """The least level that anybody wants."""
        return self._terminal_level if self._files is None else min(self._terminal_level, self._file_level)

    def made(self, entry: Entry) -> Iterator[Line]:
        """The lines of an entry. What they share is encoded once."""
        level = LEVELS[entry.level]
        filed, shown = self._files is not None and level >= self._file_level, level >= self._terminal_level
        shared = self._shared(entry)
        head = encode(shared) if filed else b""
        for values in entry.describe(entry.subject):
            data = continued(head, values) if filed else b""
            yield Line(entry.level == "debug", data, self._terminal.form({**shared, **values}) if shown else "")

    def write(self, lines: list[Line]) -> None:
        """Each file gets its lines in one write; debug lines first: who sees an ending then sees what led to it."""
        if self._files is not None:
            for file, debug in zip(reversed(self._files), (True, False), strict=True):
                data = [line.data for line in lines if line.debug is debug and line.data]
                if data:
                    file.write(b"\n".join(data))
        text = "".join([line.text for line in lines])
        if text:
            self._terminal.write(text)

    def lost(self, lines: int) -> None:
        """One line about lines that are missing."""
        self.write(list(self.made(self._own("log.dropped", {"lines": lines}))))

    def close(self) -> None:
        """Closes the files."""
        for file in self._files or ():
            file.close()

    def _shared(self, entry: Entry) -> dict[str, Any]:
        return {
            "timestamp": _stamp(entry.at),
            "level": entry.level,
            "service": self._service,
            "pid": self._pid,
            "event": entry.event,
        }

    def _own(self, event: str, values: dict[str, Any]) -> Entry:
        return Entry(time.time_ns(), "warning", event, lambda subject: (subject,), values)

    def _complain(self, reason: str) -> None:
        """About the log itself, where that can be heard."""
        entry = self._own("log.unwritable", {"reason": reason})
        self._terminal.write(self._terminal.form({**self._shared(entry), **entry.subject}))
