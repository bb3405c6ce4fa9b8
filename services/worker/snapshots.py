"""Snapshot rows: what a prefix of P consumed tokens needs besides its pages, to be restored into any slot.

Model and drafter keep their own kinds; here lie the sampling vector, the count and the token at P - 1.
"""

from __future__ import annotations

import numpy as np
import torch

from recipes.components.model import Drafter, Lane, Model
from recipes.components.request_state import NOBODY, RequestState


class Snapshots:
    """`rows` snapshot rows beside the slots of `state`."""

    def __init__(self, model: Model, drafter: Drafter | None, state: RequestState, rows: int) -> None:
        self._model = model
        self._drafter = drafter
        self._state = state
        self.rows = rows
        self.consumed = np.full(rows, NOBODY, dtype=np.int64)
        self.last_token = np.full(rows, NOBODY, dtype=np.int64)
        self._draft_cache = np.zeros(rows, dtype=np.int64)
        """Pairs that the drafter has absorbed of each prefix: none where it takes no part."""
        self._vectors = torch.zeros(rows, state.hidden_size)

    def holds(self, row: int) -> bool:
        """Whether `row` exists."""
        return 0 <= row < self.rows

    def take(self, slot: int, row: int) -> None:
        """Copies the slot's committed state."""
        state = self._state
        self._model.snapshot(slot, row)
        if self._drafter is not None:
            self._drafter.snapshot(slot, row)
        self.consumed[row], self.last_token[row] = state.consumed[slot], state.previous[slot]
        self._draft_cache[row] = state.draft_cache[slot]
        self._vectors[row] = state.vectors[slot]

    def export(self, lane: Lane, kept: int, row: int, last_token: int, vector: torch.Tensor) -> None:
        """Copies the state after the lane's first `kept` rows, before commit; `vector` float32 [H] is row kept - 1."""
        self._model.export(lane, kept, row)
        self.consumed[row], self.last_token[row] = lane.first + kept, last_token
        self._draft_cache[row] = 0
        self._vectors[row] = vector

    def export_drafts(self, lane: Lane, kept: int, row: int, vectors: torch.Tensor) -> None:
        """The drafter's part of an export, once it has absorbed; `vectors` float32 [count, H] are the lane's."""
        if self._drafter is not None:
            self._drafter.export(lane, vectors, kept, row)
            self._draft_cache[row] = lane.first + kept - 1

    def restore(self, row: int, slot: int) -> None:
        """Copies a row into a slot that `init` has reset; the slot then has no pending token until `resume`."""
        state = self._state
        self._model.restore(row, slot)
        if self._drafter is not None:
            self._drafter.restore(row, slot)
            state.draft_cache[slot] = self._draft_cache[row]
        state.consumed[slot], state.previous[slot] = self.consumed[row], self.last_token[row]
        state.vectors[slot] = self._vectors[row]

    def prefix_of(self, row: int) -> int:
        """Tokens of the prefix that `row` holds; -1 for a row that holds none, or does not exist."""
        return int(self.consumed[row]) if self.holds(row) else NOBODY

    def clear(self) -> None:
        """Forgets every row."""
        self.consumed.fill(NOBODY)
        self.last_token.fill(NOBODY)
