"""Sparse attention of a prompt chunk's rows on a device: the choice of many rows at once, and attention to it.

Runs in the worker, for lanes of many rows, which all choose where they stand. Called by the functions of selection.py,
whose places and references these share.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from recipes.components.gpu.launch import power_above, roomy
from recipes.components.gpu.rows import Placed
from recipes.components.gpu.selection import Chosen, IndexState
from recipes.components.indexed_attention import Indexer
from recipes.components.paged_attention import Heads
from shared.errors import ContractBreach
from shared.manifest import PAGE_TOKENS

_SCORED_ROWS = 1024
"""Rows whose scores lie in memory at once: 4 KiB of context cost a row 4 KiB."""
_SCORE_ROWS, _SCORE_GROUPS, _SCORE_WARPS = 64, 128, 4
_NEAR_GROUPS = 2048
"""Rows that see fewer share tiles and go over all of them; from somewhere there on gathering is quicker."""
_SOME_GROUPS, _HELD_GROUPS, _CHOICE_BLOCK = 4096, 16384, 1024
_NEAR_WARPS, _CHOICE_WARPS = 4, 16
_SPLITS: tuple[tuple[int, int, int], ...] = ((128, 8, 4), (512, 8, 2))
"""Up to so many rows so many programs share the way of a near row, and of a far one; more rows fill a card alone."""
_MASKED_GROUPS = 16
"""Of a page, in one word of a mask."""


@dataclass(frozen=True, slots=True)
class ChunkTile:
    """How attention is divided: `items` (row, head) pairs of near rows, `tokens` that far rows gather at once."""

    items: int = 128
    warps: int = 8
    stages: int = 2
    tokens: int = 64
    gather_warps: int = 4
    gather_stages: int = 2


_NARROW = ChunkTile(items=32, warps=4, stages=1, tokens=32, gather_stages=1)
"""Where a program has less shared memory."""


@dataclass(frozen=True, slots=True)
class MaskedChoice(Chosen):
    """A choice, and for rows that see fewer than `near` groups a mask too: int32 [R, words], a bit a group."""

    masks: Tensor
    near: int


def select_rows(queries: Tensor, state: IndexState, placed: Placed, indexer: Indexer) -> MaskedChoice:
    """As `selection.select`: the best groups that each row sees, by index `queries` [R, heads, size]."""
    from recipes.components.gpu.attention import tensor_type
    from recipes.components.gpu.chunk_attention_kernels import score_rows

    count, lanes, device, each = len(queries), len(placed.tables), queries.device, PAGE_TOKENS // indexer.ratio
    near, held, words = _reaches(placed, indexer, state.shift)
    groups = torch.empty(count, indexer.budget, dtype=torch.int32, device=device)
    numbers = torch.empty(count, dtype=torch.int32, device=device)
    masks = torch.empty(count, words, dtype=torch.int32, device=device)
    most = placed.tables.shape[1] * each
    scored = most > indexer.budget
    some = min(placed.width, _SCORED_ROWS) if lanes == 1 else placed.width
    scores = torch.empty(lanes * some, most if scored else 1, dtype=torch.float32, device=device)
    for first in range(0, placed.width, some):
        rows = min(some, placed.width - first)
        if scored:
            tiles = -(-rows // _SCORE_ROWS)
            score_rows[(lanes * tiles, -(-most // _SCORE_GROUPS))](
                queries, state.groups, placed.positions, placed.tables, scores, placed.tables.shape[1], most, first,
                rows, tiles, indexer.size**-0.5, placed.width, indexer.heads, indexer.size,
                max(16, power_above(indexer.size)), indexer.ratio, each, indexer.budget, _SCORE_ROWS, _SCORE_GROUPS,
                tensor_type(queries), state.shift, num_warps=_SCORE_WARPS,
            )  # fmt: skip
        part = slice(first, first + lanes * rows)
        choose(scores, Chosen(groups[part], numbers[part], placed.positions[part]), masks[part], indexer, near, held)
    return MaskedChoice(groups, numbers, placed.positions, masks, near)


def choose(scores: Tensor, found: Chosen, masks: Tensor, indexer: Indexer, near: int, held: int) -> None:
    """Fills `found` and `masks` of rows with `scores` [rows, groups]."""
    from recipes.components.gpu.chunk_choice_kernels import choose_far, choose_near

    # Kernels scan lines of 32 groups.
    some, most = max(32, min(held, _SOME_GROUPS)), max(32, held)
    grid, common = (len(found.groups),), (scores.shape[1], indexer.ratio, indexer.budget, near)
    choose_near[grid](
        scores, found.anchors, found.groups, found.numbers, masks, *common, max(32, power_above(near)), masks.shape[1],
        num_warps=_NEAR_WARPS,
    )  # fmt: skip
    if scores.shape[1] >= near:
        choose_far[grid](
            scores, found.anchors, found.groups, found.numbers, *common, some, most,
            min(held, _CHOICE_BLOCK), num_warps=_CHOICE_WARPS,
        )  # fmt: skip


def _reaches(placed: Placed, indexer: Indexer, shift: int) -> tuple[int, int, int]:
    """(groups up to which rows are near, and up to which they are held in registers, words of a mask).

    A word holds the groups of one page. With a shift they straddle pages: then only rows that see all of them are near.
    """
    most = placed.tables.shape[1] * PAGE_TOKENS // indexer.ratio
    budgeted = power_above(indexer.budget + 1)
    held = max(budgeted, min(_HELD_GROUPS, power_above(most)))
    masked = shift == 0 and PAGE_TOKENS // indexer.ratio == _MASKED_GROUPS
    near = max(budgeted, min(_NEAR_GROUPS, held)) if masked else indexer.budget + 1
    return near, held, (near // _MASKED_GROUPS if masked else 0)


def attend_rows_chosen(
    queries: Tensor, projected: Tensor, pages: Tensor, placed: Placed, chosen: Chosen, indexer: Indexer, heads: Heads,
    shift: int = 0, tile: ChunkTile | None = None,
) -> Tensor:  # fmt: skip
    """As `selection.attend_chosen`, [R, queries * size], of rows that chose where they stand, by `select_rows`."""
    from recipes.components.gpu.attention import tensor_type
    from recipes.components.gpu.chunk_attention_kernels import attend_far, attend_near, merge_splits

    if not isinstance(chosen, MaskedChoice):
        raise ContractBreach("rows of a prompt chunk attend to what they chose as a chunk")
    count, lanes, tile = len(queries), len(placed.tables), tile or (ChunkTile() if roomy(queries) else _NARROW)
    out = torch.empty(count, heads.queries * heads.size, dtype=queries.dtype, device=queries.device)
    splits, gathers = next((own for few, *own in _SPLITS if count <= few), (1, 1))
    shape = (count, heads.queries, splits) if splits > 1 else (1, 1, 1)
    parts = torch.empty(*shape, heads.size, dtype=torch.float32, device=queries.device)
    sums = torch.empty(*shape, 2, dtype=torch.float32, device=queries.device)
    per = _parts_of(chosen.near * indexer.ratio + shift, PAGE_TOKENS, splits) // PAGE_TOKENS
    tokens = _parts_of(indexer.budget * indexer.ratio + indexer.ratio - 1, tile.tokens, gathers)
    block, kind = max(16, power_above(heads.size)), tensor_type(pages)
    line, scale = projected.stride(0), heads.size**-0.5
    common = (
        out, parts, sums, line, placed.tables.shape[1], scale, placed.width, heads.group, heads.keys, heads.size, block,
        PAGE_TOKENS, indexer.ratio, chosen.near, splits,
    )  # fmt: skip
    attend_near[(lanes * heads.keys, -(-placed.width * heads.group // tile.items), splits)](
        queries, projected, pages, placed.positions, placed.tables, chosen.masks, *common, per, chosen.masks.shape[1],
        tile.items, kind, shift, tile.stages, num_warps=tile.warps,
    )  # fmt: skip
    if placed.tables.shape[1] * PAGE_TOKENS // indexer.ratio >= chosen.near:
        attend_far[(count, heads.keys, gathers)](
            queries, projected, pages, placed.positions, placed.tables, chosen.groups, chosen.numbers, *common, tokens,
            indexer.budget, max(16, power_above(heads.group)), tile.tokens, kind, shift, tile.gather_stages,
            num_warps=tile.gather_warps,
        )  # fmt: skip
    if splits > 1:
        merge_splits[(count, heads.queries)](
            parts, sums, projected, placed.positions, chosen.numbers, out, line, heads.queries, heads.size, block,
            indexer.ratio, chosen.near, splits, per * PAGE_TOKENS, tokens, shift, num_warps=2,
        )  # fmt: skip
    return out


def _parts_of(tokens: int, step: int, splits: int) -> int:
    """How many of `tokens` each of `splits` programs takes, in whole steps."""
    return -(-tokens // (step * splits)) * step
