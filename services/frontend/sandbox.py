"""The sandbox in which chat templates run, with Hugging Face's conventions and with bounds. Frontend, worker threads.

A template is code of the checkpoint's author over text of a stranger: it may neither change objects nor reach
attributes outside the sandbox, nor make huge values, nor go on for long. Each breach is a `TemplateError`.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, ClassVar, NoReturn

from jinja2 import TemplateError
from jinja2.exceptions import SecurityError
from jinja2.ext import loopcontrols
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

RENDER_SECONDS = 10.0
"""Time that one rendering may take; ten thousand turns take a fraction of a second."""
LARGEST_PRODUCT = 1 << 20
"""Items or characters of a string or list that `*` may make, and bits of a number."""

_TOO_LONG, _TOO_LARGE = "it takes too long", "it makes too large a value"
SAYINGS = (_TOO_LONG, _TOO_LARGE, "no reason given")
"""What an error of the sandbox itself may say."""

_running = threading.local()
_ESCAPED = re.compile("[^\x00-\x7f\ufdd0-\ufdef]")


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As transformers has it: plain JSON, without the HTML escapes of jinja2's own filter.

    Noncharacters are not escaped even so: they are our marks around text of the client.
    """
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)
    return _ESCAPED.sub(lambda found: json.dumps(found.group())[1:-1], text) if ensure_ascii else text


@contextmanager
def timed() -> Iterator[None]:
    """Bounds what templates of this thread do inside."""
    _running.deadline = time.monotonic() + RENDER_SECONDS
    try:
        yield
    finally:
        del _running.deadline


def _in_time() -> None:
    if time.monotonic() > getattr(_running, "deadline", float("inf")):
        raise SecurityError(_TOO_LONG)


def _size(value: Any) -> int:
    return value.bit_length() if isinstance(value, int) else len(value) if hasattr(value, "__len__") else 1


def _made(operator: str, left: Any, right: Any) -> int:
    """The size of a power or a product, of numbers or of a sequence and a number; at least about."""
    if operator == "**":
        return _size(left) * max(right, 0) if isinstance(left, int) and isinstance(right, int) else 0
    sequence, times = (right, left) if isinstance(left, int) else (left, right)
    if isinstance(sequence, int | float):
        return _size(left) + _size(right)
    return _size(sequence) * max(times, 0) if isinstance(times, int) else 0


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja2's own sandbox, which bounds `range`, and the bounds above. Shared by threads."""

    intercepted_binops: ClassVar[frozenset[str]] = frozenset(("*", "**"))  # type: ignore[misc]

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        self.filters["tojson"] = _tojson
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """`*` and `**` with a bound on what they make."""
        if _made(operator, left, right) > LARGEST_PRODUCT:
            raise SecurityError(_TOO_LARGE)
        return super().call_binop(context, operator, left, right)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """An attribute, while there is time."""
        _in_time()
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """An item, while there is time."""
        _in_time()
        return super().getitem(obj, argument)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """A call, while there is time."""
        _in_time()
        return super().call(__context, __obj, *args, **kwargs)
