"""Triton functions over tokens gathered from a row: filters, and draws from what passes them. One program has them all.

Gathered tokens are int64 `key << 32 | id`, in any order. `FEW`: so few that each is compared with each; else borders
are sought bit by bit, in registers. Nothing is sorted.
"""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from recipes.components.gpu.border_kernels import INFINITE, NO_KEY, weight_of

PAD = tl.constexpr(0x7FFFFFFF00000000)
"""What stands behind the last gathered token: a key behind every key."""


@triton.jit
def rank_among(key: tl.tensor, rank: tl.tensor, low: tl.tensor, high: tl.tensor) -> tl.tensor:
    """The `rank`th smallest of `key` int32 [N], known to lie in [low, high]."""
    while low < high:
        middle = low + (high - low) // 2
        enough = tl.sum((key <= middle).to(tl.int32)) >= rank
        high = tl.where(enough, middle, high)
        low = tl.where(enough, low, middle + 1)
    return low


@triton.jit
def mass_among(
    key: tl.tensor, weight: tl.tensor, before: tl.tensor, mass: tl.tensor, low: tl.tensor, high: tl.tensor
) -> tl.tensor:  # fmt: skip
    """The smallest key of [low, high] up to which the tokens weigh `mass`, of which `before` lies outside."""
    while low < high:
        middle = low + (high - low) // 2
        enough = before + tl.sum(tl.where(key <= middle, weight, 0.0)) >= mass
        high = tl.where(enough, middle, high)
        low = tl.where(enough, low, middle + 1)
    return low


@triton.jit
def filtered(
    packed: tl.tensor, count: tl.tensor, rank: tl.tensor, top_p: tl.tensor, ratio: tl.tensor, FEW: tl.constexpr
) -> tl.tensor:  # fmt: skip
    """Weights float64 [N] of gathered tokens, zero where top-k, top-p or min-p leave one out.

    The likeliest `rank` tokens and what ties with the last of them are among the `count`.
    """
    key = (packed >> 32).to(tl.int32)
    valid = key < INFINITE
    highest = tl.max(tl.where(valid, key, 0))
    if FEW:
        ahead = tl.sum((packed[None, :] < packed[:, None]).to(tl.int32), 1)
        border = tl.max(tl.where(ahead == rank - 1, key, 0))
    else:
        border = rank_among(key, tl.minimum(rank, count), tl.zeros([], tl.int32), highest)
    border = tl.where(count < rank, NO_KEY, border)
    weight = tl.where(valid & (key <= border), weight_of(tl.where(valid, key, 0)), 0.0)
    if top_p < 1.0:
        mass = top_p.to(tl.float64) * tl.sum(weight)
        if FEW:
            upto = tl.sum(tl.where(packed[None, :] <= packed[:, None], weight[None, :], 0.0), 1)
            nucleus = tl.min(tl.where((weight > 0) & (upto >= mass), key, NO_KEY))
        else:
            nucleus = mass_among(key, weight, 0.0, mass, tl.zeros([], tl.int32), highest)
        weight = tl.where(key <= nucleus, weight, 0.0)
    return tl.where(weight >= ratio, weight, 0.0)


@triton.jit
def pick_among(packed: tl.tensor, weight: tl.tensor, draw: tl.tensor, FEW: tl.constexpr) -> tl.tensor:
    """Inverse of the cumulative weights in the order of ids: int64."""
    token = packed & 0xFFFFFFFF
    target = draw.to(tl.float64) * tl.sum(weight)
    if FEW:
        sums = tl.sum(tl.where(token[None, :] <= token[:, None], weight[None, :], 0.0), 1)
        found = tl.min(tl.where((weight > 0) & (sums >= target), token, 0xFFFFFFFF))
    else:
        # The largest id below which there is less than the target; none if rounding puts the target behind all.
        found = tl.zeros([], tl.int64)
        for step in range(31):
            candidate = found | (tl.full([], 1, tl.int64) << (30 - step))
            below = tl.sum(tl.where(token < candidate, weight, 0.0))
            found = tl.where(below < target, candidate, found)
    return tl.minimum(found, tl.max(tl.where(weight > 0, token, 0)))
