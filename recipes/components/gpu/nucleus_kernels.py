"""Triton kernels of top-p over wide rows: the border of a nucleus is bracketed by histograms, then found exactly.

`sampling_kernels.py` has weighed each part of such a row by coarse bins of distance. Two more steps look into the bins
that may hold the border: finer ones, then the tokens themselves. The float32 sums only say where to look; the last step
proves by float64 sums that the border lies there, and else leaves the row to a search by one program.
"""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from recipes.components.gpu.border_kernels import INFINITE, NO_KEY, kept_weight, weight_of
from recipes.components.gpu.gathered_kernels import PAD, mass_among
from recipes.components.gpu.sampling_kernels import (
    MIN_P,
    TEMPERATURE,
    TOP_P,
    coarse_bin,
    farthest_of,
    gather,
    keys_of,
    settle_wide,
    whole_of,
)
from recipes.components.gpu.survey_kernels import (
    BRACKETED,
    FLOATS_HERE,
    GATHERED,
    NUCLEUS,
    SOUGHT,
    TALLIES,
    WORDS_HERE,
    arrived,
    is_changed,
    overall,
)


@triton.jit
def _bins_around(
    binned: tl.tensor, before: tl.tensor, whole: tl.tensor, top_p: tl.tensor, BINS: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:  # fmt: skip
    """First and last bin that the border may lie in, and what lies before them; BINS: behind all of them."""
    bins = tl.arange(0, BINS)
    upto = tl.cumsum(binned, 0) + before
    mass = top_p.to(tl.float64) * whole
    slack = whole * tl.minimum(1e-5, (1.0 - top_p.to(tl.float64)) / 8)
    first = tl.min(tl.where(upto >= mass - slack, bins, BINS))
    last = tl.min(tl.where(upto >= mass + slack, bins, BINS))
    return first, last, before + tl.sum(tl.where(bins < first, binned, 0.0))


@triton.jit
def _binned(sums: tl.tensor, PARTS: tl.constexpr, GROUPS: tl.tensor, BINS: tl.constexpr) -> tl.tensor:
    """float64 [BINS]: the weights of this program's row by bin, of all its groups."""
    group, bins = tl.arange(0, PARTS), tl.arange(0, BINS)
    place = (tl.program_id(0) * PARTS + group)[:, None] * BINS + bins[None, :]
    return tl.sum(tl.load(sums + place, mask=(group < GROUPS)[:, None], other=0.0).to(tl.float64), 0)


@triton.jit
def _fine_bin(
    key: tl.tensor, first: tl.tensor, last: tl.tensor, top_p: tl.tensor, V: tl.constexpr, BINS: tl.constexpr
) -> tl.tensor:  # fmt: skip
    """The bin of a distance among those that part the coarse bins [first, last]."""
    distance = tl.minimum(key.to(tl.float32, bitcast=True), 1e4)
    width = farthest_of(top_p, V) / BINS
    found = (distance - first * width) * (BINS / ((last + 1 - first) * width))
    return tl.minimum(tl.maximum(found, 0.0), BINS - 1.0).to(tl.int32)


@triton.jit(do_not_specialize=["W", "GROUPS"])
def narrow_rows(
    logits: tl.tensor, slots: tl.tensor, lanes: tl.tensor, scratch: tl.tensor, W: tl.tensor, V: tl.constexpr,
    PART: tl.constexpr, PARTS: tl.constexpr, GROUPS: tl.tensor, BINS: tl.constexpr, CHUNK: tl.constexpr,
    ADJUSTED: tl.constexpr, CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """Leaves the weights of a group of parts by fine bin, float32, of the coarse bins that may hold the border."""
    if CHAINED:
        gdc_wait()
        gdc_launch_dependents()
    program, group = tl.program_id(0), tl.program_id(1)
    if tl.load(scratch.kinds + program) == NUCLEUS:
        slot = tl.load(lanes.rows + program // W)
        mine, own = slots.words + slot * WORDS_HERE, slots.floats + slot * FLOATS_HERE
        changed = is_changed(mine, program % W, ADJUSTED)
        top, _, _ = overall(scratch, program, program >= 0, V, PART, PARTS)
        temperature, top_p = tl.load(own + TEMPERATURE), tl.load(own + TOP_P)
        whole = whole_of(scratch.sums, PARTS, GROUPS)
        coarse = _binned(scratch.coarse, PARTS, GROUPS, BINS)
        first, last, _ = _bins_around(coarse, tl.zeros([], tl.float64), whole, top_p, BINS)
        bins = tl.arange(0, BINS)
        found = tl.zeros([BINS, CHUNK], tl.float32)
        for part in range(group, tl.cdiv(V, PART), GROUPS):
            for start in range(0, PART, CHUNK):
                token = part * PART + start + tl.arange(0, CHUNK)
                key = keys_of(logits, scratch, changed, token, top, temperature, V)
                here = coarse_bin(key, top_p, V, BINS)
                weight = tl.exp(-key.to(tl.float32, bitcast=True))
                weight = tl.where((here >= first) & (here <= last), weight, 0.0)
                fine = _fine_bin(key, first, last, top_p, V, BINS)
                found += tl.where(bins[:, None] == fine[None, :], weight[None, :], 0.0)
        tl.store(scratch.fine + (program * PARTS + group) * BINS + bins, tl.sum(found, 1))


@triton.jit
def _sum_bracket(
    logits: tl.tensor, scratch: tl.tensor, changed: tl.tensor, top: tl.tensor, temperature: tl.tensor,
    top_p: tl.tensor, ratio: tl.tensor, whole: tl.tensor, V: tl.constexpr, PART: tl.constexpr, PARTS: tl.constexpr,
    GROUPS: tl.tensor, CAPACITY: tl.constexpr, BINS: tl.constexpr, CHUNK: tl.constexpr,
) -> None:  # fmt: skip
    """Leaves exact sums of a group's tokens below and inside the bracket, and gathers the latter."""
    coarse = _binned(scratch.coarse, PARTS, GROUPS, BINS)
    first, last, before = _bins_around(coarse, tl.zeros([], tl.float64), whole, top_p, BINS)
    fine = _binned(scratch.fine, PARTS, GROUPS, BINS)
    nearer, farther, _ = _bins_around(fine, before, whole, top_p, BINS)
    below = tl.zeros([CHUNK], tl.float64)
    kept = tl.zeros([CHUNK], tl.float64)
    inside = tl.zeros([CHUNK], tl.float64)
    low = tl.full([CHUNK], NO_KEY, tl.int32)
    high = tl.full([CHUNK], -1, tl.int32)
    group = tl.program_id(1)
    for part in range(group, tl.cdiv(V, PART), GROUPS):
        for start in range(0, PART, CHUNK):
            token = part * PART + start + tl.arange(0, CHUNK)
            key = keys_of(logits, scratch, changed, token, top, temperature, V)
            here, close = coarse_bin(key, top_p, V, BINS), _fine_bin(key, first, last, top_p, V, BINS)
            weight = kept_weight(key, NO_KEY, 0.0)
            among = (here >= first) & (here <= last) & (key < INFINITE)
            under = (here < first) | (among & (close < nearer))
            within = among & (close >= nearer) & (close <= farther)
            below += tl.where(under, weight, 0.0)
            kept += tl.where(under & (weight >= ratio), weight, 0.0)
            inside += tl.where(within, weight, 0.0)
            low = tl.minimum(low, tl.where(within, key, NO_KEY))
            high = tl.maximum(high, tl.where(within, key, -1))
            gather(scratch, key, token, within, CAPACITY)
    place = tl.program_id(0) * PARTS + group
    tl.store(scratch.below + place, tl.sum(below))
    tl.store(scratch.kept + place, tl.sum(kept))
    tl.store(scratch.inside + place, tl.sum(inside))
    tl.store(scratch.lows + place, tl.min(low))
    tl.store(scratch.highs + place, tl.max(high))


@triton.jit
def _border_inside(
    scratch: tl.tensor, mass: tl.tensor, ratio: tl.tensor, PARTS: tl.constexpr, GROUPS: tl.tensor,
    CAPACITY: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:  # fmt: skip
    """The nucleus' border, and the weight of what it and min-p keep; border -1 if the bracket does not give it away."""
    program = tl.program_id(0)
    group = tl.arange(0, PARTS)
    real, place = group < GROUPS, program * PARTS + group
    below, kept = whole_of(scratch.below, PARTS, GROUPS), whole_of(scratch.kept, PARTS, GROUPS)
    inside = whole_of(scratch.inside, PARTS, GROUPS)
    low = tl.min(tl.load(scratch.lows + place, mask=real, other=NO_KEY))
    high = tl.max(tl.load(scratch.highs + place, mask=real, other=-1))
    count = tl.load(scratch.tallies + program * TALLIES + GATHERED)
    border = tl.full([], -1, tl.int32)
    total = kept
    if (below < mass) & (below + inside >= mass):
        if low == high:
            border = low
            total = kept + tl.where(weight_of(low) >= ratio, inside, 0.0)
        elif count <= CAPACITY:
            at = tl.arange(0, CAPACITY)
            packed = tl.load(scratch.gathered + program.to(tl.int64) * CAPACITY + at, mask=at < count, other=PAD)
            key = (packed >> 32).to(tl.int32)
            weight = tl.where(key < INFINITE, weight_of(tl.minimum(key, INFINITE)), 0.0)
            border = mass_among(key, weight, below, mass, low, high)
            total = kept + tl.sum(tl.where((key <= border) & (weight >= ratio), weight, 0.0))
    return border, total


@triton.jit(do_not_specialize=["W", "GROUPS"])
def bracket_rows(
    logits: tl.tensor, slots: tl.tensor, lanes: tl.tensor, scratch: tl.tensor, tokens: tl.tensor, W: tl.tensor,
    V: tl.constexpr, PART: tl.constexpr, PARTS: tl.constexpr, GROUPS: tl.tensor, CAPACITY: tl.constexpr,
    BINS: tl.constexpr, CHUNK: tl.constexpr, ADJUSTED: tl.constexpr, LEARNED: tl.constexpr, GIVEN: tl.constexpr,
    CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """Sums a row below the bracket and gathers what is inside; whoever arrives last finds the border."""
    if CHAINED:
        gdc_wait()
        gdc_launch_dependents()
    program = tl.program_id(0)
    if tl.load(scratch.kinds + program) == NUCLEUS:
        lane, index = program // W, program % W
        slot = tl.load(lanes.rows + lane)
        mine, own = slots.words + slot * WORDS_HERE, slots.floats + slot * FLOATS_HERE
        changed = is_changed(mine, index, ADJUSTED)
        top, _, _ = overall(scratch, program, program >= 0, V, PART, PARTS)
        temperature, top_p = tl.load(own + TEMPERATURE), tl.load(own + TOP_P)
        ratio = tl.load(own + MIN_P).to(tl.float64)
        whole = whole_of(scratch.sums, PARTS, GROUPS)
        _sum_bracket(logits, scratch, changed, top, temperature, top_p, ratio, whole, V, PART, PARTS, GROUPS, CAPACITY,
                     BINS, CHUNK)  # fmt: skip
        if arrived(scratch, program, BRACKETED, GROUPS):
            border, total = _border_inside(scratch, top_p.to(tl.float64) * whole, ratio, PARTS, GROUPS, CAPACITY)
            if border >= 0:
                settle_wide(logits, scratch, mine, own, lanes, lane, index, changed, border, total, top, tokens, W, V,
                            LEARNED, GIVEN)  # fmt: skip
            else:
                tl.store(scratch.kinds + program, SOUGHT)
