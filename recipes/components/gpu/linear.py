"""Linear layers over few rows, each with what surrounds it: norm before, rotation, gate or residual sum behind.

Runs in the worker. Weights are int8 with a scale for each output, as the core holds them, or floating point. Each
function says what it computes; on a CPU it is computed that way, on a card by one kernel (linear_kernels.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import silu

from recipes.components.gpu.launch import chained, pieces_of, runs_triton
from recipes.components.gpu.rows import Placed, norm_rows, turn_and_store
from recipes.components.paged_attention import Heads
from shared.manifest import PAGE_TOKENS


@dataclass(frozen=True)
class Weight:
    """`values` [N, K], int8 with `scale` float32 [N], or floating point without."""

    values: Tensor
    scale: Tensor | None = None

    @cached_property
    def pieces(self) -> tuple[int, int]:
        """The inner dimension in two powers of two; the second may be wider than what is left, or nothing."""
        return pieces_of(self.values.shape[1])

    @property
    def outputs(self) -> int:
        """N."""
        return self.values.shape[0]

    def wide(self) -> Tensor:
        """float32 [N, K], scaled."""
        wide = self.values.float()
        return wide if self.scale is None else wide * self.scale[:, None]


@dataclass(frozen=True, slots=True)
class Tile:
    """How a kernel divides its work: rows and outputs of a program, slices of the inner dimension, warps."""

    rows: int
    outputs: int
    slices: int
    warps: int


_ONE_BY_ONE = 2
"""Up to here each row is a program's own; its weights come from the cache the second time."""
_TENSOR_DEPTH = 16
"""Of the inner dimension that the matrix units take at once: no slice may be thinner."""
# Tiles for few rows one by one, and for more through the matrix units: measured on an H200, docs/log.md.
_HEADS = Tile(1, 4, 1, 4), Tile(16, 8, 4, 4)
_GATE_UP = Tile(1, 8, 1, 4), Tile(16, 16, 4, 4)
_ADD = Tile(1, 4, 1, 2), Tile(16, 8, 4, 4)
_HEAD = Tile(1, 16, 1, 4), Tile(16, 32, 4, 4)


@dataclass(frozen=True, slots=True)
class Tiles:
    """A tile for each kind of layer; None: the one that was measured to be best for the number of rows."""

    heads: Tile | None = None
    gate_up: Tile | None = None
    add: Tile | None = None
    head: Tile | None = None


ONE_SHAPE = Tiles(_HEADS[1], _GATE_UP[1], _ADD[1], _HEAD[1])
"""Tiles for any number of rows: with the same ones everywhere, a row's bits depend on that row alone."""


def _chosen(tile: Tile | None, tiles: tuple[Tile, Tile], rows: int, weight: Weight) -> Tile:
    """The tile asked for or measured to be best, with no more slices than the smaller piece allows."""
    found = tile or tiles[rows > _ONE_BY_ONE]
    thinnest = min(piece for piece in weight.pieces if piece)
    return replace(found, slices=max(1, min(found.slices, thinnest // _TENSOR_DEPTH)))


def project_heads(
    stream: Tensor,
    gain: Tensor,
    epsilon: float,
    weight: Weight,
    turns: Tensor,
    placed: Placed,
    heads: Heads,
    pages: Tensor,
    tile: Tile | None = None,
) -> Tensor:
    """Queries [R, queries * size] of norm(stream) through the query/key/value layer; writes keys and values to pages.

    `stream` float32 [R, K]; `turns` float32 [positions, size]: cosine and sine of each pair, side by side; `pages`
    [pages, 2, keys, 64, size]. A row without a place writes nowhere.
    """
    if not runs_triton(stream):
        projected = norm_rows(stream, gain, epsilon) @ weight.wide().T
        return turn_and_store(projected, turns, placed, heads, pages)
    from recipes.components.gpu.linear_kernels import project_heads as kernel

    count, inner = stream.shape
    tile = _chosen(tile, _HEADS, count, weight)
    queries = torch.empty(count, heads.queries * heads.size, dtype=pages.dtype, device=stream.device)
    k0, k1 = weight.pieces
    kernel[(-(-weight.outputs // (2 * tile.outputs)), -(-count // tile.rows))](
        stream, gain, weight.values, weight.scale, turns, placed.positions, placed.places, queries, pages, count,
        epsilon, heads.queries, heads.keys, heads.size, PAGE_TOKENS, inner, k0, k1, tile.slices, tile.rows,
        tile.outputs, **_common(weight, pages.dtype, stream, tile),
    )  # fmt: skip
    return queries


def gate_up(
    stream: Tensor, gain: Tensor, epsilon: float, weight: Weight, dtype: torch.dtype, tile: Tile | None = None
) -> Tensor:
    """silu(gate) * up, [R, N] in `dtype`, of norm(stream) through a layer [2 * N, K]: gate first, then up."""
    outputs = weight.outputs // 2
    if not runs_triton(stream):
        both = norm_rows(stream, gain, epsilon) @ weight.wide().T
        return (silu(both[:, :outputs]) * both[:, outputs:]).to(dtype)
    from recipes.components.gpu.linear_kernels import gate_up as kernel

    count, inner = stream.shape
    tile = _chosen(tile, _GATE_UP, count, weight)
    out = torch.empty(count, outputs, dtype=dtype, device=stream.device)
    k0, k1 = weight.pieces
    kernel[(-(-outputs // tile.outputs), -(-count // tile.rows))](
        stream, gain, weight.values, weight.scale, out, count, epsilon, outputs, inner, k0, k1, tile.slices,
        tile.rows, tile.outputs, **_common(weight, dtype, stream, tile),
    )  # fmt: skip
    return out


def add_linear(rows: Tensor, weight: Weight, stream: Tensor, tile: Tile | None = None) -> None:
    """stream float32 [R, N] += rows [R, K] through the layer [N, K]."""
    if not runs_triton(stream):
        stream += rows.float() @ weight.wide().T
        return
    _plain(rows, weight, stream, rows.dtype, _chosen(tile, _ADD, len(rows), weight), add=True)


def linear(rows: Tensor, weight: Weight, dtype: torch.dtype, tile: Tile | None = None) -> Tensor:
    """float32 [R, N] of `rows` [R, K], multiplied in `dtype`: the head."""
    if not runs_triton(rows):
        return rows.float() @ weight.wide().T
    out = torch.empty(len(rows), weight.outputs, dtype=torch.float32, device=rows.device)
    _plain(rows, weight, out, dtype, _chosen(tile, _HEAD, len(rows), weight), add=False)
    return out


def _plain(rows: Tensor, weight: Weight, out: Tensor, dtype: torch.dtype, tile: Tile, add: bool) -> None:
    from recipes.components.gpu.linear_kernels import plain as kernel

    count, inner = rows.shape
    k0, k1 = weight.pieces
    kernel[(-(-weight.outputs // tile.outputs), -(-count // tile.rows))](
        rows, weight.values, weight.scale, out, count, weight.outputs, inner, k0, k1, tile.slices, tile.rows,
        tile.outputs, ADD=add, **_common(weight, dtype, rows, tile),
    )  # fmt: skip


def _common(weight: Weight, dtype: torch.dtype, rows: Tensor, tile: Tile) -> dict[str, object]:
    """What every kernel here takes by name."""
    import triton.language as tl

    early = chained(rows)
    return {
        "SCALED": weight.scale is not None,
        "TYPE": tl.float32 if dtype == torch.float32 else tl.bfloat16,
        "CHAINED": early,
        "num_warps": tile.warps,
        **({"launch_pdl": True} if early else {}),
    }
