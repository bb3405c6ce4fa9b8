"""Paths of request fields as the log may show them: names that are ours, since any other is a client's own text."""

from __future__ import annotations

import re

import msgspec

from services.frontend.api.known import NOT_BUILT
from services.frontend.api.surface import OPERATIONS

_PIECE = re.compile(r"([^.\[\]]*)((?:\[\d*\])*)")
OTHER = "?"


def _names() -> frozenset[str]:
    """Of all that a body may hold, in every operation, and of what is refused by name."""
    _, structs = msgspec.json.schema_components([operation.body for operation in OPERATIONS if operation.body])
    declared = {name for struct in structs.values() for name in struct.get("properties", {})}
    return frozenset(declared | set(NOT_BUILT))


_NAMES = _names()


def loggable(path: str | None) -> str:
    """The path, with everything in it that is not the name of a field we know replaced by `?`."""
    if not path:
        return ""
    pieces = (_PIECE.fullmatch(piece) for piece in path.split("."))
    return ".".join(OTHER if piece is None or piece[1] not in _NAMES else f"{piece[1]}{piece[2]}" for piece in pieces)
