"""One HTTP connection of the frontend: uvicorn's protocol, narrowed where it is without bounds. Event loop only.

Bounded are the size and time of headers, what is read of a body that nobody wants any more, and what a pipelining
client may send ahead. A connection is closed so that its last answer can be read, and every request on it learns that
the client is gone. It knows nothing of what the requests are about.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from typing import Any, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from services.frontend.api.errors import HEADERS_TOO_LARGE, NOT_HTTP
from services.frontend.api.stream import ABORT

HEADER_TIMEOUT_S = 15.0
MAXIMUM_HEADER_BYTES = 64 << 10
LINGER_S = 1.0
LINGER_BYTES = 4 << 20
"""How long, and for how many bytes, the rest of an unwanted body is read: closing on unread data would reset the
connection, and the client might lose the answer."""
MAXIMUM_PIPELINED = 64
PIPELINED_BODY_BYTES = 64 << 10


class _HeadersTooLarge(Exception):
    """Ends the parsing of a request."""


class _Transport(asyncio.Transport):
    """A transport whose `close` asks its protocol first, which may want to read on for a moment."""

    def __init__(self, inner: asyncio.Transport, protocol: BoundedProtocol) -> None:
        super().__init__()
        self._inner, self._protocol = inner, protocol
        self.closing = False
        """Our side is shut; what comes is thrown away."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._inner.get_extra_info(name, default)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self.closing:
            self._inner.write(data)

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def pause_reading(self) -> None:
        self._inner.pause_reading()

    def resume_reading(self) -> None:
        self._inner.resume_reading()

    def is_closing(self) -> bool:
        return self.closing or self._inner.is_closing()

    def abort(self) -> None:
        self._inner.abort()

    def close(self) -> None:
        if not self.closing and not self._inner.is_closing() and self._protocol.body_is_coming():
            self.closing = True
            self._inner.write_eof()
            self._protocol.linger()
        else:
            self._inner.close()


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with the bounds of this module."""

    _deadline: asyncio.TimerHandle | None = None
    _lingering = False
    _broken = False
    _unparsed = 0
    _data = b""
    _served: RequestResponseCycle | None = None
    """The request that is being answered; `cycle` is the one that is being read."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(_Transport(transport, self))
        self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        served = self._served
        if served is not None and not served.response_complete:
            served.disconnected = True  # uvicorn tells only the request that was read last
            served.message_event.set()
        self.pipeline.clear()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unparsed += len(data)
        if self._lingering:
            if self._unparsed > LINGER_BYTES:
                self.transport.abort()
                return
            if cast(_Transport, self.transport).closing:
                return
        elif self._deadline is None and self._is_idle():
            self._await_headers()
            self._unparsed = len(data)
        self._data = data
        super().data_received(data)
        self._data = b""
        if self._deadline is not None and not self._lingering and self._unparsed > MAXIMUM_HEADER_BYTES:
            self._refuse("431 Request Header Fields Too Large", HEADERS_TOO_LARGE)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        cast("dict[str, Any]", self.scope)["extensions"] = {ABORT: self.transport.abort}

    def on_headers_complete(self) -> None:
        if self._offers_upgrade():
            return  # it comes again, without the offer
        self._disarm()
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > MAXIMUM_HEADER_BYTES:
            raise _HeadersTooLarge  # they came in one piece
        waiting = len(self.pipeline)
        super().on_headers_complete()
        if len(self.pipeline) > waiting:
            self.flow.resume_reading()  # or the end of the connection would not be seen
            if waiting >= MAXIMUM_PIPELINED:
                self.transport.abort()

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        if self.pipeline and self.cycle is not self._served:
            self.flow.resume_reading()
            if len(self.cycle.body) > PIPELINED_BODY_BYTES:
                self.transport.abort()

    def on_message_complete(self) -> None:
        if self._offers_upgrade():
            return
        super().on_message_complete()
        self.cycle.more_body = False  # uvicorn does not say so once the answer is complete
        if self._lingering:
            self._disarm()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.transport.is_closing() and not self.pipeline and self._is_idle() and self.body_is_coming():
            self.linger()

    def send_400_response(self, msg: str) -> None:
        error = sys.exception()
        if error is not None and isinstance(error.__context__, _HeadersTooLarge):
            self._refuse("431 Request Header Fields Too Large", HEADERS_TOO_LARGE)
        else:
            self._refuse("400 Bad Request", NOT_HTTP)

    def _refuse(self, status: str, body: bytes) -> None:
        """Answers what no application sees, and closes."""
        served = self._served
        if served is not None and served.response_started and not served.response_complete:
            self.transport.abort()  # an error in the midst of another answer would be taken for a part of it
            return
        self._broken = True
        head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(f"{head}connection: close\r\n\r\n".encode() + body)
        self.transport.close()

    def body_is_coming(self) -> bool:
        """Whether the request that was read last has a body still to come, or nobody can tell."""
        return self._broken or (self.cycle is not None and self.cycle.more_body)

    def linger(self) -> None:
        """Reads on and throws away, for a moment; then drops the connection unless the body has ended."""
        self._disarm()
        self._lingering, self._unparsed = True, 0
        self.flow.resume_reading()
        self._deadline = self.loop.call_later(LINGER_S, self.transport.abort)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._served = cycle
        super()._start_asgi_task(cycle, app)

    def _offers_upgrade(self) -> bool:
        return bool(self.parser.should_upgrade()) and self.parser.get_method() != b"CONNECT"

    def _unsupported_upgrade_warning(self) -> None:
        """Takes a request as if it had offered no upgrade, as some clients do with every request.

        The parser, which calls what follows its headers another protocol, has stopped before the body.
        """
        if self.transport.is_closing():
            return
        offset = cast(int, cast(BaseException, sys.exception()).args[0])
        head = [self.parser.get_method() + b" " + self.url + b" HTTP/" + self.parser.get_http_version().encode()]
        head += [name + b": " + value for name, value in self.headers if name != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self._data = b"\r\n".join((*head, b"", b"")) + self._data[offset:]
        super().data_received(self._data)

    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _await_headers(self) -> None:
        self._unparsed = 0
        self._deadline = self.loop.call_later(HEADER_TIMEOUT_S, self.transport.abort)

    def _disarm(self) -> None:
        self._lingering = False
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
