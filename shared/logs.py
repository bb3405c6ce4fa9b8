"""Structured logs: one event a line, in a file of the service and on stderr, a request id in each line about one.

Every process calls `configure` once, first thing. Prompts and outputs are never passed to a logger, unless the operator
asked for them (`--log-content`). What cannot be written is lost; it never stops a service, nor makes one wait.
"""

from __future__ import annotations

import atexit
import logging
import sys
import time
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Any, Generic, TypeVar

import orjson
import structlog

from shared.log_config import LEVELS, LogConfig
from shared.log_queue import Entry, LogQueue
from shared.log_sinks import Form, Sinks
from shared.log_traces import trace

__all__ = ["DebugLines", "LogConfig", "configure", "flush", "idle", "wants_debug"]

Subject = TypeVar("Subject")
FLUSH_S = 1.0
"""How long an error's line, or the end of a process, waits for a disk."""
_PLAIN = frozenset({str, int, float, bool, type(None)})


def _only(values: Mapping[str, Any]) -> tuple[Mapping[str, Any]]:
    return (values,)


def _kept(value: object) -> object:
    """A value as it is now: the line is made later, and somebody may change a list until then."""
    try:
        return orjson.loads(orjson.dumps(value, default=str))
    except (TypeError, ValueError):
        return str(value)


class _Log:
    """What structlog hands complete events to. `withhold` and `told` as in `shared.log_traces`."""

    def __init__(
        self, service: str, config: LogConfig, form: Form, withhold: bool, told: tuple[type[BaseException], ...]
    ) -> None:
        self._withhold = withhold
        self._told = told
        self._sinks = Sinks(service, config, form)
        self.level = self._sinks.level
        self.queue = LogQueue(self._sinks)

    def complete(self, logger: Any, method: str, event: MutableMapping[str, Any]) -> tuple[Any, ...]:
        """A structlog processor, the last one: an entry of an event, an exception turned into text."""
        at = time.time_ns()
        error = event.pop("exc_info", None)
        name = event.pop("event", "")
        values = {"request": event.pop("request")} if "request" in event else {}
        values.update(event)
        for key, value in values.items():
            if type(value) not in _PLAIN:
                values[key] = _kept(value)
        if error:
            caught = error if isinstance(error, BaseException) else sys.exc_info()[1]
            if caught is not None:
                values["exception"] = trace(caught, self._withhold, self._told)
        return (Entry(at, method, str(name), _only, values),), {}

    def debug(self, entry: Entry) -> None:
        """Queues an entry, also one of many lines."""
        self.queue.put(entry)

    info = debug

    def warning(self, entry: Entry) -> None:
        """Queues an entry that is written soon."""
        self.queue.put(entry, urgent=True)

    def error(self, entry: Entry) -> None:
        """Queues an entry and waits for it: the process may be about to end."""
        self.queue.put(entry)
        self.queue.flush(FLUSH_S)

    critical = error

    def close(self) -> None:
        """Writes what is left."""
        self.queue.close(FLUSH_S)
        self._sinks.close()


_current: _Log | None = None


def configure(
    service: str,
    config: LogConfig | None = None,
    *,
    form: Form = "auto",
    withhold: bool = False,
    told: tuple[type[BaseException], ...] = (),
) -> None:
    """Sends this process's events where `config` says. With `withhold`, tracebacks leave out what could be content.

    `told` are kinds of exceptions whose messages stay. stderr is readable if it is a terminal and JSON if not, unless
    `form` says which.
    """
    global _current
    if _current is not None:
        _current.close()
    _current = log = _Log(service, config or LogConfig(), form, withhold, told)
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, log.complete],
        wrapper_class=structlog.make_filtering_bound_logger(log.level),
        logger_factory=lambda *names: log,
        cache_logger_on_first_use=False,
    )
    structlog.contextvars.clear_contextvars()


@atexit.register
def flush() -> None:
    """Waits until everything that was logged is written, for a moment at most. Before `os._exit`, and at exit."""
    if _current is not None:
        _current.queue.flush(FLUSH_S)


def idle() -> None:
    """Makes a few of the lines that wait. For a loop that turns without sleep, each time it finds nothing to do."""
    if _current is not None:
        _current.queue.idle()


def wants_debug() -> bool:
    """Whether debug lines of this process go anywhere."""
    return _current is not None and _current.level <= logging.DEBUG


class DebugLines(Generic[Subject]):
    """Debug lines of one event, several at a time, for a loop that has no time: it only hands over what they are about.

    `describe` makes the values of each line later, in the log's thread or in a loop that has nothing else to do, from a
    subject that changes no more.
    """

    def __init__(self, event: str, describe: Callable[[Subject], Iterable[Mapping[str, Any]]]) -> None:
        self._event = event
        self._describe = describe

    def write(self, subject: Subject, lines: int = 1) -> None:
        """Logs the `lines` lines about a subject, as of now."""
        if _current is not None and _current.level <= LEVELS["debug"]:
            _current.debug(Entry(time.time_ns(), "debug", self._event, self._describe, subject, lines))
