"""The HTTP end of the frontend process: a socket bound before anything is loaded, and uvicorn over it.

uvicorn bounds neither the size nor the time of request headers, so its protocol is narrowed here; and its signal
handlers are left out, because draining is this service's own business.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

import structlog
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from services.frontend.api.stream import ABORT
from shared.errors import ProcessError

HEADER_TIMEOUT_S = 15.0
MAXIMUM_HEADER_BYTES = 64 << 10
KEEP_ALIVE_S = 75
BACKLOG = 2048


class BoundedProtocol(HttpToolsProtocol):
    """Drops a connection whose request line and headers take too long or too many bytes."""

    _deadline: asyncio.TimerHandle | None = None
    _unparsed = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._deadline is None and (self.cycle is None or self.cycle.response_complete):
            self._await_headers()
        self._unparsed += len(data)
        super().data_received(data)
        if self._deadline is not None and self._unparsed > MAXIMUM_HEADER_BYTES:
            self.transport.abort()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        # What a pipelining client sends next is bounded by uvicorn itself, which stops reading then.
        cast("dict[str, Any]", self.scope)["extensions"] = {ABORT: self.transport.abort}

    def on_headers_complete(self) -> None:
        self._disarm()
        super().on_headers_complete()

    def _await_headers(self) -> None:
        self._unparsed = 0
        self._deadline = self.loop.call_later(HEADER_TIMEOUT_S, self.transport.abort)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class Listener(uvicorn.Server):
    """uvicorn without its signal handlers: `service.py` has its own."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class _Forward(logging.Handler):
    """Warnings of uvicorn and asyncio become events of our own log."""

    def emit(self, record: logging.LogRecord) -> None:
        log = structlog.get_logger()
        error = record.exc_info[1] if record.exc_info else None
        log.warning("library.warning", logger=record.name, message=record.getMessage()[:500], exc_info=error)


def forward_logs() -> None:
    """Sends the standard library's warnings to structlog, instead of to stderr in a form of their own."""
    for name in ("uvicorn", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers = [_Forward()]
        logger.setLevel(logging.WARNING)
        logger.propagate = False


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. Raises `ProcessError` when the address cannot be had."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        bound = socket.socket(family, socket.SOCK_STREAM)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
            bound.listen(BACKLOG)
        except OSError:
            bound.close()
            raise
    except OSError as error:
        raise ProcessError(f"cannot listen at {host}:{port}: {error.strerror or error}") from error
    bound.setblocking(False)
    return bound


def make_listener(app: ASGIApp) -> Listener:
    """uvicorn over an application; give it the bound socket in `serve`."""
    return Listener(
        uvicorn.Config(
            cast(Any, app),
            http=BoundedProtocol,
            loop="uvloop",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=2,
        )
    )
