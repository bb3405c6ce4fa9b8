"""Routes for operators and clients that look around: models, liveness, readiness, metrics, version, and `/`.

In the frontend process. None of them does work that can fail for a request's sake, or that holds the event loop.
"""

from __future__ import annotations

import asyncio
from importlib.metadata import version as installed

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from services.frontend.core import Core
from services.frontend.page import assets as page
from services.frontend.state import FrontendState
from shared.errors import Unavailable
from shared.exposition import Exposition

VERSION = installed("flare-server")


class Model(msgspec.Struct):
    """A served model; `max_model_len` is vLLM's name for the context."""

    id: str
    created: int
    max_model_len: int
    object: str = "model"
    owned_by: str = "flare"


class ModelList(msgspec.Struct):
    """All served models: one."""

    data: list[Model]
    object: str = "list"


class Liveness(msgspec.Struct):
    """This process answers."""

    status: str = "alive"


class Readiness(msgspec.Struct, omit_defaults=True):
    """Whether work would be taken, and if not, why."""

    status: str
    reason: str | None = None


class Version(msgspec.Struct):
    """The version of the server's package."""

    version: str


class Index(msgspec.Struct):
    """Where things are; `model` is null while the server loads."""

    service: str
    model: str | None
    endpoints: list[str]


def _state(request: Request) -> FrontendState:
    state: FrontendState = request.app.state.frontend
    return state


def _json(content: msgspec.Struct, status: int = 200) -> Response:
    return Response(msgspec.json.encode(content), status, media_type="application/json")


def _core(request: Request) -> Core:
    core = _state(request).core
    if core is None:
        raise Unavailable("the server is loading")
    return core


def _model(request: Request) -> Model:
    core = _core(request)
    return Model(core.model, _state(request).started, core.context)


async def models(request: Request) -> Response:
    """`GET /v1/models`: the one served model."""
    return _json(ModelList([_model(request)]))


async def model(request: Request) -> Response:
    """`GET /v1/models/NAME`."""
    name = request.path_params["name"]
    if not name:
        raise HTTPException(404)
    _core(request).check_model(name)
    return _json(_model(request))


async def health(request: Request) -> Response:
    """`GET /health`: this process answers. Whether it can serve is `/ready`'s to say."""
    return _json(Liveness())


async def ready(request: Request) -> Response:
    """`GET /ready`: 200, or 503 with the reason."""
    reason = _state(request).unready(asyncio.get_running_loop().time())
    return _json(Readiness("ready")) if reason is None else _json(Readiness("not ready", reason), 503)


async def metrics(request: Request) -> Response:
    """`GET /metrics` in Prometheus' text format. Rendered in a thread, as streams go on meanwhile."""
    exposition: Exposition = request.app.state.exposition
    return Response(await asyncio.to_thread(exposition.render), media_type=CONTENT_TYPE_LATEST)


async def version(request: Request) -> Response:
    """`GET /version`."""
    return _json(Version(VERSION))


async def index(request: Request) -> Response:
    """`GET /`: the chat page for who shows HTML, else where things are."""
    if page.wants_page(request):
        return page.answer(request, page.assets()["index.html"])
    state = _state(request)
    paths = [route.path for route in request.app.routes if route.include_in_schema and "{" not in route.path]
    response = _json(Index("flare", state.core.model if state.core else None, sorted(set(paths) - {"/"})))
    response.headers["vary"] = "accept"
    return response
