"""Triton kernel between the projections of a sparse-attention layer and its choice, for the few rows of a round.

Queries and index queries are normed and turned; keys and values go to their pages, raw index keys to the ring, and a
group's key where its last token stands. Lanes of more rows than the ring has room for beside an open group would
overwrite what they still read: those take the kernels of selection_kernels.py one after the other.
"""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from shared.frames import Fault

MISSING = tl.constexpr(int(Fault.MISSING_HISTORY))


@triton.jit
def _store_turned(
    source: tl.tensor, weight: tl.tensor, cosine: tl.tensor, sine: tl.tensor, target: tl.tensor, live: tl.tensor,
    epsilon: tl.constexpr, D: tl.constexpr, ROTARY: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr,
) -> None:  # fmt: skip
    """`target` [D] = zero-centred norm of `source` [D], its first ROTARY elements turned."""
    pair, rest = tl.arange(0, BR), ROTARY + tl.arange(0, BD)
    in_pair, in_rest = (pair < ROTARY // 2) & live, (rest < D) & live
    a = tl.load(source + pair, mask=in_pair, other=0).to(tl.float32)
    b = tl.load(source + ROTARY // 2 + pair, mask=in_pair, other=0).to(tl.float32)
    c = tl.load(source + rest, mask=in_rest, other=0).to(tl.float32)
    _store_normed(a, b, c, weight, cosine, sine, target, 1.0, live, epsilon, D, ROTARY, BR, BD)


@triton.jit
def _store_normed(
    a: tl.tensor, b: tl.tensor, c: tl.tensor, weight: tl.tensor, cosine: tl.tensor, sine: tl.tensor,
    target: tl.tensor, factor: tl.tensor, live: tl.tensor, epsilon: tl.constexpr, D: tl.constexpr,
    ROTARY: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr,
) -> None:  # fmt: skip
    """The same of values at hand: both halves of what is turned, and the rest; `factor` after the norm."""
    pair, rest = tl.arange(0, BR), ROTARY + tl.arange(0, BD)
    in_pair, in_rest = (pair < ROTARY // 2) & live, (rest < D) & live
    divisor = tl.rsqrt((tl.sum(a * a, 0) + tl.sum(b * b, 0) + tl.sum(c * c, 0)) / D + epsilon) * factor
    a *= divisor * (1.0 + tl.load(weight + pair, mask=in_pair, other=0).to(tl.float32))
    b *= divisor * (1.0 + tl.load(weight + ROTARY // 2 + pair, mask=in_pair, other=0).to(tl.float32))
    c *= divisor * (1.0 + tl.load(weight + rest, mask=in_rest, other=0).to(tl.float32))
    kind = target.dtype.element_ty
    tl.store(target + pair, (a * cosine - b * sine).to(kind), mask=in_pair)
    tl.store(target + ROTARY // 2 + pair, (b * cosine + a * sine).to(kind), mask=in_pair)
    tl.store(target + rest, c.to(kind), mask=in_rest)


@triton.jit
def _store_group(
    raw: tl.tensor, ring: tl.tensor, tags: tl.tensor, weight: tl.tensor, turns: tl.tensor, groups: tl.tensor,
    missing: tl.tensor, tables: tl.tensor, slot: tl.tensor, position: tl.tensor, start: tl.tensor, lane: tl.tensor,
    LANE_PAGES: tl.tensor, epsilon: tl.constexpr, LINE: tl.constexpr, CAPACITY: tl.constexpr, RATIO: tl.constexpr,
    EACH: tl.constexpr, D: tl.constexpr, ROTARY: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr,
    SHIFT: tl.constexpr,
) -> None:  # fmt: skip
    """The key of the group that ends at `position`, whose raw key is at `raw`; earlier ones lie LINE apart before it.

    Those before the lane's first row, at `start`, come from the ring if their tags are their positions; else the slot
    is marked and the group holds NaN.
    """
    pair, rest = tl.arange(0, BR), ROTARY + tl.arange(0, BD)
    in_pair, in_rest = pair < ROTARY // 2, rest < D
    a, b, c = tl.zeros([BR], tl.float32), tl.zeros([BR], tl.float32), tl.zeros([BD], tl.float32)
    lost = 0
    for back in tl.static_range(RATIO):
        old = position - back < start
        place = slot * CAPACITY + (position - back) % CAPACITY
        held = tl.load(tags + place, mask=old, other=0) == position - back
        lost += tl.where(old & (held == 0), 1, 0)
        past, fresh = ring + place * D, raw - back * LINE
        a += tl.load(past + pair, mask=in_pair & old, other=0).to(tl.float32)
        a += tl.load(fresh + pair, mask=in_pair & (old == 0), other=0).to(tl.float32)
        b += tl.load(past + ROTARY // 2 + pair, mask=in_pair & old, other=0).to(tl.float32)
        b += tl.load(fresh + ROTARY // 2 + pair, mask=in_pair & (old == 0), other=0).to(tl.float32)
        c += tl.load(past + rest, mask=in_rest & old, other=0).to(tl.float32)
        c += tl.load(fresh + rest, mask=in_rest & (old == 0), other=0).to(tl.float32)
    group = position // RATIO
    turn = turns + group * RATIO * ROTARY + 2 * pair
    cosine, sine = tl.load(turn, mask=in_pair, other=1), tl.load(turn + 1, mask=in_pair, other=0)
    page = tl.load(tables + lane * LANE_PAGES + (group + SHIFT) // EACH).to(tl.int64)
    target = groups + (page * EACH + (group + SHIFT) % EACH) * D
    factor = tl.where(lost > 0, float("nan"), 1.0)
    inside = (group + SHIFT) // EACH < LANE_PAGES
    _store_normed(
        a / RATIO, b / RATIO, c / RATIO, weight, cosine, sine, target, factor, inside, epsilon, D, ROTARY, BR, BD
    )
    if lost > 0:
        tl.atomic_or(missing + slot, MISSING)


@triton.jit
def place_heads(
    projected: tl.tensor, query_norm: tl.tensor, key_norm: tl.tensor, index_query_norm: tl.tensor,
    index_key_norm: tl.tensor, turns: tl.tensor, positions: tl.tensor, places: tl.tensor, slots: tl.tensor,
    first: tl.tensor, tables: tl.tensor, queries: tl.tensor, index_queries: tl.tensor, pages: tl.tensor,
    ring: tl.tensor, tags: tl.tensor, groups: tl.tensor, missing: tl.tensor, LANE_PAGES: tl.tensor,
    epsilon: tl.constexpr, W: tl.tensor, QUERY_HEADS: tl.constexpr, INDEX_HEADS: tl.constexpr,
    KEY_HEADS: tl.constexpr, D: tl.constexpr, ID: tl.constexpr, PAGE: tl.constexpr, CAPACITY: tl.constexpr,
    RATIO: tl.constexpr, EACH: tl.constexpr, ROTARY: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr,
    BI: tl.constexpr, BV: tl.constexpr, SHIFT: tl.constexpr, CHOOSES: tl.constexpr, CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """One row and head a program, and one for the row's raw index key.

    `projected` [B * W, LINE]: queries with their gates, index queries, keys, values, raw index key; without
    QUERY_HEADS only the last three. Without `CHOOSES` groups and ring are left alone.
    """
    KEYS: tl.constexpr = 2 * QUERY_HEADS * D + INDEX_HEADS * ID
    LINE: tl.constexpr = KEYS + 2 * KEY_HEADS * D + ID
    row, head = tl.program_id(0), tl.program_id(1)
    lane = row // W
    position, place = tl.load(positions + row), tl.load(places + row)
    slot, start = tl.load(slots + lane), tl.load(first + lane).to(tl.int32)
    pair = tl.arange(0, BR)
    turn = turns + tl.maximum(position, 0) * ROTARY + 2 * pair
    cosine = tl.load(turn, mask=pair < ROTARY // 2, other=1)
    sine = tl.load(turn + 1, mask=pair < ROTARY // 2, other=0)
    if CHAINED:
        gdc_wait()
        gdc_launch_dependents()
    line = projected + row * LINE
    if head < QUERY_HEADS:
        target = queries + (row * QUERY_HEADS + head) * D
        _store_turned(line + head * (2 * D), query_norm, cosine, sine, target, row >= 0, epsilon, D, ROTARY, BR, BD)
    elif head < QUERY_HEADS + INDEX_HEADS:
        own = head - QUERY_HEADS
        target = index_queries + (row * INDEX_HEADS + own) * ID
        source = line + 2 * QUERY_HEADS * D + own * ID
        _store_turned(source, index_query_norm, cosine, sine, target, row >= 0, epsilon, ID, ROTARY, BR, BI)
    elif head < QUERY_HEADS + INDEX_HEADS + KEY_HEADS:
        own, live = head - QUERY_HEADS - INDEX_HEADS, (position >= 0) & (place >= 0)
        page = tl.maximum(place, 0).to(tl.int64) // PAGE * (2 * KEY_HEADS) + own
        target = pages + (page * PAGE + tl.maximum(place, 0) % PAGE) * D
        _store_turned(line + KEYS + own * D, key_norm, cosine, sine, target, live, epsilon, D, ROTARY, BR, BD)
        at = tl.arange(0, BV)
        value = tl.load(line + KEYS + (KEY_HEADS + own) * D + at, mask=(at < D) & live, other=0)
        tl.store(target + KEY_HEADS * PAGE * D + at, value.to(pages.dtype.element_ty), mask=(at < D) & live)
    elif CHOOSES & (position >= 0):
        raw = line + KEYS + 2 * KEY_HEADS * D
        if (position + 1) % RATIO == 0:
            _store_group(
                raw, ring, tags, index_key_norm, turns, groups, missing, tables, slot, position, start, lane,
                LANE_PAGES, epsilon, LINE, CAPACITY, RATIO, EACH, ID, ROTARY, BR, BI, SHIFT,
            )  # fmt: skip
        at = tl.arange(0, BV)
        goal = slot * CAPACITY + position % CAPACITY
        value = tl.load(raw + at, mask=at < ID, other=0)
        tl.store(ring + goal * ID + at, value.to(ring.dtype.element_ty), mask=at < ID)
        tl.store(tags + goal, position.to(tl.int64))
