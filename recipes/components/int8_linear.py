"""A linear layer with exact integer sums: int8 weights per output channel, activations of 14 bits per row in two parts.

Runs in the worker on the CPU. The two parts of a row are two rows of one integer product, so a weight is read once; the
sum over the inner dimension is exact, hence independent of how many rows share the product. Everything else acts on one
element at a time and rounds the same way fused or not (the parts differ by a power of two, divisions are never
contracted): a row's result is bitwise the same in every batch. Measured in docs/log.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

PARTS = 128
"""The low part counts in 1/128 of the high part."""
ZERO = 64
"""Both parts are 0 .. 127 around this zero. As uint8 they take oneDNN's fast path, which signed rows lack; and two
products of 127 * 127 fit the 16 bits in which machines without VNNI add them, so that no machine saturates."""
_ROW_LEVELS = 63
_WEIGHT_LEVELS = 127
_TINY = 1e-30
# Half a high step because the low part's zero is its middle, half a low step because it is rounded down.
_CENTRE = torch.tensor(ZERO + 0.5 + 0.5 / PARTS)


def quantise_channels(weight: Tensor) -> tuple[Tensor, Tensor]:
    """(int8 [N, K], float32 scale [N]) nearest to `weight` float [N, K]."""
    scale = weight.abs().amax(dim=1).float().clamp_min(_TINY) / _WEIGHT_LEVELS
    return (weight.float() / scale[:, None]).round().clamp(-_WEIGHT_LEVELS, _WEIGHT_LEVELS).to(torch.int8), scale


def split_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """(uint8 [2R, K], float32 top [R, 1]) of `rows` float32 [R, K]: high parts, then low parts; top is max |row|.

    rows = top / 63 * (high - 64 + (low - 64) / 128), off by at most half a low step. The offset keeps the quotient
    above one, where taking its whole part away is exact. A row of zeros has any parts, and top zero.
    """
    count, inner = rows.shape
    top = torch.linalg.vector_norm(rows, math.inf, dim=1, keepdim=True)
    parts = rows.new_empty(2, count, inner)
    high, low = parts.unbind()
    torch.addcdiv(_CENTRE, rows, top, value=_ROW_LEVELS, out=high)
    torch.frac(high, out=low).mul_(PARTS)
    # The conversion rounds down, as both are positive. By way of int8: that to uint8 is not vectorised.
    return parts.view(2 * count, inner).to(torch.int8).view(torch.uint8), top


@dataclass(frozen=True, slots=True)
class Int8Linear:
    """`packed` is oneDNN's layout of int8 [N, K]; `scale` float32 [N] has 1 / 63 in it. Built by `int8_linear`."""

    packed: Tensor
    scale: Tensor
    zero_points: Tensor

    def __call__(self, rows: Tensor, divisor: Tensor | None = None) -> Tensor:
        """float32 [R, N] of `rows` float32 [R, K] over `divisor` float32 [R, 1]."""
        parts, top = split_rows(rows)
        if divisor is not None:
            top.div_(divisor)
        high, low = _scaled_products(parts, self.packed, self.scale, self.zero_points).chunk(2)
        return torch.add(high, low, alpha=1 / PARTS).mul_(top)


@dataclass(frozen=True, slots=True)
class FloatLinear:
    """A plain float32 layer, `weight` [N, K]: the reference arithmetic, and the fallback. Not row-invariant."""

    weight: Tensor

    def __call__(self, rows: Tensor, divisor: Tensor | None = None) -> Tensor:
        """float32 [R, N] of `rows` float32 [R, K] over `divisor` float32 [R, 1]."""
        found = torch.nn.functional.linear(rows, self.weight)
        return found if divisor is None else found.div_(divisor)


Linear = Int8Linear | FloatLinear


def int8_linear(weight: Tensor, scale: Tensor) -> Int8Linear:
    """The layer over `weight` int8 [N, K] and `scale` float32 [N]; both are copied."""
    packed = torch.ops.onednn.qlinear_prepack(weight, None)
    return Int8Linear(packed, scale / _ROW_LEVELS, torch.zeros(len(scale), dtype=torch.int64))


def _scaled_products(parts: Tensor, packed: Tensor, scale: Tensor, zero_points: Tensor) -> Tensor:
    """float32 [M, N]: (parts - 64) @ weight.T summed in int32, then times the channel's scale."""
    found: Tensor = torch.ops.onednn.qlinear_pointwise(
        parts, 1.0, ZERO, packed, scale, zero_points, None, 1.0, 0, torch.float32, "none", [], ""
    )
    return found


def reference_int8_linear(rows: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """What `Int8Linear` computes, spelled out in float64 over integers."""
    parts, top = split_rows(rows)
    signed = parts.double() - ZERO
    sums = signed @ weight.double().t()
    count = rows.shape[0]
    joined = sums[:count] + sums[count:] / PARTS
    return (joined * (scale.double() / _ROW_LEVELS) * top.double()).float()


def integer_products_are_exact(inner: int = 1536) -> bool:
    """Whether this machine's integer product is exact at the ends of the range. It is meant to be on all of them."""
    weight = torch.full((64, inner), 127, dtype=torch.int8)
    weight[::3, ::2] = -127
    layer = int8_linear(weight, torch.full((64,), float(_ROW_LEVELS)))
    for count in (1, 2, 3, 16, 33):
        parts = torch.full((count, inner), 127, dtype=torch.uint8)
        parts[::2, ::3] = 0
        wanted = (parts.double() - ZERO) @ weight.double().t()
        if not torch.equal(_scaled_products(parts, layer.packed, layer.scale, layer.zero_points).double(), wanted):
            return False
    return True
