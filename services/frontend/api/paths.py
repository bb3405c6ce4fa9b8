"""Which path of this API a client may have meant with one that does not exist. Pure; frontend process.

Only paths of `surface.py` are ever told back.
"""

from __future__ import annotations

import difflib

from services.frontend.api.surface import OPERATIONS

_LIKENESS = 0.85
"""Of 1: what a misspelt path must have in common with one of ours."""
_LONGEST = 100
"""Characters of a path that are looked at."""


def _bare(path: str) -> str:
    """A path without what clients add, leave out or double: a host's own prefix, `/v1`, slashes, capitals."""
    pieces = [piece for piece in path.lower().split("/") if piece]
    while "v1" in pieces:
        pieces = pieces[pieces.index("v1") + 1 :]
    return "/".join(pieces)


_PATHS = {
    bare: operation.path for operation in OPERATIONS if "{" not in operation.path if (bare := _bare(operation.path))
}


def meant(path: str) -> str | None:
    """The path of ours that this one comes close to, if any."""
    close = difflib.get_close_matches(_bare(path[:_LONGEST]), _PATHS, 1, _LIKENESS)
    return _PATHS[close[0]] if close else None
