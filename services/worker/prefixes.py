"""Target laws of one lane's rows, each at its own conditional prefix: committed tokens and drafts before the row."""

from __future__ import annotations

from torch import Tensor

from recipes.components.request_state import RequestState
from recipes.components.target_law import Law, adjusted, target_law


class PrefixLaws:
    """Laws of rows 0, 1, … of a lane, asked for in order. `logits` float32 [rows, V] are raw and stay raw."""

    def __init__(self, state: RequestState, slot: int, logits: Tensor, drafts: tuple[int, ...]) -> None:
        self._values = state.values[slot]
        self._emitted = int(state.generated[slot])
        self._logits = logits
        self._drafts = drafts
        penalised = self._values.penalised
        self._seen = state.seen[slot].clone() if penalised else None
        self._counts = state.counts[slot].clone() if penalised else None

    def law(self, row: int) -> Law:
        """The law of `row`, given that drafts before it stand. Raises `NotFinite`."""
        if row and self._seen is not None and self._counts is not None:
            self._seen[self._drafts[row - 1]] = True
            self._counts[self._drafts[row - 1]] += 1
        logits = adjusted(self._logits[row], self._values, self._seen, self._counts, self._emitted + row)
        return target_law(logits, self._values)
