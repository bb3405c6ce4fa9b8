"""Attention of rows over the pages of their lanes: decoding, verification and prompt chunks by one operator.

Runs in the worker. Pages of a layer: [pages, 2, key heads, 64, size], keys before values, each head's tokens side by
side. A row sees the positions up to its own; lengths and tables live on the device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from recipes.components.gpu.launch import chained, power_above, runs_triton
from recipes.components.gpu.rows import Placed
from recipes.components.paged_attention import Heads
from shared.errors import ContractBreach
from shared.manifest import PAGE_TOKENS

_TILE_ITEMS = 64
_PROGRAMS_ENOUGH = 96
"""So many programs keep the card busy without splitting the context."""
_PROGRAMS_FEW = 24
_MERGE_ELEMENTS = 4096
"""Of partial results that a program holds at once: 32 registers a thread."""


def device_pages(pages: int, heads: Heads, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The pool of one layer, with one page more, which is in no table."""
    return torch.zeros(pages + 1, 2, heads.keys, PAGE_TOKENS, heads.size, dtype=dtype, device=device)


@dataclass(frozen=True, slots=True)
class Split:
    """How the context is divided: `pages` a program, at most `count` programs, rows of `tile` (row, head) pairs."""

    tile: int
    pages: int
    count: int
    warps: int = 4


def split_for(lanes: int, placed: Placed, heads: Heads) -> Split:
    """The division for `lanes` lanes (docs/log.md has the figures)."""
    items, table = placed.width * heads.group, placed.tables.shape[1]
    tile = min(_TILE_ITEMS, max(16, power_above(items)))
    if items <= _TILE_ITEMS:
        # Decoding and verification. A page a program is asked for before its queries are ready; many lanes would make
        # more programs of that kind than the card holds at once.
        pages = 1 if lanes * heads.keys <= _PROGRAMS_FEW else 2
        return Split(tile, pages, -(-table // pages), 2)
    if lanes * heads.keys * -(-items // tile) < _PROGRAMS_ENOUGH:
        tile = 32
    programs = lanes * heads.keys * -(-items // tile)
    pages = table if programs >= _PROGRAMS_ENOUGH else min(table, 4)
    return Split(tile, pages, -(-table // pages), 4)


def one_shape(placed: Placed) -> Split:
    """The same division for any lanes and rows of one core: a row's bits depend on that row and its pages alone."""
    return Split(16, placed.tables.shape[1], 1, 4)


def arrivals(lanes: int, rows: int, heads: Heads, device: torch.device) -> Tensor:
    """int32 zeros, one for each tile of a forward with at most so many lanes and rows.

    It is state that outlives the forward, never shared scratch: every kernel finds and leaves it zero.
    """
    return torch.zeros(heads.keys * (lanes + -(-rows * heads.group // 16)), dtype=torch.int32, device=device)


def attend_rows(
    queries: Tensor, pages: Tensor, placed: Placed, heads: Heads, arrived: Tensor, split: Split | None = None
) -> Tensor:
    """[R, queries * size] of `queries` [R, queries * size] over `pages`; zero where a row is masked."""
    if not runs_triton(queries):
        return _attend_rows(queries, pages, placed, heads)
    from recipes.components.gpu.attention_kernels import attend as kernel

    lanes, early = len(placed.lengths), chained(queries)
    split = split or split_for(lanes, placed, heads)
    tiles = -(-placed.width * heads.group // split.tile)
    if lanes * heads.keys * tiles > len(arrived) and split.count > 1:
        raise ContractBreach(f"{lanes} lanes of {placed.width} rows are more than this target was built for")
    entries = lanes * heads.keys * tiles * split.count * split.tile if split.count > 1 else 0
    parts = torch.empty(entries, heads.size, dtype=torch.float32, device=queries.device)
    sums = torch.empty(entries, 2, dtype=torch.float32, device=queries.device)
    out = torch.empty_like(queries)
    block = max(16, power_above(heads.size))
    merged = power_above(heads.group)
    kernel[(lanes * heads.keys, tiles, split.count)](
        queries, pages, placed.positions, placed.lengths, placed.tables, parts, sums, arrived, out,
        placed.tables.shape[1], heads.size**-0.5, placed.width, heads.group, heads.keys, heads.size, block, PAGE_TOKENS,
        split.tile, split.count, split.pages, max(1, _MERGE_ELEMENTS // (merged * block)), merged,
        tensor_type(pages), early, 2 if split.pages > 1 else 1,
        num_warps=split.warps, **({"launch_pdl": True} if early else {}),
    )  # fmt: skip
    return out


def tensor_type(tensor: Tensor) -> object:
    """The Triton type in which values of `tensor` are multiplied."""
    import triton.language as tl

    return tl.float32 if tensor.dtype == torch.float32 else tl.bfloat16


def _attend_rows(queries: Tensor, pages: Tensor, placed: Placed, heads: Heads) -> Tensor:
    lanes, width = len(placed.lengths), placed.width
    positions = placed.positions.view(lanes, width)
    seen = torch.arange(placed.tables.shape[1] * PAGE_TOKENS, device=queries.device)
    known = seen[None] < placed.lengths[:, None]
    page = torch.where(known, placed.tables.gather(1, (seen // PAGE_TOKENS).expand(lanes, -1)).long(), 0)
    state = pages[page, :, :, seen % PAGE_TOKENS].double()  # [lanes, seen, 2, keys, size]
    state = torch.where(known[:, :, None, None, None], state, 0.0)
    grouped = queries.double().view(lanes, width, heads.keys, heads.group, heads.size)
    scores = torch.einsum("bwkgd,bskd->bwkgs", grouped, state[:, :, 0]) * heads.size**-0.5
    visible = (seen <= positions[:, :, None])[:, :, None, None]
    weights = torch.nan_to_num(scores.masked_fill(~visible, -torch.inf).softmax(-1))
    found = torch.einsum("bwkgs,bskd->bwkgd", weights, state[:, :, 1])
    return found.reshape(lanes * width, -1).to(queries.dtype)
