"""What is wrong with a body, in JSON's words: msgspec's refusals, and what a misspelt field may have meant. Pure.

In the frontend process. No content of the body is told back but the name of a field, cut and printable.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect

from services.frontend.api.known import NOT_BUILT, printable
from shared.errors import InvalidRequest

_PATH = re.compile(r" - at `(key in )?\$\.?(.*)`$", re.DOTALL)
_UNKNOWN = re.compile(r"^Object contains unknown field `(.*)`$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(\w+)`$")
_KIND = re.compile(r"^Expected `([\w |]+)`, got `(\w+)`$")
_BOUND = re.compile(r"^Expected `(\w+)`( of length)? (>=|<=|>|<) (\S+)$")
_BOUND_WORDS = {">=": "at least", "<=": "at most", ">": "above", "<": "below"}
_UNITS = {"str": "characters", "array": "items", "object": "items"}
_KINDS = {
    "int": "an integer", "float": "a number", "str": "a string", "bool": "a boolean", "array": "an array",
    "object": "an object", "null": "null",
}  # fmt: skip
_LIKENESS = 0.75
"""Of 1: what a misspelt name must have in common with the name that is meant."""
_VALUES = "[...]"
"""msgspec's word for any value of a mapping."""


def fields(kind: Any) -> frozenset[str]:
    """Names of a struct's fields, as clients write them."""
    return frozenset(field.encode_name for field in msgspec.structs.fields(kind))


def unknown(path: str, known: Iterable[str]) -> InvalidRequest:
    """The refusal of a field that nobody knows. `path` is printable; `known` are names that could have been meant."""
    names = {name.replace("_", ""): name for name in sorted(known)}
    bare = path.rpartition(".")[2].lower().replace("_", "").replace("-", "")
    meant = difflib.get_close_matches(bare, names, 1, _LIKENESS)
    hint = f"; did you mean {names[meant[0]]}?" if meant else ""
    return InvalidRequest(f"Unrecognized request argument supplied: {path}{hint}", param=path)


def _structs(kind: inspect.Type) -> Iterator[inspect.StructType]:
    """The structs that a value of this type, or of its items, may be."""
    if isinstance(kind, inspect.StructType):
        yield kind
    elif isinstance(kind, inspect.Metadata):
        yield from _structs(kind.type)
    elif isinstance(kind, inspect.UnionType):
        for one in kind.types:
            yield from _structs(one)
    elif isinstance(kind, inspect.ListType):
        yield from _structs(kind.item_type)


@cache
def _inside(kind: Any, path: str) -> frozenset[str]:
    """Names that an object at a path of fields has."""
    level = list(_structs(inspect.type_info(kind)))
    for piece in filter(None, path.split(".")):
        inner = [field.type for struct in level for field in struct.fields if field.encode_name == piece]
        level = [struct for one in inner for struct in _structs(one)]
    return frozenset(field.encode_name for struct in level for field in struct.fields)


def _bound(what: str, found: re.Match[str]) -> str:
    kind, length, relation, value = found.groups()
    value = value.removesuffix(".0")
    if not length:
        return f"{what} must be {_BOUND_WORDS[relation]} {value}"
    if (relation, value) == (">=", "1"):
        return f"{what} must not be empty"
    return f"{what} must have {_BOUND_WORDS[relation]} {value} {_UNITS.get(kind, 'items')}"


def _kind(what: str, expected: list[str], got: str) -> str:
    """Kinds in JSON's words, null last; 5.0 is no integer."""
    words = [_KINDS.get(kind, kind) for kind in expected]
    listed = " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))
    fraction = got == "float" and "int" in expected
    return f"{what} must be {listed}, not {_KINDS.get(got, got)}{' with a fraction or an exponent' if fraction else ''}"


def _sentence(path: str, reason: str) -> str:
    """The reason in words, with the field in front."""
    plain = path.replace(_VALUES, "")
    what = f"each value of {plain}" if path.endswith(_VALUES) else plain or "the body"
    bound, kind = _BOUND.match(reason), _KIND.match(reason)
    if bound is not None:
        return _bound(what, bound)
    if kind is not None:
        return _kind(what, kind[1].split(" | "), kind[2])
    return f"{what} is out of range" if reason == "Number out of range" else f"{what}: {reason}"


def explain(error: msgspec.ValidationError, kind: Any) -> InvalidRequest:
    """msgspec's refusal of a body that should be a `kind`, in words, and the path as the field.

    In a mapping the field is the mapping, since its keys are the client's own text.
    """
    text = str(error)
    found = _PATH.search(text)
    path = found[2] if found else ""
    reason = text[: found.start()] if found else text
    plain = path.replace(_VALUES, "")
    stranger, missing = _UNKNOWN.match(reason), _MISSING.match(reason)
    if stranger is not None:
        names = _inside(kind, re.sub(r"\[[^\]]*\]", "", path)) or frozenset(NOT_BUILT)
        return unknown(f"{plain}.{printable(stranger[1])}".lstrip("."), names)
    if missing is not None:
        full = f"{plain}.{missing[1]}".lstrip(".")
        return InvalidRequest(f"{full} is required", param=full)
    return InvalidRequest(_sentence(path, reason), param=plain or None)
