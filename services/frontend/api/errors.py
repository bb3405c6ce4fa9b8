"""Errors as OpenAI writes them, always below 8 KB and never with content of the request. Frontend process."""

from __future__ import annotations

import msgspec
import structlog
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from services.frontend.api.field_paths import loggable
from services.frontend.api.paths import meant
from services.frontend.meters import Meters
from services.frontend.state import FrontendState
from shared.errors import Overloaded, RequestError, Unavailable

MAXIMUM_MESSAGE = 1_000
MAXIMUM_PARAM = 200
RETRY_AFTER_S = 1

log = structlog.get_logger()


class ErrorDetail(msgspec.Struct):
    """What went wrong: `param` is the field at fault, `code` is stable."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorAnswer(msgspec.Struct):
    """The body of every answer that is an error, and the payload of the frame that ends a stream with one."""

    error: ErrorDetail


def clean(text: str, length: int) -> str:
    """A text that a stranger may have had a hand in, fit for an answer and a log: cut, and printable throughout."""
    return "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in text[:length])


def _document(status: int, message: str, param: str | None, code: str) -> bytes:
    kind = "rate_limit_error" if status == 429 else "invalid_request_error" if status < 500 else "server_error"
    shown = clean(param, MAXIMUM_PARAM) if param else None
    return msgspec.json.encode(ErrorAnswer(ErrorDetail(clean(message, MAXIMUM_MESSAGE), kind, shown, code)))


NOT_HTTP = _document(400, "this is not a valid HTTP request", None, "invalid_http")
"""The body for what cannot even be parsed."""
HEADERS_TOO_LARGE = _document(431, "the request line and headers are larger than 64 KiB", None, "headers_too_large")


def error_body(error: RequestError) -> bytes:
    """{"error": {...}} as JSON: an HTTP body, or the payload of the frame that ends a stream."""
    return _document(error.status, str(error), error.param, error.code)


def error_response(error: RequestError) -> Response:
    """The HTTP response of an error that came before anything was sent."""
    headers = {"retry-after": str(RETRY_AFTER_S)} if isinstance(error, Overloaded | Unavailable) else {}
    if error.status in (408, 413):
        headers["connection"] = "close"  # the rest of the body was not read
    return Response(error_body(error), error.status, headers, "application/json")


def refuse(error: RequestError, meters: Meters) -> Response:
    """The response of a request that never became a flight; counted and logged here."""
    meters.failed.labels(error.code).inc()
    log.info("request.refused", code=error.code, param=loggable(error.param))
    return error_response(error)


async def answer_request_error(request: Request, error: Exception) -> Response:
    """Starlette's handler for every `RequestError`. One that had a flight is counted and logged with it."""
    if not isinstance(error, RequestError):
        return await answer_fault(request, error)
    if hasattr(request.state, "flight"):
        return error_response(error)
    state: FrontendState = request.app.state.frontend
    return refuse(error, state.meters)


async def answer_http_error(request: Request, error: Exception) -> Response:
    """Starlette's handler for unknown paths and methods."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
    path = meant(request.scope["path"]) if status == 404 else None
    nothing = f"there is nothing at this path{f': did you mean {path}?' if path else ''}"
    message = "this method is not allowed here" if status == 405 else nothing
    code = "method_not_allowed" if status == 405 else "not_found"
    return Response(_document(status, message, None, code), status, headers, "application/json")


async def answer_fault(request: Request, error: Exception) -> Response:
    """Starlette's handler for what nobody expected; `Envelope` logs it."""
    return error_response(RequestError("internal error"))
