"""JSON bodies into typed structs, with errors that a client can act on. Pure; frontend process, worker threads.

Types are strict: "5" is no number and 5.0 no integer. An error names the field and its path, never the content. A field
that a struct lacks is refused by name, or passes if its value asks for nothing (`known.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

import msgspec

from services.frontend.api.known import NOT_BUILT, check_value, elsewhere, printable
from services.frontend.api.wording import explain, fields, unknown
from shared.errors import InvalidRequest

T = TypeVar("T")

_top_level: msgspec.json.Decoder[dict[str, msgspec.Raw]] = msgspec.json.Decoder(dict[str, msgspec.Raw])


@cache
def _decoder(kind: type[Any]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


@cache
def _fields(kind: type[Any]) -> frozenset[str]:
    return fields(kind)


def _check_field(kind: type[Any], name: str, value: msgspec.Raw, known: Mapping[str, tuple[Any, ...]]) -> None:
    """Refuses a field that `kind` does not have, unless it is known and asks for nothing."""
    if name in known:
        check_value(name, value, known[name], elsewhere(kind, name))
        return
    place = elsewhere(kind, name)
    if place is not None:
        raise InvalidRequest(place, param=name)
    key: Any = kind
    raise unknown(printable(name), _fields(key) | set(known))


def _no_json(error: msgspec.DecodeError, body: bytes) -> InvalidRequest:
    """Where the JSON breaks, without any of it."""
    try:
        body.decode()
    except UnicodeDecodeError as fault:
        return InvalidRequest(f"the body is not valid UTF-8 (byte {fault.start})")
    found = re.search(r"\(byte \d+\)", str(error))
    return InvalidRequest(
        f"the body is not valid JSON: {f'malformed {found.group()}' if found else 'malformed or cut short'}"
    )


def decode(kind: type[T], body: bytes, known: Mapping[str, tuple[Any, ...]] = NOT_BUILT) -> T:
    """The struct `kind` in a JSON body; `known` are fields it lacks, with the values that ask for nothing.

    Raises `InvalidRequest` or, for a known field that asks for something, `NotBuilt`.
    """
    key: Any = kind  # to mypy a type is not hashable
    try:
        for name, value in _top_level.decode(body).items():
            if name not in _fields(key):
                _check_field(key, name, value, known)
        made: T = _decoder(key).decode(body)
        return made
    except msgspec.ValidationError as error:
        raise explain(error, kind) from error
    except msgspec.DecodeError as error:
        raise _no_json(error, body) from error
    except (UnicodeDecodeError, RecursionError) as error:
        reason = "is nested too deeply" if isinstance(error, RecursionError) else "is not valid UTF-8"
        raise InvalidRequest(f"the body {reason}") from error
