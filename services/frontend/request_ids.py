"""Request ids: a client's own `X-Request-Id`, if it is clean and new, else one of ours. Frontend process.

The id travels through all services and logs, and scheduler and frontend key their tables by it, so it must be unique in
this process for as long as anything may still refer to it.
"""

from __future__ import annotations

import re
import secrets
from collections import OrderedDict
from dataclasses import dataclass, field

REMEMBERED = 8192
_CLEAN = re.compile(r"[A-Za-z0-9_.:-]{1,64}")


@dataclass(slots=True)
class RequestIds:
    """Hands out ids and remembers the most recent ones."""

    _recent: OrderedDict[str, None] = field(default_factory=OrderedDict)

    def take(self, wanted: str | None) -> str:
        """`wanted`, if it can be used as it is; with a suffix, if it was used lately; else a fresh id."""
        if wanted is None or not _CLEAN.fullmatch(wanted):
            chosen = secrets.token_hex(12)
        elif wanted in self._recent:
            chosen = f"{wanted}-{secrets.token_hex(4)}"
        else:
            chosen = wanted
        self._recent[chosen] = None
        if len(self._recent) > REMEMBERED:
            self._recent.popitem(last=False)
        return chosen
