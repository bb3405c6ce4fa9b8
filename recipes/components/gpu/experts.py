"""A mixture of experts on a device over NVFP4 weights as the checkpoint packs them, activations unrounded (W4A16).

Runs in the worker, for rounds of few rows. References: experts.py, nvfp4.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import silu

from recipes.components import nvfp4
from recipes.components.gpu.launch import chained, eights, power_above, runs_triton

_CHUNK = 128
"""Inputs that a warp takes at once (packed_kernels.py)."""
_WARPS = 4
_FEW_ROWS = 128
"""Up to here a program serves the rows that chose its expert; beyond, rows are sorted by expert first."""
APART = 8
"""Up to here each row's picks have programs of their own: so few rows seldom choose the same expert."""
_COLUMNS = 128


@dataclass(frozen=True, slots=True)
class Tile:
    """How a kernel divides its work: eights of `outputs` of a warp, chunks asked for `ahead`, most `registers`.

    The order of sums does not depend on it, so a row is the same bits in every tile.
    """

    outputs: int
    ahead: int
    registers: int | None = None

    def options(self) -> dict[str, object]:
        """What a launch takes by name."""
        return {} if self.registers is None else {"maxnreg": self.registers}


# For rows apart and for more: measured on an H200, docs/log.md.
_IN = Tile(2, 2, 72), Tile(2, 2)
_OUT = Tile(2, 5), Tile(2, 2)


@dataclass(frozen=True, slots=True)
class PackedExperts:
    """Routed experts. `gate_up` uint8 [E, 2 * I, H / 2] and `down` uint8 [E, H, I / 2], E4M3 scales as uint8.

    `gate_up_singles` float32 [E, 2] are the global scales of gate and up, `down_singles` float32 [E].
    """

    gate_up: Tensor
    gate_up_scales: Tensor
    gate_up_singles: Tensor
    down: Tensor
    down_scales: Tensor
    down_singles: Tensor
    top: int

    @property
    def count(self) -> int:
        """E."""
        return len(self.down)


def route(scores: Tensor, top: int, live: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """(weights float32, experts int32) [R, top] of router scores [R, E]; equal scores go to the lower expert.

    Rows of `scores` may lie apart. A row whose `live` int32 [R] is negative chooses nobody: experts -1, weights zero.
    """
    if not runs_triton(scores):
        ranked = torch.sort(torch.softmax(scores.float(), -1), dim=-1, descending=True, stable=True)
        weights, chosen = ranked.values[:, :top], ranked.indices[:, :top].int()
        weights = weights / weights.sum(-1, keepdim=True)
        if live is None:
            return weights, chosen
        nobody = (live < 0)[:, None]
        return weights.masked_fill(nobody, 0), chosen.masked_fill(nobody, -1)
    from recipes.components.gpu.routing_kernels import route as kernel

    count, experts = scores.shape
    weights = torch.empty(count, top, dtype=torch.float32, device=scores.device)
    chosen = torch.empty(count, top, dtype=torch.int32, device=scores.device)
    early = chained(scores)
    kernel[(count,)](
        scores, weights, chosen, live, scores.stride(0), experts, power_above(experts), top, power_above(top), early,
        num_warps=1, **_launched(early),
    )  # fmt: skip
    return weights, chosen


def mixture(
    x: Tensor, experts: PackedExperts, weights: Tensor, chosen: Tensor, shared: Tensor, shared_gate: Tensor
) -> Tensor:
    """[R, H] of block input `x` [R, H]: the routed experts' weighted sum and sigmoid(`shared_gate` [R]) * `shared`.

    Each expert's bytes are read once for all rows that chose it. A row's result does not depend on the others. Picks of
    nobody (`route`) cost nothing and add nothing.
    """
    if not runs_triton(x):
        return _mixture(x, experts, weights, chosen, shared, shared_gate)
    if len(x) > _FEW_ROWS:
        from recipes.components.gpu.grouped_experts import grouped_mixture

        return grouped_mixture(x, experts, weights, chosen, shared, shared_gate)
    parts = output_rows(inner_rows(x, experts, chosen), experts, chosen)
    return _add(parts, weights, shared, shared_gate)


def inner_rows(x: Tensor, experts: PackedExperts, chosen: Tensor, *, turned: bool = False) -> Tensor:
    """silu(gate) * up [R, top, I] of each row's experts, as `output_rows` takes it. Kernel only, up to 128 rows.

    `turned`: `x` [R, H] is in the order of `turned` (packed_kernels.py), at least cost here.
    """
    from recipes.components.gpu.experts_kernels import experts_in

    (count, hidden), inner, tile = x.shape, experts.down.shape[2] * 2, _IN[len(x) > APART]
    out = torch.empty(count, experts.top, inner, dtype=x.dtype, device=x.device)
    warps = min(_WARPS, power_above(-(-hidden // _CHUNK)))
    turns = -(-hidden // (_CHUNK * warps))
    experts_in[(-(-inner // (4 * eights(tile.outputs))), count * experts.top)](
        x, experts.gate_up, experts.gate_up_scales, experts.gate_up_singles, chosen, out, count, experts.top,
        power_above(experts.top), places(count), inner, hidden, warps, eights(tile.outputs), turns,
        min(tile.ahead, turns), turned, **packed_options(x, warps), **tile.options(),
    )  # fmt: skip
    return out


def output_rows(inner: Tensor, experts: PackedExperts, chosen: Tensor) -> Tensor:
    """float32 [R, top, H]: each expert's output of what `inner_rows` made right before. Kernel only."""
    from recipes.components.gpu.experts_kernels import experts_out

    (count, top, size), hidden, tile = inner.shape, experts.down.shape[1], output_tile(len(inner))
    out = torch.empty(count, top, hidden, dtype=torch.float32, device=inner.device)
    turns = -(-size // _CHUNK)
    experts_out[(output_programs(experts, count), count * top)](
        inner, experts.down, experts.down_scales, experts.down_singles, chosen, out, count, top, power_above(top),
        places(count), hidden, size, _WARPS, eights(tile.outputs), turns, min(tile.ahead, turns),
        **packed_options(inner, _WARPS), **tile.options(),
    )  # fmt: skip
    return out


def output_tile(rows: int) -> Tile:
    """How outputs of so many rows are divided."""
    return _OUT[rows > APART]


def output_programs(experts: PackedExperts, rows: int) -> int:
    """Programs along the outputs for a row's expert."""
    return -(-experts.down.shape[1] // (8 * eights(output_tile(rows).outputs) * _WARPS))


def _add(parts: Tensor, weights: Tensor, shared: Tensor, shared_gate: Tensor) -> Tensor:
    from recipes.components.gpu.experts_kernels import add_experts

    (count, top, hidden), out, early = parts.shape, torch.empty_like(shared), chained(parts)
    add_experts[(count, -(-hidden // _COLUMNS))](
        parts, weights, shared, shared_gate, out, shared_gate.stride(0), top, power_above(top), hidden, _COLUMNS,
        early, **_launched(early),
    )  # fmt: skip
    return out


def places(rows: int) -> int:
    """Rows that a kernel is made for: one (any number, each apart), or a power of two."""
    return 1 if rows <= APART else power_above(rows)


def _launched(early: bool) -> dict[str, object]:
    return {"launch_pdl": True} if early else {}


def packed_options(x: Tensor, warps: int) -> dict[str, object]:
    """What kernels over packed weights take by name."""
    import triton.language as tl

    early = chained(x)
    kind = tl.float32 if x.dtype == torch.float32 else tl.bfloat16
    return {"TYPE": kind, "CHAINED": early, "num_warps": warps, "num_stages": 1, **_launched(early)}


def _mixture(
    x: Tensor, experts: PackedExperts, weights: Tensor, chosen: Tensor, shared: Tensor, shared_gate: Tensor
) -> Tensor:
    found = shared_gate.float().sigmoid()[:, None] * shared.float()
    for rank in range(experts.top):
        pick = chosen[:, rank].long()
        gate_up = _wide(experts.gate_up[pick], experts.gate_up_scales[pick])
        gates, ups = torch.einsum("rh,rnh->rn", x.float(), gate_up).chunk(2, dim=-1)
        singles = experts.gate_up_singles[pick]
        inner = silu(gates * singles[:, :1]) * (ups * singles[:, 1:])
        down = _wide(experts.down[pick], experts.down_scales[pick]) * experts.down_singles[pick][:, None, None]
        found = found + torch.einsum("ri,rhi->rh", inner, down) * weights[:, rank, None]
    return found.to(x.dtype)


def _wide(packed: Tensor, scales: Tensor) -> Tensor:
    return nvfp4.dequantize(packed, scales.view(torch.float8_e4m3fn), torch.ones((), device=packed.device))
