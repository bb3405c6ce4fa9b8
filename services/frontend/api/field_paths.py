"""Paths of request fields as the log may show them: names that are ours, since any other is a client's own text."""

from __future__ import annotations

import re

import msgspec

from services.frontend.api import schema
from services.frontend.api.known import NOT_BUILT

_PIECE = re.compile(r"([^.\[\]]*)((?:\[\d*\])*)")
OTHER = "?"


def _names() -> frozenset[str]:
    structs = [
        found for found in vars(schema).values() if isinstance(found, type) and issubclass(found, msgspec.Struct)
    ]
    declared = {field.encode_name for struct in structs for field in msgspec.structs.fields(struct)}
    return frozenset(declared | set(NOT_BUILT))


_NAMES = _names()


def loggable(path: str | None) -> str:
    """The path, with everything in it that is not the name of a field we know replaced by `?`."""
    if not path:
        return ""
    pieces = (_PIECE.fullmatch(piece) for piece in path.split("."))
    return ".".join(OTHER if piece is None or piece[1] not in _NAMES else f"{piece[1]}{piece[2]}" for piece in pieces)
