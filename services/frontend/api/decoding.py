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

from services.frontend.api.known import NOT_BUILT, check_field, printable
from shared.errors import InvalidRequest

T = TypeVar("T")

_top_level: msgspec.json.Decoder[dict[str, msgspec.Raw]] = msgspec.json.Decoder(dict[str, msgspec.Raw])
_PATH = re.compile(r" - at `(?:key in )?\$\.?(.*)`$", re.DOTALL)
_UNKNOWN = re.compile(r"^Object contains unknown field `(.*)`$", re.DOTALL)
_BOUND = re.compile(r"^Expected `(\w+)`( of length)? (>=|<=|>|<) (\S+)$")
_BOUND_WORDS = {">=": "at least", "<=": "at most", ">": "above", "<": "below"}
_UNITS = {"str": "characters", "array": "items", "object": "items"}


@cache
def _decoder(kind: type[Any]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


@cache
def _fields(kind: type[Any]) -> frozenset[str]:
    return frozenset(field.encode_name for field in msgspec.structs.fields(kind))


def _sentence(path: str, reason: str) -> str:
    """msgspec's reason with the field in front; a broken bound in words."""
    bound = _BOUND.match(reason)
    if bound is None:
        return f"{path or 'body'}: {reason}"
    kind, length, relation, value = bound.groups()
    verb, unit = ("have", f" {_UNITS.get(kind, 'items')}") if length else ("be", "")
    return f"{path or 'body'} must {verb} {_BOUND_WORDS[relation]} {value}{unit}"


def _explain(error: msgspec.ValidationError) -> InvalidRequest:
    """msgspec's message without its path, and the path as the field; unknown names are cut to a printable length.

    In a mapping the field is the mapping, since its keys are the client's own text.
    """
    text = str(error)
    found = _PATH.search(text)
    path = found.group(1).replace("[...]", "") if found else ""
    reason = text[: found.start()] if found else text
    unknown = _UNKNOWN.match(reason)
    if unknown:
        path = f"{path}.{printable(unknown.group(1))}".lstrip(".")
        return InvalidRequest(f"Unrecognized request argument supplied: {path}", param=path)
    if not path:
        missing = re.search(r"missing required field `(\w+)`", reason)
        path = missing.group(1) if missing else ""
    return InvalidRequest(_sentence(path, reason), param=path or None)


def _offset(reason: str) -> str:
    """Where the JSON breaks, without any of it."""
    found = re.search(r"\(byte \d+\)", reason)
    return f"malformed {found.group()}" if found else "malformed or cut short"


def decode(kind: type[T], body: bytes, known: Mapping[str, tuple[Any, ...]] = NOT_BUILT) -> T:
    """The struct `kind` in a JSON body; `known` are fields it lacks, with the values that ask for nothing.

    Raises `InvalidRequest` or, for a known field that asks for something, `NotBuilt`.
    """
    key: Any = kind  # to mypy a type is not hashable
    try:
        for name, value in _top_level.decode(body).items():
            if name not in _fields(key):
                check_field(name, value, known=known)
        made: T = _decoder(key).decode(body)
        return made
    except msgspec.ValidationError as error:
        raise _explain(error) from error
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"the body is not valid JSON: {_offset(str(error))}") from error
    except (UnicodeDecodeError, RecursionError) as error:
        reason = "is nested too deeply" if isinstance(error, RecursionError) else "is not valid UTF-8"
        raise InvalidRequest(f"the body {reason}") from error
