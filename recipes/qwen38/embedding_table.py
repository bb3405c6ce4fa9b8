"""Rows of a table that may stay off the device, by id: one interface for Qwen's n-gram table and DeepSeek's Engram.

Runs in the worker. On the CPU the `ram` table is a mapping of the core's file, and a gather reads the few rows it
needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from recipes.components import nvfp4


class EmbeddingTable(Protocol):
    """A table of embeddings."""

    def rows(self, ids: Tensor) -> Tensor:
        """float32 [..., size] of rows `ids` int64 [...]."""
        ...


@dataclass(frozen=True, slots=True)
class PackedTable:
    """An NVFP4 table: `packed` uint8 [n, size / 2], `scales` float8_e4m3fn [n, size / 16], `global_scale` a scalar."""

    packed: Tensor
    scales: Tensor
    global_scale: Tensor

    def rows(self, ids: Tensor) -> Tensor:
        """Gathered and dequantised."""
        flat = ids.flatten()
        # torch indexes bytes, not float8
        scales = self.scales.view(torch.uint8)[flat].view(torch.float8_e4m3fn)
        return torch.unflatten(nvfp4.dequantize(self.packed[flat], scales, self.global_scale), 0, ids.shape)
