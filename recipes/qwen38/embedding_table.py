"""The n-gram table: what a row's bytes mean, and how large the table is. Runs in `ignition` and in the worker.

A row is its NVFP4 values and then their block scales, so that one read brings all of it; where rows lie is the business
of `recipes/components/embedding_rows.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from recipes.components import nvfp4
from recipes.components.capacity import most_rows
from recipes.components.embedding_rows import Asked, RowSource
from recipes.components.table_file import padded
from recipes.qwen38.architecture import Architecture
from recipes.qwen38.ngram_tables import ngram_tables
from shared.manifest import EmbeddingTable, ExecutionGraph

NAME = "ngrams"
SMALL_BYTES = 1 << 30
"""A larger table has better uses for a card's memory beside it: it lies in `ram` unless an operator chooses."""


@dataclass(frozen=True, slots=True)
class NgramTable:
    """`source` has the rows of `size` elements each, `global_scale` is the scalar that they share."""

    source: RowSource
    size: int
    global_scale: Tensor

    def ask(self, ids: Tensor) -> AskedNgrams:
        """Asks for rows `ids` int64 [..., heads]: as soon as a round's tokens are known."""
        return AskedNgrams(self, ids.shape, self.source.ask(ids.flatten()))

    def rows(self, ids: Tensor) -> Tensor:
        """float32 [..., size] of rows `ids` int64 [...], asked for and waited for."""
        return self.ask(ids).rows()


@dataclass(frozen=True, slots=True)
class AskedNgrams:
    """Rows on their way."""

    table: NgramTable
    shape: torch.Size
    asked: Asked

    def rows(self) -> Tensor:
        """float32 [..., size], dequantised. Waits for them. Raises `RowsLost`."""
        values, scales, _ = self.asked.take().tensor_split(_bounds(self.table.size), dim=-1)
        found = nvfp4.dequantize(values, scales.contiguous().view(torch.float8_e4m3fn), self.table.global_scale)
        return torch.unflatten(found, 0, self.shape)


def _bounds(size: int) -> tuple[int, int]:
    """Where a row's scales begin and end."""
    return size // 2, size // 2 + size // nvfp4.BLOCK


def joined(packed: Tensor, scales: Tensor) -> Tensor:
    """Whole rows uint8 [n, row bytes] of values uint8 [n, size / 2] and scales float8_e4m3fn [n, size / 16]."""
    plain = torch.cat([packed, scales.view(torch.uint8)], dim=-1)
    return pad(plain, (0, padded(plain.shape[-1]) - plain.shape[-1]))


def row_size(a: Architecture) -> int:
    """Elements of a row: a hash head's part of a token's embedding."""
    return a.ple_embed_dim // a.ngram_heads


def table_entry(a: Architecture, graphs: tuple[ExecutionGraph, ...]) -> EmbeddingTable:
    """The table as a manifest declares it; every token of a round asks for a row of each hash head."""
    rows, row_bytes = ngram_tables(a).rows, padded(_bounds(row_size(a))[1])
    return EmbeddingTable(
        name=NAME,
        rows=rows,
        row_bytes=row_bytes,
        mailbox_ids=most_rows(graphs) * a.ngram_heads,
        storage="gpu" if rows * row_bytes <= SMALL_BYTES else "ram",
    )
