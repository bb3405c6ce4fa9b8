"""Triton kernels of sparse attention with an indexer: heads, groups and rings, scores, choice, attention to the chosen.

Lengths follow from positions on the device. A group counts once its last position is there; what lies in storage beyond
that is never read. Equal scores go to the lower group.
"""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from recipes.components.gpu.attention_kernels import add_page, leave_part, merge


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
) -> None:  # fmt: skip
    """One lane and one group that it completes a program: the mean of its raw keys, normed and turned, to `groups`.

    Keys before the lane's first row come from `ring` [rows, CAPACITY, D], if their tags are their positions; else the
    lane is counted in `missing` and the group holds NaN.
    """
    lane = tl.program_id(0)
    slot, start, count = tl.load(slots + lane), tl.load(first + lane), tl.load(counts + lane)
    group = start // RATIO + tl.program_id(1)
    live = (slot >= 0) & ((group + 1) * RATIO <= start + count) & (group // EACH < LANE_PAGES)
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
        page = tl.load(tables + lane * LANE_PAGES + group // EACH).to(tl.int64)
        target = groups + (page * EACH + group % EACH) * D
        _put(target, a * cosine - b * sine, b * cosine + a * sine, c, live, D, ROTARY, BR, BD)
        if lost > 0:
            tl.atomic_add(missing + lane, lost)


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
    CAPACITY: tl.constexpr, D: tl.constexpr, BC: tl.constexpr, BD: tl.constexpr,
) -> None:  # fmt: skip
    """Row `target` becomes row `slot` as a prefix of first + kept tokens left it: tags beyond are forgotten."""
    lane = tl.program_id(0)
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
    LANE_PAGES: tl.tensor, G: tl.tensor, scale: tl.constexpr, W: tl.constexpr, HEADS: tl.constexpr, BH: tl.constexpr,
    D: tl.constexpr, BD: tl.constexpr, RATIO: tl.constexpr, EACH: tl.constexpr, BUDGET: tl.constexpr,
    BG: tl.constexpr, TYPE: tl.constexpr,
) -> None:  # fmt: skip
    """One row and `BG` groups a program: `scores` [R, G]. Rows that see no more than the budget need none."""
    row = tl.program_id(0)
    visible = (tl.load(positions + row) + 1) // RATIO
    start = tl.program_id(1) * BG
    if (visible > BUDGET) & (start < visible):
        group, head, at = start + tl.arange(0, BG), tl.arange(0, BH), tl.arange(0, BD)
        seen = group < visible
        page = tl.load(tables + row // W * LANE_PAGES + group // EACH, mask=seen, other=0).to(tl.int64)
        place = (page * EACH + group % EACH)[:, None] * D + at[None, :]
        keys = tl.load(groups + place, mask=seen[:, None] & (at < D)[None, :], other=0).to(TYPE)
        line = (row.to(tl.int64) * HEADS + head)[:, None] * D + at[None, :]
        query = tl.load(queries + line, mask=(head < HEADS)[:, None] & (at < D)[None, :], other=0).to(TYPE)
        products = tl.maximum(tl.dot(query, tl.trans(keys), input_precision="ieee"), 0.0)
        tl.store(scores + row.to(tl.int64) * G + group, tl.sum(products, 0) * scale, mask=seen)


@triton.jit
def choose(
    scores: tl.tensor, positions: tl.tensor, chosen: tl.tensor, numbers: tl.tensor, G: tl.tensor,
    RATIO: tl.constexpr, BUDGET: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """One row a program: `chosen` int32 [R, BUDGET], ascending, and how many. Scores are not negative.

    The bits of such floats are in the order of their values: the smallest chosen score is found byte by byte, by
    counting; of those that equal it the first ones are taken.
    """
    row = tl.program_id(0)
    visible = (tl.load(positions + row) + 1) // RATIO
    line = scores + row.to(tl.int64) * G
    out = chosen + row.to(tl.int64) * BUDGET
    at = tl.arange(0, BLOCK)
    if visible <= BUDGET:
        for start in tl.range(0, visible, BLOCK):
            tl.store(out + start + at, start + at, mask=start + at < visible)
        tl.store(numbers + row, visible)
    else:
        limit = tl.zeros([], tl.int32)
        need = tl.full([], BUDGET, tl.int32)
        digit = tl.arange(0, 256)
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
        equal = tl.zeros([], tl.int32)
        for start in tl.range(0, visible, BLOCK):
            here = start + at < visible
            bits = tl.load(line + start + at, mask=here, other=0).to(tl.int32, bitcast=True)
            ties = (here & (bits == limit)).to(tl.int32)
            rank = equal + tl.cumsum(ties, 0)
            take = (here & ((bits > limit) | ((bits == limit) & (rank <= need)))).to(tl.int32)
            place = taken + tl.cumsum(take, 0) - 1
            tl.store(out + place, start + at, mask=take > 0)
            taken += tl.sum(take, 0)
            equal += tl.sum(ties, 0)
        tl.store(numbers + row, taken)


@triton.jit
def attend_chosen(
    queries: tl.tensor, projected: tl.tensor, pages: tl.tensor, positions: tl.tensor, tables: tl.tensor,
    chosen: tl.tensor, numbers: tl.tensor, parts: tl.tensor, sums: tl.tensor, arrived: tl.tensor, out: tl.tensor,
    LANE_PAGES: tl.tensor, scale: tl.constexpr, W: tl.constexpr, GROUP: tl.constexpr, KEY_HEADS: tl.constexpr,
    D: tl.constexpr, BD: tl.constexpr, PAGE: tl.constexpr, RATIO: tl.constexpr, BUDGET: tl.constexpr,
    QR: tl.constexpr, BT: tl.constexpr, SPLITS: tl.constexpr, SPLIT_BLOCKS: tl.constexpr, AT_ONCE: tl.constexpr,
    MERGED: tl.constexpr, TYPE: tl.constexpr,
) -> None:  # fmt: skip
    """One row, key head and split of its chosen positions a program; the program that arrives last merges.

    `out` [R, heads * D] = attention * sigmoid(gate); a head's gate lies behind its query in `projected`
    [R, heads * 2 * D].
    """
    row, key = tl.program_id(0) // KEY_HEADS, tl.program_id(0) % KEY_HEADS
    split, base = tl.program_id(1), tl.program_id(0)
    position = tl.load(positions + row)
    number = tl.load(numbers + row)
    tail = (position + 1) // RATIO * RATIO
    length = tl.where(position >= 0, number * RATIO + position + 1 - tail, 0)
    used = tl.maximum(tl.cdiv(length, BT * SPLIT_BLOCKS), 1)
    item, at = tl.arange(0, QR), tl.arange(0, BD)
    if split < used:
        head = row.to(tl.int64) * (KEY_HEADS * GROUP) + key * GROUP + item
        inside = (item < GROUP)[:, None] & (at < D)[None, :]
        query = tl.load(queries + head[:, None] * D + at[None, :], mask=inside, other=0).to(TYPE)
        top = tl.full([QR], -float("inf"), tl.float32)
        total = tl.zeros([QR], tl.float32)
        found = tl.zeros([QR, BD], tl.float32)
        stop = tl.minimum((split + 1) * SPLIT_BLOCKS, tl.cdiv(length, BT))
        for block in tl.range(split * SPLIT_BLOCKS, stop):
            token = block * BT + tl.arange(0, BT)
            in_group = token < number * RATIO
            group = tl.load(chosen + row.to(tl.int64) * BUDGET + token // RATIO, mask=in_group, other=0)
            seen = tl.where(in_group, group * RATIO + token % RATIO, tail + token - number * RATIO)
            here = token < length
            page = tl.load(tables + row // W * LANE_PAGES + seen // PAGE, mask=here, other=0).to(tl.int64)
            place = ((page * 2 * KEY_HEADS + key) * PAGE + seen % PAGE)[:, None] * D + at[None, :]
            known = here[:, None] & (at < D)[None, :]
            keys = tl.load(pages + place, mask=known, other=0).to(TYPE)
            values = tl.load(pages + place + KEY_HEADS * PAGE * D, mask=known, other=0).to(TYPE)
            limit = tl.zeros([QR], tl.int32) + length - 1
            top, total, found = add_page(query, keys, values, token, limit, top, total, found, scale, TYPE)
        before = leave_part(parts, sums, arrived, base, split, top, total, found, SPLITS, QR, D, BD)
        if before == used - 1:
            for start in range(0, GROUP, MERGED):
                some = start + tl.arange(0, MERGED)
                merged = merge(parts, sums, base, used, some, SPLITS, QR, D, BD, AT_ONCE)
                real = (some < GROUP)[:, None] & (at < D)[None, :]
                which = row.to(tl.int64) * (KEY_HEADS * GROUP) + key * GROUP + some
                gate = tl.load(projected + (which[:, None] * 2 + 1) * D + at[None, :], mask=real, other=0)
                merged *= tl.sigmoid(gate.to(tl.float32))
                tl.store(out + which[:, None] * D + at[None, :], merged.to(out.dtype.element_ty), mask=real)
            tl.store(arrived + base, 0)
