"""The outermost ASGI layer of the frontend: request ids in and out, log context, and the last word on a fault."""

from __future__ import annotations

from dataclasses import dataclass, field

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.frontend.request_ids import RequestIds

log = structlog.get_logger()


def _wanted_id(scope: Scope) -> str | None:
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            return str(value, "latin-1")
    return None


@dataclass(slots=True)
class Envelope:
    """Wraps the application. The id of a request is in `scope["state"]["request_id"]` and in the response."""

    app: ASGIApp
    ids: RequestIds = field(default_factory=RequestIds)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one HTTP request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = self.ids.take(_wanted_id(scope))
        scope.setdefault("state", {})["request_id"] = request_id
        started = False

        async def send_named(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
            await send(message)

        with structlog.contextvars.bound_contextvars(request=request_id):
            try:
                await self.app(scope, receive, send_named)
            except Exception:
                # Top of one request: whatever went wrong is logged and costs this request, not the server.
                log.exception("request.fault", path=scope["path"][:100])
                if not started:
                    raise
