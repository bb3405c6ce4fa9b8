"""The ring of recently committed output, shared by all requests, in which copy drafts are looked up. Pure.

Only acknowledged output enters (never prompts, rejected drafts, failed rounds or text behind a stop string). Responses
may interleave: each token links to the next of its own response, so a continuation never crosses a response's border.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from services.scheduler.continuations import CONTINUATION, LONG, SHORT, Continuation, Tokens
from shared.frames import Source

CAPACITY = 65_536
NONE = -1
_ITEM = 4


@dataclass(slots=True)
class Response:
    """One response's end in the ring: its last eight tokens as int32 bytes, and the position of the last."""

    suffix: bytes = b""
    last: int = NONE


class DecodedHistory:
    """Positions count all tokens ever stored; position p lies in row p % capacity while it is retained."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._count = 0
        self._tokens = np.zeros(capacity, dtype=np.int32)
        self._next = [NONE] * capacity
        # What the index holds for each row, so that overwriting a token forgets the entries that lead to it.
        self._keys: list[tuple[bytes, ...]] = [()] * capacity
        self._index: dict[bytes, int] = {}
        """The last eight, and the last four, tokens before a position -> the most recent such position."""

    @property
    def capacity(self) -> int:
        """Tokens that it can hold."""
        return self._capacity

    def __len__(self) -> int:
        return min(self._count, self._capacity)

    def append(self, response: Response, tokens: Tokens) -> None:
        """Stores the next committed tokens of a response."""
        data = response.suffix + tokens.astype(np.int32).tobytes()
        end = len(response.suffix)
        for _ in range(len(tokens)):
            self._store(response, data[max(0, end - LONG * _ITEM) : end], data[end : end + _ITEM])
            end += _ITEM
        response.suffix = data[-LONG * _ITEM :]

    def find(self, known: Tokens) -> Continuation | None:
        """What followed the most recent occurrence of the last tokens of `known`."""
        for length in (LONG, SHORT):
            if len(known) < length:
                continue
            start = self._index.get(known[-length:].tobytes())
            if start is not None:
                return Continuation(self._follow(start), length, Source.HISTORY)
        return None

    def _store(self, response: Response, before: bytes, token: bytes) -> None:
        position = self._count
        row = position % self._capacity
        for key in self._keys[row]:
            if self._index.get(key) == position - self._capacity:
                del self._index[key]
        keys = tuple(before[-n * _ITEM :] for n in (LONG, SHORT) if len(before) >= n * _ITEM)
        self._tokens[row] = int.from_bytes(token, "little", signed=True)
        self._next[row] = NONE
        self._keys[row] = keys
        for key in keys:
            self._index[key] = position
        if response.last > position - self._capacity and response.last != NONE:
            self._next[response.last % self._capacity] = position
        response.last = position
        self._count += 1

    def _follow(self, start: int) -> Tokens:
        found: list[int] = []
        position = start
        while position != NONE and len(found) < CONTINUATION:
            row = position % self._capacity
            found.append(int(self._tokens[row]))
            position = self._next[row]
        return np.array(found, dtype=np.int32)
