"""Copy drafts from a request's own context: an index of its prompt and of what it generated. Pure.

The same eight-then-four rule as the shared ring, over one request's tokens; nothing of it outlives the request. Where
the text has begun to repeat itself the continuation runs into its own end and goes on periodically.
"""

from __future__ import annotations

import numpy as np

from services.scheduler.continuations import CONTINUATION, LONG, SHORT, Continuation, Tokens
from shared.frames import Source

_ITEM = 4


class PromptCopies:
    """`tokens` int32 is the request's buffer; only its first `advance`d tokens are read."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._indexed = 0
        self._index: dict[bytes, int] = {}
        """The last eight, and the last four, tokens before a position -> the most recent such position."""

    def advance(self, known: int) -> None:
        """Indexes tokens up to `known`. Each is indexed once, whatever order requests are replayed in."""
        for length in (LONG, SHORT):
            first = max(length, self._indexed)
            if first + 1 == known:  # a round of one token
                self._index[self._tokens[first - length : first].tobytes()] = first
            elif first < known:
                data = self._tokens[first - length : known].tobytes()
                size = length * _ITEM
                keys = (data[at : at + size] for at in range(0, (known - first) * _ITEM, _ITEM))
                self._index.update(zip(keys, range(first, known), strict=True))
        self._indexed = max(self._indexed, known)

    def find(self, known: int) -> Continuation | None:
        """What followed the most recent occurrence of the last tokens of the first `known`."""
        for length in (LONG, SHORT):
            if known <= length:
                continue
            start = self._index.get(self._tokens[known - length : known].tobytes())
            if start is not None and start < known:
                found = self._tokens[start : min(start + CONTINUATION, known)]
                if len(found) < CONTINUATION:
                    found = np.resize(found, CONTINUATION)
                return Continuation(found, length, Source.PROMPT)
        return None
