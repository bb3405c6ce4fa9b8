"""Triton functions of target laws: keys, weights and uniforms, and borders of filters sought over a whole row.

A token's key is the bits of its distance from the row's largest logit, over the temperature: the smaller, the likelier,
and a filter's border is a key. Weights and sums are float64. What searches a row bit by bit is for one program alone,
where faster ways have failed.
"""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

NO_KEY = tl.constexpr(0x7FFFFFFF)
"""Behind every key, that of minus infinity included."""
INFINITE = tl.constexpr(0x7F800000)


@triton.jit
def key_of(scaled: tl.tensor) -> tl.tensor:
    """int32 keys of distances float32 <= 0: in the order of their absolute values."""
    return tl.abs(scaled).to(tl.int32, bitcast=True)


@triton.jit
def weight_of(key: tl.tensor) -> tl.tensor:
    """exp(-distance) float64, the largest logit's being one."""
    return tl.exp(-(key.to(tl.float32, bitcast=True).to(tl.float64)))


@triton.jit
def kept_weight(key: tl.tensor, border: tl.tensor, floor: tl.tensor) -> tl.tensor:
    """Weights float64: zero unless the key is at most `border` and the weight at least `floor`."""
    weight = tl.where(key < INFINITE, weight_of(key), 0.0)
    return tl.where((key <= border) & (weight >= floor), weight, 0.0)


@triton.jit
def uniform(key: tl.tensor, offset: tl.tensor) -> tl.tensor:
    """The draw at `offset` of the stream of `key`, both int64: float32 in (0, 1]."""
    counter = offset >> 2
    zero = (counter * 0).to(tl.uint32)
    w0, w1, w2, w3 = tl.philox(key, counter.to(tl.uint32), (counter >> 32).to(tl.uint32), zero, zero)
    word = offset & 3
    chosen = tl.where(word < 2, tl.where(word == 0, w0, w1), tl.where(word == 2, w2, w3))
    return chosen.to(tl.uint32, bitcast=True).to(tl.float32) * 2.3283064365386963e-10 + 1.1641532182693481e-10


@triton.jit
def pick_in_block(weight: tl.tensor, token: tl.tensor, before: tl.tensor, target: tl.tensor) -> tl.tensor:
    """Where the cumulative sum of `weight` over ascending ids `token`, on top of `before`, reaches `target`: int64."""
    reached = (weight > 0) & (tl.cumsum(weight, 0) + before >= target)
    found = tl.min(tl.where(reached, token, 0x7FFFFFFF))
    last = tl.max(tl.where(weight > 0, token, 0))  # rounding at the upper end may land behind the last real token
    return tl.where(found < 0x7FFFFFFF, found, last).to(tl.int64)


@triton.jit
def reached_part(sums: tl.tensor, draw: tl.tensor, PARTS: tl.constexpr) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """The part whose sum float64 [PARTS] a draw falls into, what lies before it, and the draw's target."""
    part = tl.arange(0, PARTS)
    reached = tl.cumsum(sums, 0)
    target = draw.to(tl.float64) * tl.max(reached)
    own = tl.min(tl.where((sums > 0) & (reached >= target), part, PARTS - 1))
    return own, tl.sum(tl.where(part < own, sums, 0.0)), target


@triton.jit
def _count_below(row: tl.tensor, bound: tl.tensor, V: tl.constexpr, BLOCK: tl.constexpr) -> tl.tensor:
    """How many tokens have a key below `bound`; `row` holds distances."""
    at = tl.arange(0, BLOCK)
    found = tl.zeros([BLOCK], tl.int32)
    for start in range(0, V, BLOCK):
        token = start + at
        scaled = tl.load(row + token, mask=token < V, other=float("-inf"))
        found += ((key_of(scaled) < bound) & (token < V)).to(tl.int32)
    return tl.sum(found)


@triton.jit
def mass_below(
    row: tl.tensor, bound: tl.tensor, floor: tl.tensor, V: tl.constexpr, BLOCK: tl.constexpr
) -> tl.tensor:  # fmt: skip
    """Weight float64 of the tokens with a key below `bound` that weigh at least `floor`."""
    at = tl.arange(0, BLOCK)
    found = tl.zeros([BLOCK], tl.float64)
    for start in range(0, V, BLOCK):
        token = start + at
        key = key_of(tl.load(row + token, mask=token < V, other=float("-inf")))
        found += kept_weight(key, bound - 1, floor)
    return tl.sum(found)


@triton.jit
def border_of_rank(row: tl.tensor, rank: tl.tensor, V: tl.constexpr, BLOCK: tl.constexpr) -> tl.tensor:
    """The key of the `rank`th likeliest token, bit by bit."""
    border = rank * 0
    for step in range(31):
        candidate = border | (1 << (30 - step))
        border = tl.where(_count_below(row, candidate, V, BLOCK) < rank, candidate, border)
    return border


@triton.jit
def border_of_mass(
    row: tl.tensor, bound: tl.tensor, mass: tl.tensor, V: tl.constexpr, BLOCK: tl.constexpr
) -> tl.tensor:
    """The smallest key up to which the tokens below `bound` weigh at least `mass`, bit by bit."""
    border = bound * 0
    for step in range(31):
        candidate = border | (1 << (30 - step))
        below = mass_below(row, tl.minimum(candidate, bound), 0.0, V, BLOCK)
        border = tl.where(below < mass, candidate, border)
    return border
