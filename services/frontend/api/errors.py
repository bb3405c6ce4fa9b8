"""Errors as OpenAI writes them, always below 8 KB and never with content of the request. Frontend process."""

from __future__ import annotations

import orjson
import structlog
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from services.frontend.state import FrontendState
from shared.errors import Overloaded, RequestError, Unavailable

MAXIMUM_MESSAGE = 1_000
MAXIMUM_PARAM = 200
RETRY_AFTER_S = 1

log = structlog.get_logger()


def _document(status: int, message: str, param: str | None, code: str) -> bytes:
    kind = "rate_limit_error" if status == 429 else "invalid_request_error" if status < 500 else "server_error"
    shown = param[:MAXIMUM_PARAM] if param else None
    return orjson.dumps({"error": {"message": message[:MAXIMUM_MESSAGE], "type": kind, "param": shown, "code": code}})


def error_body(error: RequestError) -> bytes:
    """{"error": {...}} as JSON: an HTTP body, or the payload of the frame that ends a stream."""
    return _document(error.status, str(error), error.param, error.code)


def error_response(error: RequestError) -> Response:
    """The HTTP response of an error that came before anything was sent."""
    headers = {"retry-after": str(RETRY_AFTER_S)} if isinstance(error, Overloaded | Unavailable) else {}
    if error.status in (408, 413):
        headers["connection"] = "close"  # the rest of the body was not read
    return Response(error_body(error), error.status, headers, "application/json")


async def answer_request_error(request: Request, error: Exception) -> Response:
    """Starlette's handler for every `RequestError`. One that had a flight is counted and logged with it."""
    if not isinstance(error, RequestError):
        return await answer_fault(request, error)
    if not hasattr(request.state, "flight"):
        state: FrontendState = request.app.state.frontend
        state.meters.failed.labels(error.code).inc()
        log.info("request.refused", code=error.code, param=(error.param or "")[:MAXIMUM_PARAM])
    return error_response(error)


async def answer_http_error(request: Request, error: Exception) -> Response:
    """Starlette's handler for unknown paths and methods."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
    message = "this method is not allowed here" if status == 405 else "there is nothing at this path"
    code = "method_not_allowed" if status == 405 else "not_found"
    return Response(_document(status, message, None, code), status, headers, "application/json")


async def answer_fault(request: Request, error: Exception) -> Response:
    """Starlette's handler for what nobody expected; `Envelope` logs it."""
    return error_response(RequestError("internal error"))
