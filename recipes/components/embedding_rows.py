"""Rows of an embedding table by id, wherever they lie: one interface over device memory, host memory and a mailbox.

Runs in the worker. A round asks as soon as it knows its tokens, drafted ones included, and takes the rows where it
needs them, so that a row server works meanwhile. What a row's bytes mean is the recipe's business: Qwen's n-gram table
and DeepSeek's Engram, several tables of other row sizes, come through here alike (architecture.md, section 2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from shared.frames import Array


class Asked(Protocol):
    """Rows that a round asked for."""

    def take(self) -> Tensor:
        """uint8 [n, row_bytes], row i being that of id i; zeros for an absent one. Raises `RowsLost`. Call it once."""
        ...


class RowSource(Protocol):
    """A table of rows."""

    def ask(self, ids: Tensor) -> Asked:
        """Asks for rows `ids` int64 [n]; a negative id is an absent row, which nobody looks up."""
        ...


class HeldRows:
    """`gpu`: the rows uint8 [rows, row_bytes] lie in the device's own memory."""

    def __init__(self, rows: Tensor) -> None:
        self._rows = rows

    def ask(self, ids: Tensor) -> Asked:
        return _Held(self._rows, ids)


@dataclass(frozen=True, slots=True)
class _Held:
    rows: Tensor
    ids: Tensor

    def take(self) -> Tensor:
        return torch.where((self.ids >= 0).unsqueeze(-1), self.rows[self.ids.clamp(min=0)], 0)


class MappedRows:
    """`ram`: the rows uint8 [rows, row_bytes] lie in host memory that the device reads, here in a mapped file.

    A gather touches the rows it is asked for and nothing else.
    """

    def __init__(self, rows: Array) -> None:
        self._rows = rows

    def ask(self, ids: Tensor) -> Asked:
        return _Mapped(self._rows, ids.numpy())


@dataclass(frozen=True, slots=True)
class _Mapped:
    rows: Array
    ids: Array

    def take(self) -> Tensor:
        present = self.ids >= 0
        found = np.zeros((len(self.ids), self.rows.shape[1]), dtype=np.uint8)
        found[present] = self.rows[self.ids[present]]
        return torch.from_numpy(found)
