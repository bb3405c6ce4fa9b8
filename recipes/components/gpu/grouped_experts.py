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
_CHUNK = 128
"""Inputs in a step: a row's eight scales are then one word."""
_SIZES = (16, 0), (32, 0), (32, 16), (64, 0), (64, 32)
"""Rows of a tile, in two powers of two."""


@dataclass(frozen=True, slots=True)
class ExpertTile:
    """How the products are divided: `rows` and `more` of one expert a program, `eights` of matrix rows a warp.

    `more` is zero or a smaller power of two than `rows`. Steps are fetched `stages` ahead.
    """

    rows: int
    more: int
    warps: int
    eights: int
    stages: int

    @property
    def most(self) -> int:
        """Rows in all."""
        return self.rows + self.more

    @property
    def outputs(self) -> int:
        """Matrix rows of a program."""
        return 8 * self.warps * self.eights


@dataclass(frozen=True, slots=True)
class Sorted:
    """Picks by expert, all int32. `order` [picks]: pick at each place, `places` [picks]: place of each pick, or -1.

    `starts` [E' + 2]: an expert's first place, then the numbers of picks and of tiles, E' a power of two; `tiles`
    [most, 2]: expert and first place of each. Picks of nobody have no place; what lies behind the numbers is undefined.
    """

    order: Tensor
    places: Tensor
    starts: Tensor
    tiles: Tensor


def sort_picks(chosen: Tensor, experts: int, rows: int) -> Sorted:
    """The picks of `chosen` int32 [R, top] by expert, equal ones in order, in tiles of at most `rows`. -1 is nobody."""
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
    picks = torch.where(chosen < 0, block, chosen).flatten()
    ranked, places = torch.sort(picks, stable=True), torch.arange(len(picks), device=chosen.device)
    found.order.copy_(ranked.indices)
    found.places[ranked.indices] = torch.where(ranked.values < block, places, -1).int()
    totals = torch.bincount(picks, minlength=block + 1)[:block]
    needed = (totals + rows - 1) // rows
    starts = totals.cumsum(0) - totals
    count = int(needed.sum())
    expert = torch.arange(block, device=chosen.device).repeat_interleave(needed)
    within = torch.arange(count, device=chosen.device) - (needed.cumsum(0) - needed)[expert]
    found.tiles[:count] = torch.stack([expert, starts[expert] + within * rows], 1).int()
    found.starts.copy_(torch.cat([starts, totals.sum()[None], needed.sum()[None]]))
    return found


def tiles_for(picks: int, experts: int) -> tuple[ExpertTile, ExpertTile]:
    """Tiles of both products for that many picks, with room for most experts' shares (docs/log.md)."""
    share = picks / experts
    wanted = share + 1.25 * share**0.5
    rows, more = next((size for size in _SIZES if sum(size) >= wanted), _SIZES[-1])
    tile = ExpertTile(rows, more, 4, 4, 3) if rows < 64 else ExpertTile(rows, more, 8, 2, 3)
    return tile, tile


def grouped_mixture(
    x: Tensor, experts: PackedExperts, weights: Tensor, chosen: Tensor, shared: Tensor, shared_gate: Tensor,
    tiles: tuple[ExpertTile, ExpertTile] | None = None,
) -> Tensor:  # fmt: skip
    """As `experts.mixture`, [R, H] of `x` [R, H], by tiles of rows."""
    from recipes.components.gpu.attention import tensor_type
    from recipes.components.gpu.grouped_experts_kernels import gather_parts, grouped_in, grouped_out, interleave

    (count, hidden), inner_size = x.shape, experts.down.shape[2] * 2
    picks, kind = chosen.numel(), tensor_type(x)
    first, second = tiles or tiles_for(picks, experts.count)
    found = sort_picks(chosen, experts.count, first.most)
    block, most = len(found.starts) - 2, len(found.tiles)
    turned, inner = x.new_empty(count, _whole(hidden)), x.new_empty(picks, _whole(inner_size))
    interleave[(count,)](x, turned, hidden, turned.shape[1], power_above(turned.shape[1]))
    grouped_in[(most, -(-inner.shape[1] // (first.outputs // 2)))](
        turned, experts.gate_up, experts.gate_up_scales, experts.gate_up_singles, found.order, found.starts,
        found.tiles, inner, experts.top, inner_size, hidden, block, first.rows, first.more, first.warps, first.eights,
        first.stages, kind, num_warps=first.warps,
    )  # fmt: skip
    parts = x.new_empty(picks, hidden)
    grouped_out[(most, -(-hidden // second.outputs))](
        inner, experts.down, experts.down_scales, experts.down_singles, found.starts, found.tiles, parts, hidden,
        inner_size, block, second.rows, second.more, second.warps, second.eights, second.stages, kind,
        num_warps=second.warps,
    )  # fmt: skip
    out, wide = torch.empty_like(x), min(_COLUMNS, power_above(hidden))
    gather_parts[(count, -(-hidden // wide))](
        parts, weights, found.places, shared, shared_gate, out, shared_gate.stride(0), experts.top, hidden, wide
    )
    return out


def _whole(inputs: int) -> int:
    """Places of so many inputs in the order of widened words."""
    return -(-inputs // _CHUNK) * _CHUNK
