"""Structured logs: one event a line, JSON by orjson or readable on a terminal, a request id in each line about one.

Prompts and outputs are never passed to a logger. Each service calls `configure` once, first thing.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any, Literal, TextIO

import orjson
import structlog

Format = Literal["auto", "json", "console"]
LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def _dumps(value: Any, default: Any = None, **_: Any) -> str:
    return orjson.dumps(value, default=default or str).decode()


def configure(service: str, *, level: str = "info", form: Format = "auto", path: Path | None = None) -> None:
    """Sends this process's events to stderr, or to the file `path` (appended). `auto` is console on a terminal."""
    stream: TextIO = sys.stderr if path is None else path.open("a", encoding="utf-8", buffering=1)
    console = form == "console" or (form == "auto" and stream.isatty())
    renderer: Any = structlog.dev.ConsoleRenderer() if console else structlog.processors.JSONRenderer(_dumps)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(file=stream),
        cache_logger_on_first_use=False,
    )
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(service=service)
