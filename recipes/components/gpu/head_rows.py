"""What a sparse-attention layer makes of its projections: queries, index queries, and what it keeps of its rows.

Runs in the worker. The few rows of a round take one kernel, prompt chunks those of selection.py one after the other,
which are the reference too.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from recipes.components.device_model import DeviceRows
from recipes.components.gpu.launch import chained, power_above, runs_triton
from recipes.components.gpu.rows import Placed
from recipes.components.gpu.selection import CHUNK_ROWS, IndexState, compress, store_state, turn_heads
from recipes.components.indexed_attention import Indexer
from recipes.components.paged_attention import Heads
from shared.manifest import PAGE_TOKENS


@dataclass(frozen=True, slots=True)
class SparseState:
    """One layer's cache: `pages` [pages, 2, key heads, 64, D] of keys and values, groups and rings of raw keys."""

    pages: Tensor
    index: IndexState


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """Zero-centred norm weights of a layer's heads."""

    query: Tensor
    key: Tensor
    index_query: Tensor
    index_key: Tensor


@dataclass(frozen=True, slots=True)
class HeadShape:
    """Heads of a layer with its indexer, and how `projected` [R, LINE] holds them.

    Queries with their gates, head by head, then index queries, keys, values, raw index key.
    """

    heads: Heads
    indexer: Indexer

    @property
    def sizes(self) -> list[int]:
        """Elements of each part of a row."""
        heads, indexer = self.heads, self.indexer
        keys = heads.keys * heads.size
        return [2 * heads.queries * heads.size, indexer.heads * indexer.size, keys, keys, indexer.size]

    @property
    def kept(self) -> int:
        """Where the parts begin that a layer keeps: keys, values, raw index key."""
        return sum(self.sizes[:2])


def place_heads(
    projected: Tensor,
    norms: HeadNorms,
    turns: Tensor,
    state: SparseState,
    rows: DeviceRows,
    placed: Placed,
    shape: HeadShape,
    *,
    chooses: bool = True,
) -> tuple[Tensor, Tensor]:
    """(queries [R, heads, D], index queries [R, heads, size]) of `projected` [R, LINE], normed and turned.

    Keys and values go to their pages. Rows that choose also complete groups and fill the ring; others leave both alone.
    """
    if not runs_triton(projected) or rows.width > CHUNK_ROWS:
        return _one_by_one(projected, norms, turns, state, rows, placed, shape, chooses)
    count, heads, indexer = len(projected), shape.heads, shape.indexer
    queries = projected.new_empty(count, heads.queries, heads.size)
    index_queries = projected.new_empty(count, indexer.heads, indexer.size)
    _launch(projected, norms, turns, state, rows, placed, shape, (queries, index_queries), chooses)
    return queries, index_queries


def keep_heads(
    projected: Tensor,
    norms: HeadNorms,
    turns: Tensor,
    state: SparseState,
    rows: DeviceRows,
    placed: Placed,
    shape: HeadShape,
) -> None:
    """What `place_heads` keeps, of `projected` [R, LINE - kept]: keys, values, raw index key of each row."""
    if runs_triton(projected) and rows.width <= CHUNK_ROWS:
        _launch(projected, norms, turns, state, rows, placed, shape, (projected, projected), True, kept_only=True)
        return
    keys, values, raw = (part.contiguous() for part in torch.split(projected, shape.sizes[2:], dim=1))
    store_state(keys, values, norms.key, turns, placed, shape.indexer, shape.heads, state.pages)
    compress(raw, norms.index_key, turns, state.index, rows, shape.indexer)


def _one_by_one(
    projected: Tensor, norms: HeadNorms, turns: Tensor, state: SparseState, rows: DeviceRows, placed: Placed,
    shape: HeadShape, chooses: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    heads, indexer = shape.heads, shape.indexer
    wide, index, keys, values, raw = (part.contiguous() for part in torch.split(projected, shape.sizes, dim=1))
    queries = turn_heads(wide, norms.query, turns, placed, indexer, heads.queries, heads.size, 2 * heads.size)
    store_state(keys, values, norms.key, turns, placed, indexer, heads, state.pages)
    index_queries = turn_heads(
        index, norms.index_query, turns, placed, indexer, indexer.heads, indexer.size, indexer.size
    )
    if chooses:
        compress(raw, norms.index_key, turns, state.index, rows, indexer)
    return queries, index_queries


def _launch(
    projected: Tensor, norms: HeadNorms, turns: Tensor, state: SparseState, rows: DeviceRows, placed: Placed,
    shape: HeadShape, out: tuple[Tensor, Tensor], chooses: bool, *, kept_only: bool = False,
) -> None:  # fmt: skip
    from recipes.components.gpu.head_rows_kernels import place_heads as kernel

    heads, indexer, index, early = shape.heads, shape.indexer, state.index, chained(projected)
    queries, index_heads = (0, 0) if kept_only else (heads.queries, indexer.heads)
    behind = max(heads.size, indexer.size)
    kernel[(len(projected), queries + index_heads + heads.keys + 1)](
        projected, norms.query, norms.key, norms.index_query, norms.index_key, turns, placed.positions, placed.places,
        rows.slots, rows.first, rows.tables, *out, state.pages, index.ring, index.tags, index.groups, index.missing,
        rows.tables.shape[1], indexer.epsilon, rows.width, queries, index_heads, heads.keys, heads.size, indexer.size,
        PAGE_TOKENS, index.ring.shape[1], indexer.ratio, PAGE_TOKENS // indexer.ratio, indexer.rotary,
        power_above(indexer.rotary // 2), power_above(max(1, heads.size - indexer.rotary)),
        power_above(max(1, indexer.size - indexer.rotary)), power_above(behind), index.shift, chooses, CHAINED=early,
        num_warps=1, **({"launch_pdl": True} if early else {}),
    )  # fmt: skip
