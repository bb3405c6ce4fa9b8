"""Triton kernels of sparse attention with an indexer: heads, groups and rings, and scores.

Lengths follow from positions on the device. A group counts once its last position is there; what lies in storage beyond
that is never read.
"""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from shared.frames import Fault

MISSING = tl.constexpr(int(Fault.MISSING_HISTORY))


@triton.jit
def _turned(
    source: tl.tensor, weight: tl.tensor, turns: tl.tensor, position: tl.tensor, live: tl.tensor,
    epsilon: tl.constexpr, D: tl.constexpr, ROTARY: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:  # fmt: skip
    """Zero-centred norm of `source` [D], its first ROTARY elements turned: both halves of those, and the rest."""
    pair, rest = tl.arange(0, BR), ROTARY + tl.arange(0, BD)
    in_pair, in_rest = (pair < ROTARY // 2) & live, (rest < D) & live
    a = tl.load(source + pair, mask=in_pair, other=0).to(tl.float32)
    b = tl.load(source + ROTARY // 2 + pair, mask=in_pair, other=0).to(tl.float32)
    c = tl.load(source + rest, mask=in_rest, other=0).to(tl.float32)
    divisor = tl.rsqrt((tl.sum(a * a, 0) + tl.sum(b * b, 0) + tl.sum(c * c, 0)) / D + epsilon)
    a *= divisor * (1.0 + tl.load(weight + pair, mask=in_pair, other=0).to(tl.float32))
    b *= divisor * (1.0 + tl.load(weight + ROTARY // 2 + pair, mask=in_pair, other=0).to(tl.float32))
    c *= divisor * (1.0 + tl.load(weight + rest, mask=in_rest, other=0).to(tl.float32))
    turn = turns + tl.where(live, position, 0).to(tl.int64) * ROTARY + 2 * pair
    cosine, sine = tl.load(turn, mask=in_pair, other=1), tl.load(turn + 1, mask=in_pair, other=0)
    return a * cosine - b * sine, b * cosine + a * sine, c


@triton.jit
def _put(
    target: tl.tensor, a: tl.tensor, b: tl.tensor, c: tl.tensor, live: tl.tensor, D: tl.constexpr,
    ROTARY: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr,
) -> None:  # fmt: skip
    pair, rest = tl.arange(0, BR), ROTARY + tl.arange(0, BD)
    kind = target.dtype.element_ty
    tl.store(target + pair, a.to(kind), mask=(pair < ROTARY // 2) & live)
    tl.store(target + ROTARY // 2 + pair, b.to(kind), mask=(pair < ROTARY // 2) & live)
    tl.store(target + rest, c.to(kind), mask=(rest < D) & live)


@triton.jit
def turn_heads(
    source: tl.tensor, weight: tl.tensor, turns: tl.tensor, positions: tl.tensor, out: tl.tensor,
    epsilon: tl.constexpr, HEADS: tl.constexpr, STRIDE: tl.constexpr, LINE: tl.constexpr, D: tl.constexpr,
    ROTARY: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr,
) -> None:  # fmt: skip
    """One row and head a program: `out` [R, HEADS, D] of head h at h * STRIDE in a row of LINE elements."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    position = tl.load(positions + row)
    live = position >= 0
    a, b, c = _turned(source + row * LINE + head * STRIDE, weight, turns, position, live, epsilon, D, ROTARY, BR, BD)
    _put(out + (row * HEADS + head) * D, a, b, c, live | (position < 0), D, ROTARY, BR, BD)


@triton.jit
def store_state(
    keys: tl.tensor, values: tl.tensor, weight: tl.tensor, turns: tl.tensor, positions: tl.tensor, places: tl.tensor,
    pages: tl.tensor, epsilon: tl.constexpr, KEY_HEADS: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
    ROTARY: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr, BV: tl.constexpr,
) -> None:  # fmt: skip
    """One row and key head a program: the turned key and the value into `pages` [pages, 2, KEY_HEADS, PAGE, D]."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    position, place = tl.load(positions + row), tl.load(places + row)
    live = (position >= 0) & (place >= 0)
    line = (row * KEY_HEADS + head) * D
    a, b, c = _turned(keys + line, weight, turns, position, live, epsilon, D, ROTARY, BR, BD)
    page = tl.maximum(place, 0).to(tl.int64) // PAGE * (2 * KEY_HEADS) + head
    target = pages + (page * PAGE + place % PAGE) * D
    _put(target, a, b, c, live, D, ROTARY, BR, BD)
    at = tl.arange(0, BV)
    value = tl.load(values + line + at, mask=(at < D) & live, other=0)
    tl.store(target + KEY_HEADS * PAGE * D + at, value.to(pages.dtype.element_ty), mask=(at < D) & live)


@triton.jit
def compress(
    raw: tl.tensor, weight: tl.tensor, turns: tl.tensor, ring: tl.tensor, tags: tl.tensor, groups: tl.tensor,
    slots: tl.tensor, first: tl.tensor, counts: tl.tensor, tables: tl.tensor, missing: tl.tensor,
    LANE_PAGES: tl.tensor, epsilon: tl.constexpr, W: tl.constexpr, CAPACITY: tl.constexpr, RATIO: tl.constexpr,
    EACH: tl.constexpr, D: tl.constexpr, ROTARY: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr,
    SHIFT: tl.constexpr,
) -> None:  # fmt: skip
    """One lane and one group that it completes a program: the mean of its raw keys, normed and turned, to `groups`.

    Keys before the lane's first row come from `ring` [rows, CAPACITY, D], if their tags are their positions; else the
    slot is marked in `missing` and the group holds NaN.
    """
    lane = tl.program_id(0)
    slot, start, count = tl.load(slots + lane), tl.load(first + lane), tl.load(counts + lane)
    group = start // RATIO + tl.program_id(1)
    live = (slot >= 0) & ((group + 1) * RATIO <= start + count) & ((group + SHIFT) // EACH < LANE_PAGES)
    if live:
        pair, rest = tl.arange(0, BR), ROTARY + tl.arange(0, BD)
        a, b, c = tl.zeros([BR], tl.float32), tl.zeros([BR], tl.float32), tl.zeros([BD], tl.float32)
        lost = 0
        for part in tl.static_range(RATIO):
            position = group * RATIO + part
            place = slot * CAPACITY + position % CAPACITY
            old = position < start
            held = tl.load(tags + place, mask=old, other=0) == position
            lost += tl.where(old & (held == 0), 1, 0)
            past, fresh = ring + place * D, raw + (lane * W + position - start) * D
            a += tl.load(past + pair, mask=(pair < ROTARY // 2) & old, other=0).to(tl.float32)
            a += tl.load(fresh + pair, mask=(pair < ROTARY // 2) & (old == 0), other=0).to(tl.float32)
            b += tl.load(past + ROTARY // 2 + pair, mask=(pair < ROTARY // 2) & old, other=0).to(tl.float32)
            b += tl.load(fresh + ROTARY // 2 + pair, mask=(pair < ROTARY // 2) & (old == 0), other=0).to(tl.float32)
            c += tl.load(past + rest, mask=(rest < D) & old, other=0).to(tl.float32)
            c += tl.load(fresh + rest, mask=(rest < D) & (old == 0), other=0).to(tl.float32)
        a, b, c = a / RATIO, b / RATIO, c / RATIO
        divisor = tl.rsqrt((tl.sum(a * a, 0) + tl.sum(b * b, 0) + tl.sum(c * c, 0)) / D + epsilon)
        divisor = tl.where(lost > 0, float("nan"), divisor)
        in_pair, in_rest = pair < ROTARY // 2, rest < D
        a *= divisor * (1.0 + tl.load(weight + pair, mask=in_pair, other=0).to(tl.float32))
        b *= divisor * (1.0 + tl.load(weight + ROTARY // 2 + pair, mask=in_pair, other=0).to(tl.float32))
        c *= divisor * (1.0 + tl.load(weight + rest, mask=in_rest, other=0).to(tl.float32))
        turn = turns + group.to(tl.int64) * RATIO * ROTARY + 2 * pair
        cosine, sine = tl.load(turn, mask=in_pair, other=1), tl.load(turn + 1, mask=in_pair, other=0)
        page = tl.load(tables + lane * LANE_PAGES + (group + SHIFT) // EACH).to(tl.int64)
        target = groups + (page * EACH + (group + SHIFT) % EACH) * D
        _put(target, a * cosine - b * sine, b * cosine + a * sine, c, live, D, ROTARY, BR, BD)
        if lost > 0:
            tl.atomic_or(missing + slot, MISSING)


@triton.jit
def write_ring(
    raw: tl.tensor, ring: tl.tensor, tags: tl.tensor, slots: tl.tensor, first: tl.tensor, counts: tl.tensor,
    W: tl.constexpr, CAPACITY: tl.constexpr, D: tl.constexpr, BD: tl.constexpr,
) -> None:  # fmt: skip
    """One lane and one of its newest CAPACITY rows a program: its raw key and its tag. After `compress` has read."""
    lane = tl.program_id(0)
    slot, count = tl.load(slots + lane), tl.load(counts + lane)
    index = count - 1 - tl.program_id(1)
    live = (slot >= 0) & (index >= 0)
    position = tl.load(first + lane) + index
    place = tl.maximum(slot, 0) * CAPACITY + tl.maximum(position, 0) % CAPACITY
    at = tl.arange(0, BD)
    here = (at < D) & live
    value = tl.load(raw + (lane * W + index).to(tl.int64) * D + at, mask=here, other=0)
    tl.store(ring + place * D + at, value.to(ring.dtype.element_ty), mask=here)
    tl.store(tags + place, position, mask=live)


@triton.jit
def keep_ring(
    ring: tl.tensor, tags: tl.tensor, slots: tl.tensor, first: tl.tensor, kept: tl.tensor, targets: tl.tensor,
    ROWS: tl.tensor, CAPACITY: tl.constexpr, D: tl.constexpr, BC: tl.constexpr, BD: tl.constexpr,
    CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """Row `target` becomes row `slot` as a prefix of first + kept tokens left it: tags beyond are forgotten.

    One lane and layer a program; layers are ROWS rows apart.
    """
    if CHAINED:
        gdc_wait()
        gdc_launch_dependents()
    lane = tl.program_id(0)
    ring += tl.program_id(1).to(tl.int64) * ROWS * (CAPACITY * D)
    tags += tl.program_id(1).to(tl.int64) * ROWS * CAPACITY
    slot, target = tl.load(slots + lane), tl.load(targets + lane)
    live = (slot >= 0) & (target >= 0)
    consumed = tl.load(first + lane) + tl.load(kept + lane)
    index, at = tl.arange(0, BC), tl.arange(0, BD)
    source, goal = tl.maximum(slot, 0) * CAPACITY + index, tl.maximum(target, 0) * CAPACITY + index
    tag = tl.load(tags + source, mask=(index < CAPACITY) & live, other=-1)
    here = (index < CAPACITY)[:, None] & (at < D)[None, :] & live & (slot != target)
    value = tl.load(ring + source[:, None] * D + at[None, :], mask=here, other=0)
    tl.debug_barrier()
    tl.store(tags + goal, tl.where(tag < consumed, tag, -1), mask=(index < CAPACITY) & live)
    tl.store(ring + goal[:, None] * D + at[None, :], value, mask=here)


@triton.jit
def score(
    queries: tl.tensor, groups: tl.tensor, positions: tl.tensor, tables: tl.tensor, scores: tl.tensor,
    LANE_PAGES: tl.tensor, G: tl.tensor, scale: tl.constexpr, W: tl.tensor, HEADS: tl.constexpr, BH: tl.constexpr,
    D: tl.constexpr, BD: tl.constexpr, RATIO: tl.constexpr, EACH: tl.constexpr, BUDGET: tl.constexpr,
    BG: tl.constexpr, TYPE: tl.constexpr, SHIFT: tl.constexpr, CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """One row and `BG` groups a program: `scores` [R, G]. Rows that see no more than the budget need none."""
    if CHAINED:
        gdc_wait()
        gdc_launch_dependents()
    row = tl.program_id(0)
    visible = (tl.load(positions + row) + 1) // RATIO
    start = tl.program_id(1) * BG
    if (visible > BUDGET) & (start < visible):
        group, head, at = start + tl.arange(0, BG), tl.arange(0, BH), tl.arange(0, BD)
        seen = group < visible
        stored = group + SHIFT
        page = tl.load(tables + row // W * LANE_PAGES + stored // EACH, mask=seen, other=0).to(tl.int64)
        place = (page * EACH + stored % EACH)[:, None] * D + at[None, :]
        keys = tl.load(groups + place, mask=seen[:, None] & (at < D)[None, :], other=0).to(TYPE)
        line = (row.to(tl.int64) * HEADS + head)[:, None] * D + at[None, :]
        query = tl.load(queries + line, mask=(head < HEADS)[:, None] & (at < D)[None, :], other=0).to(TYPE)
        products = tl.maximum(tl.dot(query, tl.trans(keys), input_precision="ieee"), 0.0)
        tl.store(scores + row.to(tl.int64) * G + group, tl.sum(products, 0) * scale, mask=seen)
