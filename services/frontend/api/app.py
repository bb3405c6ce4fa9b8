"""The ASGI application of the frontend process: which path is served by what."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.types import ASGIApp

from services.frontend.api import errors, operations
from services.frontend.api.chat import ChatEndpoint
from services.frontend.api.envelope import Envelope
from services.frontend.state import FrontendState
from shared.errors import RequestError


def make_app(state: FrontendState, threads: ThreadPoolExecutor) -> ASGIApp:
    """The application over one process's state. Paths have no trailing slash, and none is redirected to."""
    app = Starlette(
        routes=[
            Route("/v1/chat/completions", ChatEndpoint(state, threads), methods=["POST"]),
            Route("/v1/models", operations.models),
            Route("/v1/models/{name:path}", operations.model),
            Route("/health", operations.health),
            Route("/ready", operations.ready),
            Route("/metrics", operations.metrics),
            Route("/", operations.index),
        ],
        exception_handlers={
            RequestError: errors.answer_request_error,
            HTTPException: errors.answer_http_error,
            Exception: errors.answer_fault,
        },
    )
    app.router.redirect_slashes = False
    app.state.frontend = state
    return Envelope(app)
