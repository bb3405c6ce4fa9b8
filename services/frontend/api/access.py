"""Who may ask: API keys, and the origins whose pages may. Two ASGI layers of the frontend process, off by default.

A refused request is answered before its body is read. Keys are kept as digests and appear in no log and no answer.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from services.frontend.api.errors import error_response, refuse
from services.frontend.meters import Meters
from shared.errors import InvalidRequest

OPEN_PATHS = frozenset({"/", "/health", "/ready", "/metrics", "/version", "/openapi.json"})
OPEN_PREFIX = "/page/"
"""What needs no key: probes, the scrape, the page and what it says of the API. All else does, known or not."""
PREFLIGHT_MAX_AGE_S = 600


class InvalidKey(InvalidRequest):
    """No API key, or none that is known here."""

    code = "invalid_api_key"
    status = 401


class OriginRefused(InvalidRequest):
    """A browser asked whether another site's page may use this server, and it may not."""

    code = "origin_not_allowed"
    status = 400


def _bearer(headers: Headers) -> tuple[bool, str]:
    """Whether there is one `Authorization` header and its scheme is Bearer, and the key in it."""
    given = headers.getlist("authorization")
    scheme, _, key = given[0].partition(" ") if len(given) == 1 else ("", "", "")
    return scheme.lower() == "bearer", key.strip(" ")


def _bears_key(headers: Headers) -> bool:
    """Whether a key came in the right form, be it a known one or not."""
    bearer, key = _bearer(headers)
    return bearer and bool(key)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys that are accepted; none means that everybody is."""

    digests: tuple[bytes, ...]

    @classmethod
    def of(cls, keys: Iterable[str]) -> Keys:
        """Keeps no key itself."""
        return cls(tuple(_digest(key.encode()) for key in keys))

    def accept(self, headers: Headers) -> bool:
        """Whether the one `Authorization` header bears a known key; takes as long for any key."""
        bearer, key = _bearer(headers)
        presented = _digest(key.encode("latin-1"))
        known = False
        for digest in self.digests:
            known |= hmac.compare_digest(digest, presented)
        return known and bearer


@dataclass(frozen=True, slots=True)
class KeyGate:
    """Lets requests with a key through, and those to open paths."""

    app: ASGIApp
    keys: Keys
    meters: Meters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request or refuses it."""
        path = scope.get("path", "")
        if path in OPEN_PATHS or path.startswith(OPEN_PREFIX) or self.keys.accept(Headers(scope=scope)):
            await self.app(scope, receive, send)
            return
        wanted = "this server needs an API key: `Authorization: Bearer KEY`"
        reason = "this API key is not valid" if _bears_key(Headers(scope=scope)) else wanted
        response = refuse(InvalidKey(reason), self.meters)
        response.headers["www-authenticate"] = "Bearer"
        await response(scope, receive, send)


class Origins(CORSMiddleware):
    """Starlette's CORS, with its refusals in OpenAI's form. Cookies play no part: a key is a header of its own."""

    def __init__(self, app: ASGIApp, origins: Iterable[str]) -> None:
        super().__init__(
            app,
            allow_origins=tuple(origins),
            allow_methods=("GET", "POST"),
            allow_headers=("*",),
            expose_headers=("X-Request-Id", "Retry-After"),
            max_age=PREFLIGHT_MAX_AGE_S,
        )

    def preflight_response(self, request_headers: Headers) -> Response:
        """The answer to a browser's question before the request itself."""
        response = super().preflight_response(request_headers)
        if response.status_code == 200:
            return Response(status_code=204, headers=_access_headers(response))
        refusal = error_response(OriginRefused("pages of this origin may not ask this server so"))
        refusal.headers.update(_access_headers(response))
        return refusal


def _access_headers(response: Response) -> dict[str, str]:
    return {name: value for name, value in response.headers.items() if not name.startswith("content-")}


def guarded(app: ASGIApp, meters: Meters, api_keys: Iterable[str], origins: Iterable[str]) -> ASGIApp:
    """The application behind the layers that are wanted; a preflight, which cannot bear a key, is answered before."""
    keys, wanted = Keys.of(api_keys), tuple(origins)
    if keys.digests:
        app = KeyGate(app, keys, meters)
    return Origins(app, wanted) if wanted else app
