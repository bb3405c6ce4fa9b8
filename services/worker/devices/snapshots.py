"""Snapshot rows on a device: the device's form of `services/worker/snapshots.py`, one scratch row beyond the last.

Rows are copied inside captured rounds alone; `-1` as a row or a slot means that nothing happens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from recipes.components.device_drafter import DeviceDrafter
from recipes.components.device_model import DeviceModel, DeviceRows
from recipes.components.device_state import DeviceState, Word
from recipes.components.request_state import NOBODY


class DeviceSnapshots:
    """`rows` snapshot rows beside the slots of `state`: consumed count, token before it, sampling vector."""

    def __init__(self, model: DeviceModel, drafter: DeviceDrafter | None, state: DeviceState, rows: int) -> None:
        self._model, self._drafter, self._state, self.rows = model, drafter, state, rows
        self.words = torch.full((rows + 1, 3), NOBODY, dtype=torch.int64, device=state.device)
        """int64 [rows + 1, 3]: consumed count, the token before it, and pairs that the drafter has absorbed of it."""
        self.vectors = torch.zeros(rows + 1, state.hidden_size, device=state.device)
        """float32 [rows + 1, H]: the sampling vector."""

    @property
    def consumed(self) -> Tensor:
        """int64 [rows]: how many tokens each row's prefix has, -1 for an empty row."""
        return self.words[: self.rows, 0]

    def clear(self) -> None:
        """Forgets every row. Not inside a round."""
        self.words.fill_(NOBODY)

    def prefix_of(self, row: Tensor) -> Tensor:
        """int64 [1]: tokens of the prefix that `row` holds; -1 for a row that holds none, or does not exist."""
        return torch.where(self.existing(row) >= 0, self.words[self._safe(self.existing(row)), 0], NOBODY)

    def existing(self, rows: Tensor) -> Tensor:
        """The row itself where it exists, else -1."""
        return torch.where((rows >= 0) & (rows < self.rows), rows, NOBODY)

    def _safe(self, rows: Tensor) -> Tensor:
        return torch.where(rows >= 0, rows, self.rows)

    def take(self, slot: Tensor, row: Tensor) -> None:
        """Copies the committed state of `slot` into `row`, int64 [1] each."""
        state, both = self._state, (slot >= 0) & (row >= 0)
        slot, row = torch.where(both, slot, NOBODY), torch.where(both, row, NOBODY)
        self._model.snapshot(slot, row)
        if self._drafter is not None:
            self._drafter.snapshot(slot, row)
        source, target = state.safe(slot), self._safe(row)
        held = state.words[source]
        self.words.index_copy_(0, target, torch.stack(_kept_words(held), 1))
        self.vectors.index_copy_(0, target, state.vectors[source])

    def restore(self, row: Tensor, slot: Tensor) -> None:
        """Copies `row` into a `slot` that `init` has reset, int64 [1] each."""
        state, both = self._state, (slot >= 0) & (row >= 0)
        slot, row = torch.where(both, slot, NOBODY), torch.where(both, row, NOBODY)
        self._model.restore(row, slot)
        source, target = self._safe(row), state.safe(slot)
        words, found = state.words[target], self.words[source]
        words[:, Word.CONSUMED], words[:, Word.PREVIOUS] = found[:, 0], found[:, 1]
        if self._drafter is not None:
            self._drafter.restore(row, slot)
            words[:, Word.DRAFT_CACHE] = found[:, 2]
        state.words.index_copy_(0, target, words)
        state.vectors.index_copy_(0, target, self.vectors[source])

    def export(self, rows: DeviceRows, kept: Tensor, target: Tensor, vectors: Tensor) -> None:
        """The state after each lane's first `kept` rows into row `target`, int64 [B], -1: none. Before commit."""
        self._model.export(rows, kept, target)
        last = row_index(rows, kept)
        words = torch.stack([rows.first + kept, rows.tokens[last], torch.zeros_like(kept)], 1)
        self.words.index_copy_(0, self._safe(target), words)
        self.vectors.index_copy_(0, self._safe(target), vectors[last].float())

    def export_drafts(self, rows: DeviceRows, kept: Tensor, target: Tensor, vectors: Tensor) -> None:
        """The drafter's part of an export, once it has absorbed."""
        if self._drafter is not None:
            self._drafter.export(rows, vectors, kept, target)
            self.words[:, 2].index_copy_(0, self._safe(target), rows.first + kept - 1)


def _kept_words(words: Tensor) -> list[Tensor]:
    """What a snapshot row keeps of state words [n, WORDS]."""
    return [words[:, Word.CONSUMED], words[:, Word.PREVIOUS], words[:, Word.DRAFT_CACHE]]


def row_index(rows: DeviceRows, kept: Tensor) -> Tensor:
    """int64 [B]: where the last of each lane's first `kept` rows lies; row 0 of a lane that keeps none."""
    lanes = torch.arange(len(kept), device=kept.device)
    return lanes * rows.width + (kept - 1).clamp(min=0)
