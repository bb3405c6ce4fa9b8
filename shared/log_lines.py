"""The two forms of a log event: one line of JSON for files and machines, one readable line for people.

Imported by every process. Whatever a value holds, an event stays on its line and cannot steer a terminal: characters
that do not print are escaped in both forms.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import orjson

LEVELS = ("debug", "info", "warning", "error", "critical")
_COLOURS = {"debug": 2, "info": 32, "warning": 33, "error": 31, "critical": 31}
_BOLD, _DIM = 1, 2
_HEAD = frozenset({"timestamp", "level", "service", "pid", "event", "exception"})
_PLAIN = re.compile(r"[\w.,:;/@+*%#!?()\[\]<>|&^~-]+")


def _escaped(text: str) -> str:
    """JSON escapes for everything that does not print."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] if ord(c) != 127 else "\\u007f" for c in text)


def _shortened(event: Mapping[str, Any]) -> Mapping[str, Any]:
    """With its floats in as many digits as are measured: 0.04, and not 0.039999999999999994."""
    if float not in map(type, event.values()):
        return event
    return {name: float(f"{value:.6g}") if type(value) is float else value for name, value in event.items()}


def encode(event: Mapping[str, Any]) -> bytes:
    """The event as one line of JSON, without its end. Never raises for a value: what JSON lacks goes as its `str`."""
    event = _shortened(event)
    try:
        data = orjson.dumps(event, default=str)
    except (TypeError, ValueError):  # a lone surrogate, an integer beyond 64 bits
        data = json.dumps(event, default=str, separators=(",", ":")).encode()
    if data.isascii() and b"\x7f" not in data:
        return data
    return _escaped(data.decode()).encode()


def continued(head: bytes, values: Mapping[str, Any]) -> bytes:
    """An encoded event, which has something in it, with more values: what many lines share is encoded once."""
    return head[:-1] + b"," + encode(values)[1:] if values else head


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, str) and _PLAIN.fullmatch(value):
        return value
    return _escaped(encode({"": value})[4:-1].decode())


def _tinted(text: str, code: int, colours: bool) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if colours and text else text


def readable(event: Mapping[str, Any], *, colours: bool = False, date: bool = False) -> str:
    """Time, service, level, event and the rest as columns; a traceback below, indented. No line end."""
    timestamp = _escaped(str(event.get("timestamp", "")))
    level, name = _escaped(str(event.get("level", ""))), _escaped(str(event.get("event", "")))
    service = _escaped(str(event.get("service", "")))
    parts = [
        _tinted(timestamp if date else timestamp[11:23], _DIM, colours),
        f"{service:<10}",
        _tinted(f"{level:<7}", _COLOURS.get(level, 0), colours),
        _tinted(f"{name:<20}", _BOLD, colours),
    ]
    rest = ((_escaped(str(key)), _shown(value)) for key, value in event.items() if key not in _HEAD)
    parts += [f"{_tinted(key + '=', _DIM, colours)}{value}" for key, value in rest]
    lines = [" ".join(parts).rstrip()]
    lines += [f"    | {_escaped(line)}" for line in str(event.get("exception", "")).splitlines()]
    return "\n".join(lines)
