"""Triton kernels that choose the best of each row's scores for the many rows of a prompt chunk, one row a program.

Scores are not negative, so their bits are in the order of their values. A key that exactly the budget's number of keys
reach is sought between bounds that close in by counting; where equal scores leave no such key, the first of them are
taken. What is chosen comes out in ascending order, and does not depend on the way of the search.
"""

# mypy: disable-error-code="untyped-decorator,no-any-return"
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _bounds(
    low: tl.tensor, high: tl.tensor, reached: tl.tensor, beyond: tl.tensor, step: tl.tensor, BUDGET: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """Two keys inside `low` .. `high`, around where the budget would be if keys were spread evenly.

    Every fourth step takes thirds, whatever the counts say.
    """
    guess = (reached - BUDGET).to(tl.float32) / (reached - beyond).to(tl.float32)
    even = step % 4 == 3
    lower = tl.where(even, 0.333, tl.maximum(guess - 0.125, 0.0625))
    upper = tl.where(even, 0.667, tl.minimum(guess + 0.125, 0.9375))
    wide = (high - low).to(tl.float32)
    one = tl.minimum(tl.maximum(low + (wide * lower).to(tl.int32), low + 1), high - 1)
    return one, tl.minimum(tl.maximum(low + (wide * upper).to(tl.int32), one), high - 1)


@triton.jit
def _limit(keyed: tl.tensor, BUDGET: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """(a key, how many of `keyed` reach it): the budget's number, or more, but fewer are larger."""
    low, reached = tl.zeros([], tl.int32), tl.sum((keyed >= 0).to(tl.int32))
    high, beyond = tl.max(keyed) + 1, tl.zeros([], tl.int32)
    step = tl.zeros([], tl.int32)
    while (high - low > 1) & (reached != BUDGET):
        one, two = _bounds(low, high, reached, beyond, step, BUDGET)
        # Both counts in one sum: there are fewer than 2^15 keys.
        counts = tl.sum((keyed >= one).to(tl.int32) + ((keyed >= two).to(tl.int32) << 16))
        first, second = counts & 0xFFFF, counts >> 16
        above, under = second >= BUDGET, first < BUDGET
        reached = tl.where(above, second, tl.where(under, reached, first))
        beyond = tl.where(above, beyond, tl.where(under, first, second))
        low, high = tl.where(above, two, tl.where(under, low, one)), tl.where(above, high, tl.where(under, one, two))
        step += 1
    return low, reached


@triton.jit
def _ranks(marked: tl.tensor) -> tl.tensor:
    """How many of `marked` int32 [lines, 32] are before each. A scan along one line crosses no warp."""
    lines = tl.sum(marked, 1)
    return tl.cumsum(marked, 1) - marked + (tl.cumsum(lines, 0) - lines)[:, None]


@triton.jit
def _best_of(bits: tl.tensor, valid: tl.tensor, BUDGET: tl.constexpr) -> tl.tensor:
    """Which to take of more `valid` ones than the budget."""
    # One is added to the largest: whatever a score that is no number looks like, that must not be negative.
    keyed = tl.where(valid, tl.minimum(bits & 0x7FFFFFFF, 0x7FFFFFFE), -1)
    limit, reached = _limit(keyed, BUDGET)
    take = keyed >= limit
    if reached > BUDGET:
        ties = (keyed == limit).to(tl.int32)
        take = take & ((ties == 0) | (_ranks(ties) < BUDGET - reached + tl.sum(ties)))
    return take


@triton.jit
def _choose(
    line: tl.tensor, out: tl.tensor, masks: tl.tensor, visible: tl.tensor, BUDGET: tl.constexpr, BG: tl.constexpr,
    WORDS: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Writes the choice of a row that sees at most `BG` groups; how many there are. Equal scores: the lower group."""
    at = tl.arange(0, BG // 32)[:, None] * 32 + tl.arange(0, 32)[None, :]
    take = at < visible
    place = at
    if visible > BUDGET:
        bits = tl.load(line + at, mask=at < visible, other=0).to(tl.int32, bitcast=True)
        take = _best_of(bits, at < visible, BUDGET)
        place = _ranks(take.to(tl.int32))
    tl.store(out + place, at, mask=take)
    if WORDS > 0:
        # The open tail is a group of its own, and everyone's choice.
        marked = (take | (at == visible)).to(tl.int32) << (at % 16)
        word = tl.arange(0, BG // 16)
        tl.store(masks + word, tl.sum(tl.reshape(marked, (BG // 16, 16)), 1), mask=word < WORDS)
    return tl.minimum(visible, BUDGET)


@triton.jit
def _choose_far(
    line: tl.tensor, out: tl.tensor, visible: tl.tensor, BUDGET: tl.constexpr, BLOCK: tl.constexpr
) -> tl.tensor:
    """As `_choose` for any number of groups, which are counted block by block and byte by byte."""
    limit, need = tl.zeros([], tl.int32), tl.full([], BUDGET, tl.int32)
    at, digit = tl.arange(0, BLOCK), tl.arange(0, 256)
    for step in tl.static_range(4):
        counts = tl.zeros([256], tl.int32)
        for start in tl.range(0, visible, BLOCK):
            here = start + at < visible
            bits = tl.load(line + start + at, mask=here, other=0).to(tl.int32, bitcast=True)
            if step > 0:
                here = here & ((bits >> (32 - 8 * step)) == limit)
            counts += tl.histogram((bits >> (24 - 8 * step)) & 255, 256, mask=here)
        above = tl.sum(counts, 0) - tl.cumsum(counts, 0)
        best = tl.max(tl.where(above + counts >= need, digit, 0), 0)
        need -= tl.sum(tl.where(digit == best, above, 0), 0)
        limit = limit * 256 + best
    taken = tl.zeros([], tl.int32)
    for start in tl.range(0, visible, BLOCK):
        here = start + at < visible
        bits = tl.load(line + start + at, mask=here, other=0).to(tl.int32, bitcast=True)
        larger, equal = here & (bits > limit), here & (bits == limit)
        ranks = tl.cumsum(larger.to(tl.int32) + equal.to(tl.int32) * 65536, 0)
        take = larger | (equal & ((ranks >> 16) <= need))
        place = taken + (ranks & 65535) + tl.minimum(ranks >> 16, need) - 1
        tl.store(out + place, start + at, mask=take)
        ties = tl.minimum(tl.sum(equal.to(tl.int32), 0), need)
        taken += tl.sum(larger.to(tl.int32), 0) + ties
        need -= ties
    return taken


@triton.jit
def choose_near(
    scores: tl.tensor, positions: tl.tensor, chosen: tl.tensor, numbers: tl.tensor, masks: tl.tensor, G: tl.tensor,
    RATIO: tl.constexpr, BUDGET: tl.constexpr, NEAR: tl.constexpr, BN: tl.constexpr, WORDS: tl.constexpr,
) -> None:  # fmt: skip
    """Rows that see fewer groups than `NEAR`, which `BN` covers: `chosen` int32 [R, BUDGET], ascending, `numbers` [R].

    And `masks` int32 [R, WORDS], a bit a group.
    """
    row = tl.program_id(0).to(tl.int64)
    visible = (tl.load(positions + row) + 1) // RATIO
    if visible < NEAR:
        number = _choose(scores + row * G, chosen + row * BUDGET, masks + row * WORDS, visible, BUDGET, BN, WORDS)
        tl.store(numbers + row, number)


@triton.jit
def choose_far(
    scores: tl.tensor, positions: tl.tensor, chosen: tl.tensor, numbers: tl.tensor, G: tl.tensor, RATIO: tl.constexpr,
    BUDGET: tl.constexpr, NEAR: tl.constexpr, SOME: tl.constexpr, MOST: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """All other rows. Up to `MOST` groups are held in registers, of rows that see no more than `SOME` only those."""
    row = tl.program_id(0).to(tl.int64)
    visible = (tl.load(positions + row) + 1) // RATIO
    if visible >= NEAR:
        line, out, number = scores + row * G, chosen + row * BUDGET, visible
        if visible <= SOME:
            number = _choose(line, out, out, visible, BUDGET, SOME, 0)
        elif visible <= MOST:
            number = _choose(line, out, out, visible, BUDGET, MOST, 0)
        else:
            number = _choose_far(line, out, visible, BUDGET, BLOCK)
        tl.store(numbers + row, number)
