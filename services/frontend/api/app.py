"""The ASGI application of the frontend process: which path is served by what."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.types import ASGIApp

from services.frontend.api import errors, openapi, operations
from services.frontend.api.access import guarded
from services.frontend.api.chat_answer import ChatAnswer
from services.frontend.api.endpoint import GenerationEndpoint
from services.frontend.api.envelope import Envelope
from services.frontend.api.order import take_chat, take_completion
from services.frontend.api.text_answer import TextAnswer
from services.frontend.api.tokens import TextEndpoint, take_text, take_tokens
from services.frontend.config import FrontendConfig
from services.frontend.page import assets as page
from services.frontend.state import FrontendState
from shared.errors import RequestError
from shared.exposition import Exposition


def routes(state: FrontendState, threads: ThreadPoolExecutor) -> list[Route]:
    """Every path. Those in the schema are in `surface.py` too, and a test says so."""
    chat = GenerationEndpoint(state, threads, take_chat, ChatAnswer, "messages")
    completions = GenerationEndpoint(state, threads, take_completion, TextAnswer, "prompt")
    return [
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/v1/completions", completions, methods=["POST"]),
        Route("/tokenize", TextEndpoint(state, threads, take_text), methods=["POST"]),
        Route("/detokenize", TextEndpoint(state, threads, take_tokens), methods=["POST"]),
        Route("/v1/models", operations.models),
        Route("/v1/models/{name:path}", operations.model),
        Route("/health", operations.health),
        Route("/ready", operations.ready),
        Route("/metrics", operations.metrics),
        Route("/version", operations.version),
        Route("/openapi.json", openapi.answer),
        Route("/", operations.index),
        Route("/page/{name}", page.part, include_in_schema=False),
    ]


def make_app(
    state: FrontendState, exposition: Exposition, threads: ThreadPoolExecutor, config: FrontendConfig
) -> ASGIApp:
    """The application over one process's state. Paths have no trailing slash, and none is redirected to."""
    app = Starlette(
        routes=routes(state, threads),
        exception_handlers={
            RequestError: errors.answer_request_error,
            HTTPException: errors.answer_http_error,
            Exception: errors.answer_fault,
        },
    )
    app.router.redirect_slashes = False
    app.state.frontend = state
    app.state.exposition = exposition
    return Envelope(guarded(app, state.meters, config.api_keys, config.cors_origins))
