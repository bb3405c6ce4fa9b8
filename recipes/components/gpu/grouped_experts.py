"""A mixture of experts over many rows on a device: picks sorted by expert, so that a chunk reads each expert once.

Runs in the worker, for prompt chunks. NVFP4 weights as the checkpoint packs them, activations unrounded (W4A16). No
shape and no launch depends on what was chosen: grids are as large as the worst choice needs. Called by
`experts.mixture`, whose reference is its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from recipes.components.gpu.experts import PackedExperts
from recipes.components.gpu.launch import power_above, runs_triton

_PIECE = 128
"""Picks that one program sorts."""
_COLUMNS = 1024
_DEPTH = 64
"""Of the inner dimension in a step: the four scales of a row are then one word."""


@dataclass(frozen=True, slots=True)
class ExpertTile:
    """How the products are divided: `rows` of one expert and `outputs` a program, steps fetched ahead of their use."""

    rows: int
    outputs: int
    warps: int
    stages: int


@dataclass(frozen=True, slots=True)
class Sorted:
    """Picks by expert, all int32. `order` [picks]: pick at each place, `places` [picks]: place of each pick.

    `starts` [E' + 2]: an expert's first place, then the numbers of picks and of tiles, E' a power of two; `tiles`
    [most, 2]: expert and first place of each.
    """

    order: Tensor
    places: Tensor
    starts: Tensor
    tiles: Tensor


def sort_picks(chosen: Tensor, experts: int, rows: int) -> Sorted:
    """The picks of `chosen` int32 [R, top] by expert, equal ones in order, in tiles of at most `rows`."""
    picks, block = chosen.numel(), power_above(experts)
    most = min(picks, experts) + picks // rows
    made = chosen.new_empty(picks), chosen.new_empty(picks), chosen.new_empty(block + 2), chosen.new_empty(most, 2)
    found = Sorted(*made)
    if not runs_triton(chosen):
        return _sort_picks(chosen.clamp_max(experts - 1), rows, block, found)
    from recipes.components.gpu.grouped_experts_kernels import count_picks, lay_tiles, place_picks, sum_pieces

    pieces, some = -(-picks // _PIECE), min(16, block)
    counts, totals = chosen.new_empty(pieces, block), chosen.new_empty(block)
    count_picks[(pieces,)](chosen, counts, picks, experts, block, _PIECE)
    sum_pieces[(block // some,)](counts, totals, pieces, block, power_above(pieces), some)
    lay_tiles[(block,)](totals, found.starts, found.tiles, block, rows, 32)
    place_picks[(pieces,)](
        chosen, counts, found.starts, found.order, found.places, picks, experts, block, _PIECE, num_warps=8
    )
    return found


def _sort_picks(chosen: Tensor, rows: int, block: int, found: Sorted) -> Sorted:
    """May wait for the host."""
    ranked = torch.sort(chosen.flatten(), stable=True)
    found.order.copy_(ranked.indices)
    found.places[ranked.indices] = torch.arange(len(ranked.indices), dtype=torch.int32, device=chosen.device)
    totals = torch.bincount(chosen.flatten(), minlength=block)
    needed = (totals + rows - 1) // rows
    starts = totals.cumsum(0) - totals
    count = int(needed.sum())
    expert = torch.arange(block, device=chosen.device).repeat_interleave(needed)
    within = torch.arange(count, device=chosen.device) - (needed.cumsum(0) - needed)[expert]
    found.tiles[:count] = torch.stack([expert, starts[expert] + within * rows], 1).int()
    found.starts.copy_(torch.cat([starts, totals.sum()[None], needed.sum()[None]]))
    return found


def tiles_for(picks: int, experts: int) -> tuple[ExpertTile, ExpertTile]:
    """Tiles of both products: as many rows as an expert gets on the average, and a little more (docs/log.md)."""
    rows = max(16, min(128, power_above(picks // experts + 1)))
    if rows < 64:
        return ExpertTile(rows, 64, 4, 3), ExpertTile(rows, 128, 4, 4)
    return ExpertTile(rows, 64, 8, 3), ExpertTile(rows, 128, 8, 4)


def grouped_mixture(
    x: Tensor, experts: PackedExperts, weights: Tensor, chosen: Tensor, shared: Tensor, shared_gate: Tensor,
    tiles: tuple[ExpertTile, ExpertTile] | None = None,
) -> Tensor:  # fmt: skip
    """As `experts.mixture`, [R, H] of `x` [R, H], by tiles of rows."""
    from recipes.components.gpu.attention import tensor_type
    from recipes.components.gpu.grouped_experts_kernels import gather_parts, grouped_in, grouped_out, interleave

    (count, hidden), inner_size, held = x.shape, experts.down.shape[2] * 2, len(experts.down)
    picks = chosen.numel()
    first, second = tiles or tiles_for(picks, held)
    found = sort_picks(chosen, held, first.rows)
    block, most = len(found.starts) - 2, len(found.tiles)
    turned, inner = torch.empty_like(x), x.new_empty(picks, inner_size)
    interleave[(count,)](x, turned, hidden, power_above(hidden))
    grouped_in[(most, -(-inner_size // first.outputs))](
        turned, experts.gate_up, experts.gate_up_scales, experts.gate_up_singles, found.order, found.starts,
        found.tiles, inner, experts.top, inner_size, hidden, block, first.rows, first.outputs, _DEPTH,
        tensor_type(x), first.stages, num_warps=first.warps,
    )  # fmt: skip
    parts = x.new_empty(picks, hidden)
    grouped_out[(most, -(-hidden // second.outputs))](
        inner, experts.down, experts.down_scales, experts.down_singles, found.starts, found.tiles, parts, hidden,
        inner_size, block, first.rows, second.outputs, _DEPTH, tensor_type(x), second.stages,
        num_warps=second.warps,
    )  # fmt: skip
    out, wide = torch.empty_like(x), min(_COLUMNS, power_above(hidden))
    gather_parts[(count, -(-hidden // wide))](
        parts, weights, found.places, shared, shared_gate, out, shared_gate.stride(0), experts.top, hidden, wide
    )
    return out
