"""What `flare logs` shows of log lines: parsing, choosing, merging by time. Pure: `log_reader.py` has the files."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

import orjson

from shared.log_lines import LEVELS

ANSWER_PREFIXES = ("chatcmpl-", "cmpl-")
"""What stands before the request's id in the `id` of an answer's JSON."""
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd]?)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True, slots=True)
class Entry:
    """One line. `at` is its timestamp as written: ISO 8601 in UTC with microseconds, so text order is time order."""

    at: str
    event: dict[str, Any]


def parse(line: bytes) -> Entry | None:
    """The entry of a line, or None for what is none: the torn last line of a process that was killed, a stranger's."""
    try:
        event = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(event, dict) or not isinstance(event.get("timestamp"), str):
        return None
    return Entry(event["timestamp"], event)


def since(span: str, now: datetime) -> str:
    """The timestamp a span such as 90s, 10m, 2h or 1d before `now`. Raises `ValueError`."""
    found = _SPAN.fullmatch(span.strip())
    if found is None:
        raise ValueError(f"{span!r} is not a span of time such as 90s, 10m, 2h or 1d")
    try:
        then = now.astimezone(UTC) - timedelta(seconds=float(found[1]) * _SECONDS[found[2]])
    except OverflowError:
        return ""  # longer ago than there are dates: everything
    return then.isoformat(timespec="microseconds")[:26] + "Z"


@lru_cache
def _meant(request: str) -> tuple[str, ...]:
    """The ids that may be meant: the given one and, if it looks like the `id` in an answer, the request's in it."""
    inner = [request.removeprefix(prefix) for prefix in ANSWER_PREFIXES if request.startswith(prefix)]
    return request, *filter(None, inner)


def _is(found: object, request: str) -> bool:
    return isinstance(found, str) and any(found == name or found.startswith(f"{name}/") for name in _meant(request))


@dataclass(frozen=True, slots=True)
class Choice:
    """Which entries are shown: those of a request and of its choices `ID/0`, .., of `level` and above, from `start` on.

    An empty `request` or `start` leaves all. A worker's line belongs to every request of its round.
    """

    request: str = ""
    level: str = "debug"
    start: str = ""

    def may_want(self, line: bytes) -> bool:
        """Whether it is worth parsing a line: false only if it cannot be wanted."""
        return not self.request or _meant(self.request)[-1].encode() in line

    def wants(self, entry: Entry) -> bool:
        """Whether the entry is shown."""
        level = entry.event.get("level")
        if entry.at < self.start or (level in LEVELS and LEVELS.index(level) < LEVELS.index(self.level)):
            return False
        if not self.request or _is(entry.event.get("request"), self.request):
            return True
        several = entry.event.get("requests")
        return isinstance(several, list) and any(_is(found, self.request) for found in several)

    def entries(self, lines: Iterable[bytes]) -> Iterator[Entry]:
        """The wanted entries among lines."""
        for line in lines:
            if self.may_want(line):
                entry = parse(line)
                if entry is not None and self.wants(entry):
                    yield entry


def merged(logs: Iterable[Iterable[Entry]]) -> Iterator[Entry]:
    """The entries of several logs, each in the order of time, in the order of time."""
    return heapq.merge(*logs, key=lambda entry: entry.at)
