"""Triton kernels that choose the best of many scores, for the few rows of a round: a row's scores are held at once.

Scores are not negative, so their bits are in the order of their values: the smallest chosen one is found two bits at a
time, by counting. Of those that equal it the first ones are taken. What is chosen comes out in ascending order.
"""

# mypy: disable-error-code="untyped-decorator,no-any-return"
from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def _narrowed(keyed: tl.tensor, limit: tl.tensor, LOW: tl.constexpr, BUDGET: tl.constexpr) -> tl.tensor:
    """`limit` with the two bits from `LOW` on that still leave the budget's number of keys at or above it."""
    one, two, three = limit + (1 << LOW), limit + (2 << LOW), limit + (3 << LOW)
    reached = (keyed >= one).to(tl.int64) + ((keyed >= two).to(tl.int64) << 20) + ((keyed >= three).to(tl.int64) << 40)
    counts = tl.sum(reached, 0)
    found = tl.where((counts & 0xFFFFF) >= BUDGET, one, limit)
    found = tl.where(((counts >> 20) & 0xFFFFF) >= BUDGET, two, found)
    return tl.where((counts >> 40) >= BUDGET, three, found)


@triton.jit
def best_of(bits: tl.tensor, valid: tl.tensor, BUDGET: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """(which to take, its place among them) of `valid` ones; all of those if they are no more than the budget."""
    keyed = tl.where(valid, bits & 0x7FFFFFFF, -1)
    limit = tl.zeros([], tl.int32)
    # Bit 31 is the sign: fifteen pairs from bit 30 on, then bit 0 alone.
    for step in tl.static_range(15):
        limit = _narrowed(keyed, limit, 29 - 2 * step, BUDGET)
    limit = tl.where(tl.sum((keyed > limit).to(tl.int32), 0) >= BUDGET, limit + 1, limit)
    above, ties = (keyed > limit).to(tl.int32), (keyed == limit).to(tl.int32)
    need = BUDGET - tl.sum(above, 0)
    ranks = tl.cumsum(above + (ties << 16), 0)
    ties_before = (ranks >> 16) - ties
    take = (above > 0) | ((ties > 0) & (ties_before < need))
    return take, (ranks & 0xFFFF) - above + tl.minimum(ties_before, need)


@triton.jit
def choose_parts(
    scores: tl.tensor, positions: tl.tensor, best: tl.tensor, candidates: tl.tensor, chosen: tl.tensor,
    numbers: tl.tensor, G: tl.tensor, PARTS: tl.constexpr, RATIO: tl.constexpr, BUDGET: tl.constexpr,
    BLOCK: tl.constexpr, CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """One row and `BLOCK` of its `scores` [R, G] a program: the best are the row's candidates for `choose_among`.

    `candidates` int32 [R, PARTS, BUDGET], their scores in `best`. A row that sees no more than one block of groups has
    no need of that: its choice goes to `chosen` int32 [R, BUDGET] and `numbers` [R] at once.
    """
    row, part = tl.program_id(0), tl.program_id(1)
    visible = (tl.load(positions + row) + 1) // RATIO
    if CHAINED:
        gdc_wait()
        gdc_launch_dependents()
    group = part * BLOCK + tl.arange(0, BLOCK)
    line = row.to(tl.int64) * BUDGET
    if part == 0:
        tl.store(numbers + row, tl.minimum(visible, BUDGET))
    if visible <= BUDGET:
        tl.store(chosen + line + group, group, mask=group < visible)
    elif part * BLOCK < visible:
        valid = group < visible
        score = tl.load(scores + row.to(tl.int64) * G + group, mask=valid, other=0)
        take, place = best_of(score.to(tl.int32, bitcast=True), valid, BUDGET)
        if visible <= BLOCK:
            tl.store(chosen + line + place, group, mask=take)
        else:
            line = (row * PARTS + part).to(tl.int64) * BUDGET
            tl.store(candidates + line + place, group, mask=take)
            tl.store(best + line + place, score, mask=take)


@triton.jit
def _among(
    best: tl.tensor, candidates: tl.tensor, chosen: tl.tensor, visible: tl.tensor, BUDGET: tl.constexpr,
    PART: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """The choice among the first `BLOCK` candidates of a row that sees `visible` groups."""
    at = tl.arange(0, BLOCK)
    left = visible - at // BUDGET * PART
    valid = at % BUDGET < left
    score = tl.load(best + at, mask=valid, other=0)
    take, place = best_of(score.to(tl.int32, bitcast=True), valid, BUDGET)
    tl.store(chosen + place, tl.load(candidates + at, mask=valid, other=0), mask=take)


@triton.jit
def choose_among(
    best: tl.tensor, candidates: tl.tensor, positions: tl.tensor, chosen: tl.tensor, PARTS: tl.constexpr,
    RATIO: tl.constexpr, BUDGET: tl.constexpr, PART: tl.constexpr, FEW: tl.constexpr, BLOCK: tl.constexpr,
    CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """One row a program: the best of what `choose_parts` left for it, of `FEW` candidates if there are no more."""
    row = tl.program_id(0)
    visible = (tl.load(positions + row) + 1) // RATIO
    if CHAINED:
        gdc_wait()
        gdc_launch_dependents()
    if visible > PART:
        line, out = row.to(tl.int64) * (PARTS * BUDGET), row.to(tl.int64) * BUDGET
        if tl.cdiv(visible, PART) * BUDGET <= FEW:
            _among(best + line, candidates + line, chosen + out, visible, BUDGET, PART, FEW)
        else:
            _among(best + line, candidates + line, chosen + out, visible, BUDGET, PART, BLOCK)
