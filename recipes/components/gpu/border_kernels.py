"""Triton functions that find the border of a filter in a row, and draw from what passes it. One program has a row.

A row holds distances from its largest logit. Their bits order them (`key`: the smaller, the likelier), so a border is a
key. Where few tokens can pass, they are gathered and compared or sorted; else it is found bit by bit over all of it.
Weights and sums are float64.
"""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

NO_KEY = tl.constexpr(0x7FFFFFFF)
"""Behind every key, that of minus infinity included."""
INFINITE = tl.constexpr(0x7F800000)
PARTS = tl.constexpr(64)
"""Most blocks of a row."""


@triton.jit
def key_of(scaled: tl.tensor) -> tl.tensor:
    """int32 keys of distances float32 <= 0: in the order of their absolute values."""
    return tl.abs(scaled).to(tl.int32, bitcast=True)


@triton.jit
def weight_of(key: tl.tensor) -> tl.tensor:
    """exp(-distance) float64, the largest logit's being one."""
    return tl.exp(-(key.to(tl.float32, bitcast=True).to(tl.float64)))


@triton.jit
def _weights(
    row: tl.tensor, start: tl.tensor, border: tl.tensor, floor: tl.tensor, V: tl.constexpr, BLOCK: tl.constexpr
) -> tl.tensor:
    """Weights float64 of a block of tokens: zero unless the key is at most `border` and the weight at least `floor`."""
    token = start + tl.arange(0, BLOCK)
    key = key_of(tl.load(row + token, mask=token < V, other=float("-inf")))
    weight = tl.where(key < INFINITE, weight_of(key), 0.0)
    return tl.where((key <= border) & (weight >= floor), weight, 0.0)


@triton.jit
def count_below(row: tl.tensor, bound: tl.tensor, V: tl.constexpr, BLOCK: tl.constexpr) -> tl.tensor:
    """How many tokens have a key below `bound`."""
    at = tl.arange(0, BLOCK)
    found = tl.zeros([BLOCK], tl.int32)
    for start in range(0, V, BLOCK):
        token = start + at
        scaled = tl.load(row + token, mask=token < V, other=float("-inf"))
        found += ((key_of(scaled) < bound) & (token < V)).to(tl.int32)
    return tl.sum(found)


@triton.jit
def mass_below(row: tl.tensor, bound: tl.tensor, V: tl.constexpr, BLOCK: tl.constexpr) -> tl.tensor:
    """Weight float64 of the tokens with a key below `bound`."""
    at = tl.arange(0, BLOCK)
    found = tl.zeros([], tl.float64)
    for start in range(0, V, BLOCK):
        token = start + at
        key = key_of(tl.load(row + token, mask=token < V, other=float("-inf")))
        found += tl.sum(tl.where((key < bound) & (key < INFINITE), weight_of(key), 0.0))
    return found


@triton.jit
def border_of_rank(row: tl.tensor, rank: tl.tensor, V: tl.constexpr, BLOCK: tl.constexpr) -> tl.tensor:
    """The key of the `rank`th likeliest token, bit by bit."""
    border = rank * 0
    for step in range(31):
        candidate = border | (1 << (30 - step))
        border = tl.where(count_below(row, candidate, V, BLOCK) < rank, candidate, border)
    return border


@triton.jit
def border_of_mass(
    row: tl.tensor, bound: tl.tensor, mass: tl.tensor, V: tl.constexpr, BLOCK: tl.constexpr
) -> tl.tensor:
    """The smallest key up to which the tokens below `bound` weigh at least `mass`, bit by bit."""
    border = bound * 0
    for step in range(31):
        candidate = border | (1 << (30 - step))
        below = mass_below(row, tl.minimum(candidate, bound), V, BLOCK)
        border = tl.where(below < mass, candidate, border)
    return border


@triton.jit
def draw_all(
    row: tl.tensor, border: tl.tensor, floor: tl.tensor, draw: tl.tensor, V: tl.constexpr, BLOCK: tl.constexpr
) -> tl.tensor:
    """Inverse of the cumulative sums in id order, over all tokens with a key up to `border` that weigh `floor`."""
    tl.static_assert(V <= BLOCK * PARTS)
    part = tl.arange(0, PARTS)
    sums = tl.zeros([PARTS], tl.float64)
    for index in range((V + BLOCK - 1) // BLOCK):
        sums += tl.where(part == index, tl.sum(_weights(row, index * BLOCK, border, floor, V, BLOCK)), 0.0)
    reached = tl.cumsum(sums, 0)
    target = draw.to(tl.float64) * tl.max(reached)
    own = tl.min(tl.where(reached >= target, part, PARTS - 1))
    before = tl.sum(tl.where(part < own, sums, 0.0))
    weight = _weights(row, own * BLOCK, border, floor, V, BLOCK)
    token = own * BLOCK + tl.arange(0, BLOCK)
    found = tl.min(tl.where((weight > 0) & (tl.cumsum(weight, 0) + before >= target), token, V))
    last = tl.max(tl.where(weight > 0, token, 0))  # rounding at the upper end may land behind the last real token
    return tl.where(found < V, found, last).to(tl.int64)


@triton.jit
def draw_few(
    gathered: tl.tensor, count: tl.tensor, top_k: tl.tensor, mass: tl.tensor, total: tl.tensor, ratio: tl.tensor,
    draw: tl.tensor, CAPACITY: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The same over `count` gathered tokens (key << 32 | id), among which all that may pass are.

    `mass` is top-p or above one, `total` the row's weight or 0 where the top-k weigh for themselves, `ratio` min-p.
    """
    at = tl.arange(0, CAPACITY)
    packed = tl.load(gathered + at, mask=at < count, other=0x7FFFFFFF00000000)
    packed = tl.sort(packed)
    key = (packed >> 32).to(tl.int32)
    valid = (at < count) & (key < INFINITE)
    border = tl.max(tl.where(at == top_k - 1, key, 0))
    valid = valid & (key <= tl.where(top_k <= 0, NO_KEY, border))
    weight = tl.where(valid, weight_of(tl.where(valid, key, 0)), 0.0)
    whole = tl.where(total > 0, total, tl.sum(weight))
    probability = weight / whole
    behind = tl.sum((tl.cumsum(probability, 0) < mass).to(tl.int32))
    border = tl.max(tl.where(at == tl.minimum(behind, CAPACITY - 1), key, 0))
    valid = valid & (key <= tl.where(mass >= 1.0, NO_KEY, border))
    valid = valid & (probability >= ratio * tl.max(probability))
    by_id = tl.where(valid, ((packed & 0xFFFFFFFF) << 32) | key.to(tl.int64), 0x7FFFFFFFFFFFFFFF)
    by_id = tl.sort(by_id)
    valid = by_id < 0x7FFFFFFFFFFFFFFF
    key = (by_id & 0x7FFFFFFF).to(tl.int32)
    weight = tl.where(valid, weight_of(tl.where(valid, key, 0)), 0.0)
    sums = tl.cumsum(weight, 0)
    target = draw.to(tl.float64) * tl.max(sums)
    first = tl.min(tl.where(valid & (sums >= target), at, CAPACITY - 1))
    return tl.max(tl.where(at == tl.minimum(first, tl.sum(valid.to(tl.int32)) - 1), by_id >> 32, 0))


@triton.jit
def draw_fewest(
    gathered: tl.tensor, count: tl.tensor, top_k: tl.tensor, mass: tl.tensor, total: tl.tensor, ratio: tl.tensor,
    draw: tl.tensor, CAPACITY: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """`draw_few` for so few tokens that each is compared with each: no sorting."""
    at = tl.arange(0, CAPACITY)
    packed = tl.load(gathered + at, mask=at < count, other=0x7FFFFFFF00000000)
    key, token = (packed >> 32).to(tl.int32), packed & 0xFFFFFFFF
    valid = (at < count) & (key < INFINITE)
    ahead = tl.sum((packed[None, :] < packed[:, None]).to(tl.int32), 1)
    border = tl.max(tl.where(ahead == top_k - 1, key, 0))
    valid = valid & (key <= tl.where(top_k <= 0, NO_KEY, border))
    weight = tl.where(valid, weight_of(tl.where(valid, key, 0)), 0.0)
    probability = weight / tl.where(total > 0, total, tl.sum(weight))
    reached = tl.sum(tl.where(packed[None, :] <= packed[:, None], probability[None, :], 0.0), 1)
    border = tl.min(tl.where(valid & (reached >= mass), key, NO_KEY))
    valid = valid & (key <= tl.where(mass >= 1.0, NO_KEY, border))
    valid = valid & (probability >= ratio * tl.max(probability))
    weight = tl.where(valid, weight, 0.0)
    sums = tl.sum(tl.where(token[None, :] <= token[:, None], weight[None, :], 0.0), 1)
    target = draw.to(tl.float64) * tl.sum(weight)
    found = tl.min(tl.where(valid & (sums >= target), token, 0x7FFFFFFF))
    return tl.where(found < 0x7FFFFFFF, found, tl.max(tl.where(valid, token, 0)))


@triton.jit
def border_of_columns(nearest: tl.tensor, rank: tl.tensor, BLOCK: tl.constexpr, COLUMNS: tl.constexpr) -> tl.tensor:
    """A key up to which at least `rank` tokens lie, of the smallest keys of `BLOCK` columns.

    Columns are joined to `COLUMNS` where so many are enough, and then compared each with each.
    """
    border = rank * 0
    if rank <= COLUMNS:
        joined = tl.min(tl.reshape(nearest, [BLOCK // COLUMNS, COLUMNS]), 0)
        covered = tl.sum((joined[None, :] <= joined[:, None]).to(tl.int32), 1)
        border = tl.min(tl.where(covered >= rank, joined, NO_KEY))
    else:
        for step in range(31):
            candidate = border | (1 << (30 - step))
            border = tl.where(tl.sum((nearest < candidate).to(tl.int32)) < rank, candidate, border)
    return border


@triton.jit
def gather(
    row: tl.tensor, border: tl.tensor, gathered: tl.tensor, counter: tl.tensor, V: tl.constexpr, BLOCK: tl.constexpr,
    CAPACITY: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Gathers the tokens with a key up to `border`, in any order; how many there are, also where they do not fit."""
    at = tl.arange(0, BLOCK)
    tl.store(counter, 0)
    tl.debug_barrier()
    for start in range(0, V, BLOCK):
        token = start + at
        key = key_of(tl.load(row + token, mask=token < V, other=float("-inf")))
        wanted = (token < V) & (key <= border)
        place = tl.atomic_add(counter + at * 0, 1, mask=wanted, sem="relaxed")
        packed = (key.to(tl.int64) << 32) | token.to(tl.int64)
        tl.store(gathered + place, packed, mask=wanted & (place < CAPACITY))
    tl.debug_barrier()
    return tl.load(counter)
