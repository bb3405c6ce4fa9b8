"""A mixture of experts on a device over NVFP4 weights as the checkpoint packs them, activations unrounded (W4A16).

Runs in the worker, for rounds of few rows. References: experts.py, nvfp4.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import silu

from recipes.components import nvfp4
from recipes.components.gpu.launch import power_above, power_below, runs_triton

_OUTPUTS = 4
_COLUMNS = 256


def _pieces(inner: int) -> tuple[int, int]:
    """Words of eight inputs in two powers of two; the second may be wider than what is left, or nothing."""
    words = inner // 8
    first = power_below(words)
    return first, power_above(words - first) if words > first else 0


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


def route(scores: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """(weights float32, experts int32) [R, top] of router scores [R, E]; equal scores go to the lower expert."""
    if not runs_triton(scores):
        ranked = torch.sort(torch.softmax(scores.float(), -1), dim=-1, descending=True, stable=True)
        weights = ranked.values[:, :top]
        return weights / weights.sum(-1, keepdim=True), ranked.indices[:, :top].int()
    from recipes.components.gpu.experts_kernels import route as kernel

    count, experts = scores.shape
    weights = torch.empty(count, top, dtype=torch.float32, device=scores.device)
    chosen = torch.empty(count, top, dtype=torch.int32, device=scores.device)
    kernel[(count,)](scores, weights, chosen, experts, power_above(experts), top, power_above(top))
    return weights, chosen


def mixture(
    x: Tensor, experts: PackedExperts, weights: Tensor, chosen: Tensor, shared: Tensor, shared_gate: Tensor
) -> Tensor:
    """[R, H] of block input `x` [R, H]: the routed experts' weighted sum and sigmoid(`shared_gate` [R]) * `shared`."""
    if not runs_triton(x):
        return _mixture(x, experts, weights, chosen, shared, shared_gate)
    from recipes.components.gpu.experts_kernels import add_experts, experts_in, experts_out

    (count, hidden), inner_size = x.shape, experts.down.shape[2] * 2
    picks = count * experts.top
    inner = torch.empty(picks, inner_size, dtype=x.dtype, device=x.device)
    experts_in[(picks, -(-inner_size // _OUTPUTS))](
        x, experts.gate_up, experts.gate_up_scales, experts.gate_up_singles, chosen, inner, experts.top, inner_size,
        hidden, _OUTPUTS, *_pieces(hidden),
    )  # fmt: skip
    parts = torch.empty(picks, hidden, dtype=torch.float32, device=x.device)
    experts_out[(picks, -(-hidden // (2 * _OUTPUTS)))](
        inner, experts.down, experts.down_scales, experts.down_singles, chosen, parts, hidden, inner_size,
        2 * _OUTPUTS, *_pieces(inner_size),
    )  # fmt: skip
    out = torch.empty_like(x)
    add_experts[(count, -(-hidden // _COLUMNS))](
        parts, weights, shared, shared_gate, out, experts.top, hidden, _COLUMNS
    )
    return out


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
