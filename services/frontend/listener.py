"""The HTTP end of the frontend process: a socket bound before anything is loaded, and uvicorn over it.

uvicorn's protocol is narrowed in `connection.py`; its signal handlers are left out, because draining is this service's
own business.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

import structlog
import uvicorn
from starlette.types import ASGIApp

from services.frontend.connection import BoundedProtocol
from shared.errors import ProcessError

KEEP_ALIVE_S = 75
BACKLOG = 2048


class Listener(uvicorn.Server):
    """uvicorn without its signal handlers: `service.py` has its own."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


_NOT_HTTP = "Invalid HTTP request received."


class _Forward(logging.Handler):
    """Warnings of uvicorn and asyncio become events of our own log."""

    def emit(self, record: logging.LogRecord) -> None:
        log = structlog.get_logger()
        if record.msg == _NOT_HTTP:
            log.debug("http.invalid")  # the client was told; a port scan must not fill the log
            return
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
