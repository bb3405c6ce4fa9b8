"""Bounded reading of request bodies: a size limit that follows the context, and a time limit. Frontend process."""

from __future__ import annotations

import asyncio

from starlette.requests import Request

from services.frontend.flight import ClientGone
from shared.errors import BodyTooLarge, InvalidRequest

BYTES_PER_TOKEN = 64
"""Generous: JSON escapes may take six bytes for a character, and a token is rarely more than ten characters."""
MINIMUM_LIMIT = 1 << 20
READ_TIMEOUT_S = 30.0
LINGER_BYTES = 4 << 20
LINGER_S = 1.0


class BodyTimeout(InvalidRequest):
    """The body did not arrive in time."""

    code = "body_timeout"
    status = 408


def body_limit(context: int) -> int:
    """Bytes that a body may have when prompt and answer may have `context` tokens."""
    return max(MINIMUM_LIMIT, BYTES_PER_TOKEN * context)


async def _discard(request: Request) -> None:
    """Reads on for a moment, since closing on unread data would reset the connection before the answer is read."""
    taken = 0
    try:
        async with asyncio.timeout(LINGER_S):
            while taken < LINGER_BYTES:
                message = await request.receive()
                taken += len(message.get("body", b""))
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    return
    except TimeoutError:
        return


async def _read(request: Request, limit: int) -> bytes:
    parts = bytearray()
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        parts += message.get("body", b"")
        if len(parts) > limit:
            parts.clear()
            if message.get("more_body", False):
                await _discard(request)
            raise BodyTooLarge(f"the body is larger than {limit} bytes")
        if not message.get("more_body", False):
            return bytes(parts)


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body. Raises `BodyTooLarge`, `BodyTimeout` or `ClientGone`."""
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced[:20]) > limit:
        await _discard(request)
        raise BodyTooLarge(f"the body is larger than {limit} bytes")
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            return await _read(request, limit)
    except TimeoutError as error:
        raise BodyTimeout(f"the body did not arrive within {READ_TIMEOUT_S:.0f} s") from error
