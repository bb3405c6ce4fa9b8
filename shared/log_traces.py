"""Tracebacks for the log, without what an exception says when that could be a part of a request. Every process.

Libraries put values into the messages of their exceptions; where those values may be a prompt's text, only the places
and the kinds of exceptions are told.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator

from shared.errors import FlareError, RequestError

WITHHELD = "(withheld: may hold content)"
OPERATIONAL = (RuntimeError, MemoryError, ImportError)
"""With these a device, memory or a library says that it fails. Others quote the value they fell over."""


def message_of(error: BaseException, withhold: bool, told: tuple[type[BaseException], ...] = ()) -> str:
    """What an exception says, or with `withhold` only what cannot be content: our own errors, the system's, and `told`.

    `told` is `OPERATIONAL` where there is no text, in scheduler and worker.
    """
    if (
        not withhold
        or isinstance(error, told)
        or (isinstance(error, FlareError) and not isinstance(error, RequestError))
    ):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return WITHHELD if str(error) else ""


def _chain(
    error: BaseException, withhold: bool, told: tuple[type[BaseException], ...], seen: set[int]
) -> Iterator[str]:
    """Oldest first, each exception once."""
    seen.add(id(error))
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if before is not None and id(before) not in seen:
        yield from _chain(before, withhold, told, seen)
        yield "\nwhich led to:\n"
    yield from traceback.format_tb(error.__traceback__)
    message = message_of(error, withhold, told)
    kind = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
    yield f"{kind}: {message}" if message else kind
    if isinstance(error, BaseExceptionGroup):
        for child in error.exceptions:
            if id(child) not in seen:
                yield f"\nin {kind}:\n"
                yield from _chain(child, withhold, told, seen)


def trace(error: BaseException, withhold: bool, told: tuple[type[BaseException], ...] = ()) -> str:
    """The tracebacks of an exception, of those that led to it and of those in it; their messages as `message_of`."""
    return "".join(_chain(error, withhold, told, set()))
