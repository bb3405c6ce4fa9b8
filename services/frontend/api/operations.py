"""Routes for operators and clients that look around: models, liveness, readiness, metrics, and `/` for now."""

from __future__ import annotations

import asyncio

import orjson
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import Response

from services.frontend.state import FrontendState
from shared.errors import ModelNotFound, Unavailable


def _state(request: Request) -> FrontendState:
    state: FrontendState = request.app.state.frontend
    return state


def _json(content: object, status: int = 200) -> Response:
    return Response(orjson.dumps(content), status, media_type="application/json")


def _model(request: Request) -> dict[str, object]:
    state = _state(request)
    if state.core is None:
        raise Unavailable("the server is loading")
    return {
        "id": state.core.model,
        "object": "model",
        "created": state.started,
        "owned_by": "flare",
        "max_model_len": state.core.context,
    }


async def models(request: Request) -> Response:
    """`GET /v1/models`: the one served model. `max_model_len` as in vLLM."""
    return _json({"object": "list", "data": [_model(request)]})


async def model(request: Request) -> Response:
    """`GET /v1/models/NAME`."""
    found = _model(request)
    if request.path_params["name"] != found["id"]:
        raise ModelNotFound(f"this server serves the model {found['id']}", param="model")
    return _json(found)


async def health(request: Request) -> Response:
    """`GET /health`: this process answers. Whether it can serve is `/ready`'s to say."""
    return _json({"status": "alive"})


async def ready(request: Request) -> Response:
    """`GET /ready`: 200, or 503 with the reason."""
    reason = _state(request).unready(asyncio.get_running_loop().time())
    if reason is None:
        return _json({"status": "ready"})
    return _json({"status": "not ready", "reason": reason}, 503)


async def metrics(request: Request) -> Response:
    """`GET /metrics` in Prometheus' text format."""
    state = _state(request)
    state.meters.refused.set(state.link.refused)
    return Response(generate_latest(state.meters.registry), media_type=CONTENT_TYPE_LATEST)


async def index(request: Request) -> Response:
    """`GET /`: where things are."""
    state = _state(request)
    return _json(
        {
            "service": "flare",
            "model": state.core.model if state.core else None,
            "endpoints": ["/v1/chat/completions", "/v1/models", "/health", "/ready", "/metrics"],
        }
    )
