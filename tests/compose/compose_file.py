"""Compose files as the tests read them: YAML, variables substituted as compose does, an override laid over its base."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = ROOT / "compose"
_VARIABLE = re.compile(r"\$(?:(\$)|\{(\w+)(?:(:?[-?])([^}]*))?\})")


def substitute(text: str, environment: Mapping[str, str]) -> str:
    """`text` with ${NAME}, ${NAME-x}, ${NAME:-x} and ${NAME:?message} replaced. Raises `KeyError` for the last."""

    def value(found: re.Match[str]) -> str:
        dollar, name, operator, other = found.groups()
        if dollar:
            return "$"
        given = environment.get(name)
        if given is None or (not given and operator and operator.startswith(":")):
            if operator and operator.endswith("?"):
                raise KeyError(name)
            return other or ""
        return given

    return _VARIABLE.sub(value, text)


def _substituted(node: Any, environment: Mapping[str, str]) -> Any:
    if isinstance(node, str):
        return substitute(node, environment)
    if isinstance(node, list):
        return [_substituted(item, environment) for item in node]
    if isinstance(node, dict):
        return {key: _substituted(value, environment) for key, value in node.items()}
    return node


def _laid_over(base: Any, override: Any) -> Any:
    if isinstance(base, dict) and isinstance(override, dict):
        both = {key: _laid_over(base[key], override[key]) for key in base.keys() & override.keys()}
        return {**base, **override, **both}
    if isinstance(base, list) and isinstance(override, list):
        return [*base, *override]
    return override


def read(name: str) -> dict[str, Any]:
    """One compose file as it is written."""
    found: dict[str, Any] = yaml.safe_load((COMPOSE / name).read_text())
    return found


def load(*names: str, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What compose makes of `-f` files and an environment."""
    found: Any = {}
    for name in names:
        found = _laid_over(found, read(name))
    result: dict[str, Any] = _substituted(found, environment or {})
    return result


def variables(node: Any) -> Iterator[tuple[str, str]]:
    """Every variable that a file names, with its default."""
    if isinstance(node, str):
        for dollar, name, _, other in _VARIABLE.findall(node):
            if not dollar:
                yield name, other
    elif isinstance(node, list):
        for item in node:
            yield from variables(item)
    elif isinstance(node, dict):
        for value in node.values():
            yield from variables(value)


def seconds(duration: str) -> float:
    """A compose duration such as 1m30s, in seconds."""
    parts = re.findall(r"(\d+)(h|ms|m|s)", duration)
    if "".join(number + unit for number, unit in parts) != duration:
        raise ValueError(f"{duration!r} is not a duration")
    return sum(int(number) * {"h": 3600, "m": 60, "s": 1, "ms": 1e-3}[unit] for number, unit in parts)
