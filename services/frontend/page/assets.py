"""The chat page: its files in memory, and how they are answered. Frontend process; no state, nothing from elsewhere.

The page may load only what lies beside it and talk only to this server: its policy forbids all else, inline code too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

TYPES: Mapping[str, str] = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""What is part of the page, and its media type; other files of this folder are not served."""

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """One file of the page."""

    body: bytes
    media_type: str
    etag: str


@cache
def assets() -> Mapping[str, Asset]:
    """The page's files by name, read once a process."""
    found = {}
    for path in sorted(Path(__file__).parent.iterdir()):
        if path.suffix in TYPES:
            body = path.read_bytes()
            found[path.name] = Asset(body, TYPES[path.suffix], f'"{hashlib.sha256(body).hexdigest()[:32]}"')
    return found


def answer(request: Request, asset: Asset) -> Response:
    """The asset, or 304 if the client has it."""
    headers = {**_HEADERS, "etag": asset.etag, "vary": "accept"}
    known = {tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")}
    if known & {asset.etag, "*"}:
        return Response(status_code=304, headers=headers)
    return Response(asset.body, headers=headers, media_type=asset.media_type)


async def part(request: Request) -> Response:
    """`GET /page/NAME`. Raises `HTTPException` 404."""
    asset = assets().get(request.path_params["name"])
    if asset is None:
        raise HTTPException(404)
    return answer(request, asset)


def _quality(accepted: str, media_type: str) -> float:
    """How much a client that names a media type in `Accept` wants it: 0 to 1, and 0 if it does not name it."""
    for entry in accepted.split(","):
        name, *parameters = (field.strip() for field in entry.lower().split(";"))
        if name != media_type:
            continue
        given = [field.removeprefix("q=") for field in parameters if field.startswith("q=")]
        try:
            return float(given[0]) if given else 1.0
        except ValueError:
            return 0.0
    return 0.0


def wants_page(request: Request) -> bool:
    """Whether this client shows HTML: it names it, and not JSON before it. A browser does, curl does not."""
    accepted = request.headers.get("accept", "")
    return _quality(accepted, "text/html") > _quality(accepted, "application/json")
