"""Writing a stream of server-sent events: one coroutine per stream, in the frontend's event loop.

The response starts with the first output, so that an early error still has its HTTP status, or after a moment of
waiting, and then comments keep the connection alive. A client that does not read is given up after a while.
"""

from __future__ import annotations

import asyncio

from starlette.types import Message, Scope, Send

from services.frontend.api.answer import DONE, AnyAnswer, error_frame
from services.frontend.api.errors import error_body
from services.frontend.choices import Choices
from services.frontend.flight import Chunk, ClientGone
from shared.errors import RequestError

FIRST_WAIT_S = 0.5
"""How long an error may still become an HTTP status: the scheduler's refusal takes milliseconds, and who waits for more
than that learns from the headers that the request was taken."""
STALL_S = 60.0
"""How long a client may refuse to read."""
ABORT = "flare.abort"
"""Scope extension: a function that drops the connection with what it has buffered (connection.py)."""

_WAITING = b": waiting\n\n"
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class _Events:
    """The response's body, started by the first write."""

    def __init__(self, scope: Scope, send: Send, opening: bytes) -> None:
        self._scope, self._send, self._opening = scope, send, opening
        self.started = False

    async def write(self, data: bytes, *, more: bool = True) -> None:
        """Sends, waiting while the client's buffers are full. Raises `ClientGone` if they stay so."""
        try:
            async with asyncio.timeout(STALL_S):
                if not self.started:
                    self.started = True
                    await self._send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
                    data = self._opening + data
                message: Message = {"type": "http.response.body", "body": data, "more_body": more}
                await self._send(message)
        except TimeoutError as error:
            abort = self._scope.get("extensions", {}).get(ABORT)
            if abort is not None:
                abort()
                await asyncio.sleep(0)  # the connection's end is told in the next turn of the loop
            raise ClientGone from error


async def _next(choices: Choices, patient: bool, wait: float) -> list[tuple[int, Chunk]] | None:
    """The next chunks, or None when none came within `wait` seconds."""
    try:
        async with asyncio.timeout(wait):
            return await choices.next(patient=patient)
    except TimeoutError:
        return None


async def write_stream(choices: Choices, answer: AnyAnswer, scope: Scope, send: Send, keep_alive: float) -> None:
    """Writes the whole stream, a comment after `keep_alive` seconds without output.

    Raises `RequestError` only while nothing was sent: an error then outweighs what other choices have said.
    """
    events = _Events(scope, send, answer.opening())
    try:
        while True:
            wait = keep_alive if events.started else min(keep_alive, FIRST_WAIT_S)
            found = await _next(choices, events.started, wait)
            if found is None:
                await events.write(_WAITING)
                continue
            data = b"".join(answer.progress(index, chunk) for index, chunk in found)
            if choices.told:
                await events.write(data + answer.closing() + DONE, more=False)
                return
            await events.write(data)
    except RequestError as error:
        if not events.started:
            raise
        await events.write(error_frame(error_body(error)), more=False)
