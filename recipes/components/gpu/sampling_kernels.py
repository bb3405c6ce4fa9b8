"""Triton kernel of the target law, second step: rows that top-k narrows, and greedy ones, say their token.

Their candidates are gathered, and whichever program arrives last draws from them, or tests a learned draft. Rows that
stay wide are weighed here, for `nucleus_kernels.py` and `draw_kernels.py`.
"""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from recipes.components.device_state import Word
from recipes.components.gpu.border_kernels import INFINITE, NO_KEY, kept_weight, key_of, uniform
from recipes.components.gpu.gathered_kernels import PAD, filtered, pick_among, rank_among
from recipes.components.gpu.survey_kernels import (
    CORRECTED,
    DONE,
    DRAWN,
    FLOATS_HERE,
    GATHERED,
    NUCLEUS,
    SOUGHT,
    TALLIES,
    WEIGHED,
    WORDS_HERE,
    arrived,
    is_active,
    is_changed,
    logits_at,
    overall,
)
from recipes.components.philox import CHAIN_STRIDE
from shared.frames import InitFloat


def _constant(value: int) -> tl.constexpr:
    return tl.constexpr(int(value))


STRIDE, TOP_K = _constant(CHAIN_STRIDE), _constant(Word.TOP_K)
ORDINARY_KEY, ACCEPTANCE_KEY = _constant(Word.ORDINARY_KEY), _constant(Word.ACCEPTANCE_KEY)
TEMPERATURE, TOP_P, MIN_P = _constant(InitFloat.TEMPERATURE), _constant(InitFloat.TOP_P), _constant(InitFloat.MIN_P)


@triton.jit
def draft_test(
    mine: tl.tensor, lanes: tl.tensor, lane: tl.tensor, index: tl.tensor, W: tl.tensor, V: tl.constexpr,
    LEARNED: tl.constexpr, GIVEN: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor]:  # fmt: skip
    """Whether a row tests a learned draft, that token, the bar u * q(d) float64 that p(d) must pass, and two draws.

    The first draw is the row's own: by position, or the chain's bonus. The second one is the chain's correction.
    """
    first = tl.load(lanes.first + lane)
    offered = tl.load(lanes.offered + lane)
    tests = lane < 0
    draft = first * 0 - 1
    bar = tl.zeros([], tl.float64)
    draw = tl.load(lanes.draws + lane * lanes.apart) if GIVEN else uniform(tl.load(mine + ORDINARY_KEY), first + index)
    correction = draw
    if LEARNED:
        chained = lane < 0
        for step in range(offered.to(tl.int32)):
            chained = chained | (tl.load(lanes.learned + lane * (W - 1) + step) != 0)
        place = lane.to(tl.int64) * (W - 1) + index
        tests = tl.load(lanes.learned + place, mask=index < offered, other=0) != 0
        key, base = tl.load(mine + ACCEPTANCE_KEY), first * STRIDE
        test = uniform(key, base + index)
        correction = uniform(key, base + offered + 1)
        draw = tl.where(chained & (index == offered), test, draw)
        draft = tl.load(lanes.drafts + place, mask=tests, other=-1)
        proposed = tl.load(lanes.law + place * V + draft, mask=tests, other=0.0)
        bar = test.to(tl.float64) * proposed.to(tl.float64)
    return tests, draft, bar, draw, correction


@triton.jit
def residual(
    weight: tl.tensor, total: tl.tensor, law: tl.tensor, place: tl.tensor, token: tl.tensor, V: tl.constexpr
) -> tl.tensor:  # fmt: skip
    """max(p - q, 0) of tokens that the target law keeps; `law` holds q from `place * V` on."""
    proposed = tl.load(law + place * V + token, mask=weight > 0, other=0.0)
    return tl.maximum(weight / total - proposed.to(tl.float64), 0.0)


@triton.jit
def _say_gathered(
    scratch: tl.tensor, mine: tl.tensor, own: tl.tensor, lanes: tl.tensor, lane: tl.tensor, index: tl.tensor,
    count: tl.tensor, W: tl.tensor, V: tl.constexpr, TAKEN: tl.constexpr, CAPACITY: tl.constexpr, FEW: tl.constexpr,
    LEARNED: tl.constexpr, GIVEN: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The token of a row all of whose candidates are gathered, `count` of at most TAKEN; notes its border and total."""
    program = tl.program_id(0)
    at = tl.arange(0, TAKEN)
    packed = tl.load(scratch.gathered + program.to(tl.int64) * CAPACITY + at, mask=at < count, other=PAD)
    rank, ratio = tl.load(mine + TOP_K).to(tl.int32), tl.load(own + MIN_P).to(tl.float64)
    weight = filtered(packed, count, rank, tl.load(own + TOP_P), ratio, FEW)
    total = tl.sum(weight)
    tests, draft, bar, draw, correction = draft_test(mine, lanes, lane, index, W, V, LEARNED, GIVEN)
    chosen = pick_among(packed, weight, draw, FEW)
    # The inner condition is of the device, the outer one of compilation.
    if LEARNED:  # noqa: SIM102
        # The likeliest token weighs one: it is alone where the sum is one, and needs no test.
        if tests & (total != 1.0):
            place = lane.to(tl.int64) * (W - 1) + index
            chosen = draft
            if bar >= tl.sum(tl.where((packed & 0xFFFFFFFF) == draft, weight, 0.0)) / total:
                left = residual(weight, total, lanes.law, place, packed & 0xFFFFFFFF, V)
                if tl.sum(left) > 0:
                    chosen = pick_among(packed, left, correction, FEW)
    tl.store(scratch.borders + program, tl.max(tl.where(weight > 0, packed >> 32, 0)).to(tl.int32))
    tl.store(scratch.totals + program, total)
    return chosen


@triton.jit
def _say_limited(
    scratch: tl.tensor, mine: tl.tensor, own: tl.tensor, lanes: tl.tensor, lane: tl.tensor, index: tl.tensor,
    tokens: tl.tensor, W: tl.tensor, V: tl.constexpr, FEWEST: tl.constexpr, CAPACITY: tl.constexpr,
    LEARNED: tl.constexpr, GIVEN: tl.constexpr,
) -> None:  # fmt: skip
    """The token of a row under top-k, by whichever program arrived last; too many candidates are left to a search."""
    program = tl.program_id(0)
    count = tl.load(scratch.tallies + program * TALLIES + GATHERED)
    if count <= FEWEST:
        said = _say_gathered(scratch, mine, own, lanes, lane, index, count, W, V, FEWEST, CAPACITY, True, LEARNED,
                             GIVEN)  # fmt: skip
        tl.store(tokens + program, said)
    elif count <= CAPACITY:
        said = _say_gathered(scratch, mine, own, lanes, lane, index, count, W, V, CAPACITY, CAPACITY, False, LEARNED,
                             GIVEN)  # fmt: skip
        tl.store(tokens + program, said)
    else:
        tl.store(scratch.kinds + program, SOUGHT)


@triton.jit
def passes_draft(
    logits: tl.tensor, scratch: tl.tensor, changed: tl.tensor, draft: tl.tensor, bar: tl.tensor, border: tl.tensor,
    ratio: tl.tensor, total: tl.tensor, top: tl.tensor, temperature: tl.tensor, V: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Whether p(d) of a row's draft is above its bar, for a law that `border`, `ratio` and `total` give."""
    offset = tl.program_id(0).to(tl.int64) * V + draft
    value = logits_at(logits, scratch.adjusted, changed, offset, draft >= 0)
    key = key_of(tl.div_rn(value - top, temperature))
    return bar < kept_weight(key, border, ratio) / total


@triton.jit
def keys_of(
    logits: tl.tensor, scratch: tl.tensor, changed: tl.tensor, token: tl.tensor, top: tl.tensor,
    temperature: tl.tensor, V: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Keys of tokens of this program's row; that of minus infinity behind the last one."""
    offset = tl.program_id(0).to(tl.int64) * V + token
    value = logits_at(logits, scratch.adjusted, changed, offset, token < V)
    return key_of(tl.div_rn(value - top, temperature))


@triton.jit
def _best_border(
    scratch: tl.tensor, top: tl.tensor, temperature: tl.tensor, rank: tl.tensor, V: tl.constexpr, PART: tl.constexpr,
    COLUMNS: tl.constexpr, PARTS: tl.constexpr, JOINED: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """A key up to which a row's `rank` likeliest tokens lie, and few others: by the maxima of columns."""
    at = tl.arange(0, PARTS * COLUMNS)
    real = at < tl.cdiv(V, PART) * COLUMNS
    first = tl.program_id(0) * (PARTS * COLUMNS)
    best = tl.load(scratch.columns + first + at, mask=real, other=float("-inf"))
    border = tl.full([], INFINITE - 1, tl.int32)
    if rank <= JOINED:
        # So many columns are enough: they are joined, and compared each with each.
        joined = tl.max(tl.reshape(best, [PARTS * COLUMNS // JOINED, JOINED]), 0)
        near = key_of(tl.div_rn(joined - top, temperature))
        covered = tl.sum((near[None, :] <= near[:, None]).to(tl.int32), 1)
        border = tl.min(tl.where(covered >= rank, near, NO_KEY))
    elif rank <= PARTS * COLUMNS:
        near = key_of(tl.div_rn(best - top, temperature))
        border = rank_among(near, rank, tl.zeros([], tl.int32), tl.full([], INFINITE, tl.int32))
    return border


@triton.jit
def gather(
    scratch: tl.tensor, key: tl.tensor, token: tl.tensor, wanted: tl.tensor, CAPACITY: tl.constexpr
) -> None:  # fmt: skip
    """Adds the wanted tokens to those gathered of this program's row, as far as there is room; counts them all."""
    program = tl.program_id(0)
    tally = scratch.tallies + program * TALLIES + GATHERED
    place = tl.atomic_add(tally + token * 0, 1, mask=wanted, sem="relaxed", scope="gpu")
    packed = (key.to(tl.int64) << 32) | token.to(tl.int64)
    tl.store(scratch.gathered + program.to(tl.int64) * CAPACITY + place, packed, mask=wanted & (place < CAPACITY))


@triton.jit
def farthest_of(top_p: tl.tensor, V: tl.constexpr) -> tl.tensor:
    """A distance behind which nothing is of a nucleus.

    Whatever is less likely than (1 - top_p) / V weighs less than 1 - top_p with all its like.
    """
    return tl.log(V / (1.0 - top_p)) + 0.01


@triton.jit
def coarse_bin(key: tl.tensor, top_p: tl.tensor, V: tl.constexpr, BINS: tl.constexpr) -> tl.tensor:
    """The bin of a distance, linear in it; BINS for what is too far away to be of a nucleus."""
    distance = tl.minimum(key.to(tl.float32, bitcast=True), 1e4)
    return tl.minimum((distance * (BINS / farthest_of(top_p, V))).to(tl.int32), BINS)


@triton.jit
def _weigh_bins(
    logits: tl.tensor, scratch: tl.tensor, changed: tl.tensor, top: tl.tensor, temperature: tl.tensor,
    top_p: tl.tensor, V: tl.constexpr, PART: tl.constexpr, PARTS: tl.constexpr, GROUPS: tl.tensor,
    BINS: tl.constexpr, CHUNK: tl.constexpr,
) -> None:  # fmt: skip
    """Leaves what a group of parts weighs: exactly, and by coarse bin in float32, which only says where to look."""
    program, group = tl.program_id(0), tl.program_id(1)
    bins = tl.arange(0, BINS)
    found = tl.zeros([BINS, CHUNK], tl.float32)
    whole = tl.zeros([CHUNK], tl.float64)
    for part in range(group, tl.cdiv(V, PART), GROUPS):
        for start in range(0, PART, CHUNK):
            token = part * PART + start + tl.arange(0, CHUNK)
            key = keys_of(logits, scratch, changed, token, top, temperature, V)
            weight = tl.exp(-key.to(tl.float32, bitcast=True))
            found += tl.where(bins[:, None] == coarse_bin(key, top_p, V, BINS)[None, :], weight[None, :], 0.0)
            whole += kept_weight(key, NO_KEY, 0.0)
    place = program * PARTS + group
    tl.store(scratch.sums + place, tl.sum(whole))
    tl.store(scratch.coarse + place * BINS + bins, tl.sum(found, 1))


@triton.jit
def whole_of(sums: tl.tensor, PARTS: tl.constexpr, GROUPS: tl.tensor) -> tl.tensor:
    """The sum of what all groups of this program's row have left, float64."""
    group = tl.arange(0, PARTS)
    return tl.sum(tl.load(sums + tl.program_id(0) * PARTS + group, mask=group < GROUPS, other=0.0))


@triton.jit
def _weigh_all(
    logits: tl.tensor, scratch: tl.tensor, changed: tl.tensor, top: tl.tensor, temperature: tl.tensor,
    floor: tl.tensor, V: tl.constexpr, PART: tl.constexpr, PARTS: tl.constexpr, GROUPS: tl.tensor,
    CHUNK: tl.constexpr,
) -> None:  # fmt: skip
    """Leaves what those tokens of a group of parts weigh that weigh `floor`."""
    group = tl.program_id(1)
    whole = tl.zeros([CHUNK], tl.float64)
    for part in range(group, tl.cdiv(V, PART), GROUPS):
        for start in range(0, PART, CHUNK):
            token = part * PART + start + tl.arange(0, CHUNK)
            whole += kept_weight(keys_of(logits, scratch, changed, token, top, temperature, V), NO_KEY, floor)
    tl.store(scratch.sums + tl.program_id(0) * PARTS + group, tl.sum(whole))


@triton.jit
def settle_wide(
    logits: tl.tensor, scratch: tl.tensor, mine: tl.tensor, own: tl.tensor, lanes: tl.tensor, lane: tl.tensor,
    index: tl.tensor, changed: tl.tensor, border: tl.tensor, total: tl.tensor, top: tl.tensor, tokens: tl.tensor,
    W: tl.tensor, V: tl.constexpr, LEARNED: tl.constexpr, GIVEN: tl.constexpr,
) -> None:  # fmt: skip
    """A wide row whose law is known: its learned draft stands, or a token must be drawn, from the law or what is left.

    The likeliest token weighs one: where that is all, it is drawn, and needs no test.
    """
    program = tl.program_id(0)
    kind = tl.full([], DRAWN, tl.int32)
    if LEARNED:
        tests, draft, bar, _draw, _correction = draft_test(mine, lanes, lane, index, W, V, LEARNED, GIVEN)
        if tests & (total != 1.0):
            kind = tl.full([], CORRECTED, tl.int32)
            ratio, temperature = tl.load(own + MIN_P).to(tl.float64), tl.load(own + TEMPERATURE)
            if passes_draft(logits, scratch, changed, draft, bar, border, ratio, total, top, temperature, V):
                tl.store(tokens + program, draft)
                kind = tl.full([], DONE, tl.int32)
    tl.store(scratch.borders + program, border)
    tl.store(scratch.totals + program, total)
    tl.store(scratch.kinds + program, kind)


@triton.jit(do_not_specialize=["W", "GROUPS"])
def weigh_rows(
    logits: tl.tensor, slots: tl.tensor, lanes: tl.tensor, scratch: tl.tensor, tokens: tl.tensor, finite: tl.tensor,
    W: tl.tensor, V: tl.constexpr, PART: tl.constexpr, COLUMNS: tl.constexpr, PARTS: tl.constexpr,
    GROUPS: tl.tensor, JOINED: tl.constexpr, FEWEST: tl.constexpr, CAPACITY: tl.constexpr, BINS: tl.constexpr,
    CHUNK: tl.constexpr, ADJUSTED: tl.constexpr, LEARNED: tl.constexpr, GIVEN: tl.constexpr, CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """A group of parts of row `index` of a lane. Masked rows say 0, and that they were finite."""
    if CHAINED:
        gdc_wait()
        gdc_launch_dependents()
    program, group = tl.program_id(0), tl.program_id(1)
    lane, index = program // W, program % W
    slot = tl.load(lanes.rows + lane)
    mine, own = slots.words + slot * WORDS_HERE, slots.floats + slot * FLOATS_HERE
    active = is_active(lanes, lane, index)
    top, place, broken = overall(scratch, program, active, V, PART, PARTS)
    sound = (broken == 0) & (top > float("-inf")) & (top < float("inf"))
    temperature, top_p = tl.load(own + TEMPERATURE), tl.load(own + TOP_P)
    rank = tl.load(mine + TOP_K)
    drawn = active & sound & (temperature > 0.0)
    if group == 0:
        # What the other programs of the row have to say comes later, or takes nothing back.
        tl.store(finite + program, (sound | (active == 0)).to(tl.int8))
        if drawn == 0:
            tl.store(tokens + program, tl.where(active & sound, place, 0).to(tl.int64))
    if drawn:
        changed = is_changed(mine, index, ADJUSTED)
        if (rank > 0) & (rank < V):
            border = _best_border(scratch, top, temperature, rank.to(tl.int32), V, PART, COLUMNS, PARTS, JOINED)
            for part in range(group, tl.cdiv(V, PART), GROUPS):
                token = part * PART + tl.arange(0, PART)
                key = keys_of(logits, scratch, changed, token, top, temperature, V)
                gather(scratch, key, token, (key <= border) & (key < INFINITE), CAPACITY)
            if arrived(scratch, program, WEIGHED, GROUPS):
                _say_limited(scratch, mine, own, lanes, lane, index, tokens, W, V, FEWEST, CAPACITY, LEARNED, GIVEN)
        elif top_p < 1.0:
            _weigh_bins(logits, scratch, changed, top, temperature, top_p, V, PART, PARTS, GROUPS, BINS, CHUNK)
            tl.store(scratch.kinds + program, NUCLEUS)
        elif LEARNED:
            floor = tl.load(own + MIN_P).to(tl.float64)
            _weigh_all(logits, scratch, changed, top, temperature, floor, V, PART, PARTS, GROUPS, CHUNK)
            if arrived(scratch, program, WEIGHED, GROUPS):
                border, whole = tl.full([], NO_KEY, tl.int32), whole_of(scratch.sums, PARTS, GROUPS)
                settle_wide(logits, scratch, mine, own, lanes, lane, index, changed, border, whole, top, tokens, W, V,
                            LEARNED, GIVEN)  # fmt: skip
        else:
            tl.store(scratch.borders + program, NO_KEY)
            tl.store(scratch.kinds + program, DRAWN)
