"""Bounded reading of JSON bodies: a size limit that follows the context, and a time limit. Frontend process.

A body is JSON in UTF-8, uncompressed. A request that says otherwise is refused before anything of it is read; one that
does not say what it sends is taken at its body.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from starlette.requests import Request

from services.frontend.flight import ClientGone
from services.frontend.state import FrontendState
from shared.errors import BodyTooLarge, InvalidRequest, Overloaded

BYTES_PER_TOKEN = 64
"""Generous: JSON escapes may take six bytes for a character, and a token is rarely more than ten characters."""
MINIMUM_LIMIT = 1 << 20
MAXIMUM_BODY_BYTES = 256 << 20
"""Of all bodies together that are being read, or wait to be decoded."""
READ_TIMEOUT_S = 30.0
_KIND = re.compile(r"\s*application/json\s*(;.*)?", re.IGNORECASE)
_CHARSET = re.compile(r';\s*charset\s*=\s*"?([^";\s]*)', re.IGNORECASE)


class BodyTimeout(InvalidRequest):
    """The body did not arrive in time."""

    code = "body_timeout"
    status = 408


def body_limit(context: int) -> int:
    """Bytes that a body may have when prompt and answer may have `context` tokens."""
    return max(MINIMUM_LIMIT, BYTES_PER_TOKEN * context)


class UnsupportedMedia(InvalidRequest):
    """The body is announced as something else than plain JSON."""

    code = "unsupported_media_type"
    status = 415


def _check_kind(request: Request) -> None:
    """Raises `UnsupportedMedia`. What the client announced is not told back."""
    kind = ",".join(request.headers.getlist("content-type"))
    charset = _CHARSET.search(kind)
    foreign = charset is not None and charset.group(1).lower() not in ("utf-8", "utf8")
    if kind and _KIND.fullmatch(kind) is None:
        raise UnsupportedMedia("the body must be JSON: send the header `Content-Type: application/json`")
    if foreign:
        raise UnsupportedMedia(
            "the body must be in the charset UTF-8: send `Content-Type: application/json` without another"
        )
    if any(coding.strip().lower() not in ("", "identity") for coding in request.headers.getlist("content-encoding")):
        raise UnsupportedMedia("the body must not be compressed: send it without a Content-Encoding")


@dataclass(slots=True)
class _Share:
    """What one body takes of the memory that all bodies may have together."""

    state: FrontendState
    held: int = 0

    def take(self, count: int) -> None:
        """Raises `Overloaded`."""
        self.held += count
        self.state.body_bytes += count
        if self.state.body_bytes > MAXIMUM_BODY_BYTES:
            raise Overloaded("too many large requests come at once")

    def release(self) -> None:
        self.state.body_bytes -= self.held
        self.held = 0


async def _read(request: Request, limit: int, share: _Share) -> bytes:
    parts = bytearray()
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        part = message.get("body", b"")
        share.take(len(part))
        parts += part
        if len(parts) > limit:
            raise BodyTooLarge(f"the body is larger than {limit} bytes")
        if not message.get("more_body", False):
            return bytes(parts)


@asynccontextmanager
async def reading_body(request: Request, limit: int, state: FrontendState) -> AsyncIterator[bytes]:
    """The whole body, which counts as held in memory until this is left.

    Raises `UnsupportedMedia`, `BodyTooLarge`, `BodyTimeout`, `Overloaded` or `ClientGone`. What an error leaves unread
    is the connection's business (`connection.py`).
    """
    _check_kind(request)
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced[:20]) > limit:
        raise BodyTooLarge(f"the body is larger than {limit} bytes")
    share = _Share(state)
    try:
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                body = await _read(request, limit, share)
        except TimeoutError as error:
            raise BodyTimeout(f"the body did not arrive within {READ_TIMEOUT_S:.0f} s") from error
        yield body
    finally:
        share.release()
