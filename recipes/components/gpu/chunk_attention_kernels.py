"""Triton kernels of sparse attention for prompt chunks: scores by tiles of rows, attention to what each row chose.

Rows that do not stand far behind a context's beginning share tiles, which go over all of it under the rows' masks; far
rows gather what they chose. Which of both a row does follows from its position alone. Scores are not negative. Where
rows are few, programs take parts of the way, fixed ones, and another kernel weighs these together.
"""

# mypy: disable-error-code="untyped-decorator,no-any-return"
from __future__ import annotations

import triton
import triton.language as tl

from recipes.components.gpu.attention_kernels import add_page


@triton.jit
def score_rows(
    queries: tl.tensor, groups: tl.tensor, positions: tl.tensor, tables: tl.tensor, scores: tl.tensor,
    LANE_PAGES: tl.tensor, G: tl.tensor, FIRST: tl.tensor, SOME: tl.tensor, TILES: tl.tensor, scale: tl.constexpr,
    W: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, RATIO: tl.constexpr, EACH: tl.constexpr,
    BUDGET: tl.constexpr, BR: tl.constexpr, BG: tl.constexpr, TYPE: tl.constexpr, SHIFT: tl.constexpr,
) -> None:  # fmt: skip
    """`BR` rows of a lane and `BG` groups a program, of rows FIRST .. FIRST + SOME: `scores` [B * SOME, G]."""
    lane, index = tl.program_id(0) // TILES, tl.program_id(0) % TILES * BR + tl.arange(0, BR)
    own = (index < SOME) & (FIRST + index < W)
    row = lane * W + FIRST + index
    visible = (tl.load(positions + row, mask=own, other=-1) + 1) // RATIO
    most, start = tl.max(visible, 0), tl.program_id(1) * BG
    if (most > BUDGET) & (start < most):
        group, at = start + tl.arange(0, BG), tl.arange(0, BD)
        stored = group + SHIFT
        page = tl.load(tables + lane * LANE_PAGES + stored // EACH, mask=group < most, other=0).to(tl.int64)
        place = (page * EACH + stored % EACH)[:, None] * D + at[None, :]
        inside = (group < most)[:, None] & (at < D)[None, :]
        keys = tl.load(groups + place, mask=inside, other=0).to(TYPE)
        total = tl.zeros([BR, BG], tl.float32)
        for head in tl.static_range(HEADS):
            line = (row.to(tl.int64) * HEADS + head)[:, None] * D + at[None, :]
            query = tl.load(queries + line, mask=own[:, None] & (at < D)[None, :], other=0).to(TYPE)
            total += tl.maximum(tl.dot(query, tl.trans(keys), input_precision="ieee"), 0.0)
        target = scores + (lane * SOME + index).to(tl.int64)[:, None] * G + group[None, :]
        tl.store(target, total * scale, mask=own[:, None] & (group[None, :] < visible[:, None]))


@triton.jit
def _put_gated(
    found: tl.tensor, total: tl.tensor, projected: tl.tensor, LINE: tl.tensor, out: tl.tensor, row: tl.tensor,
    head: tl.tensor, real: tl.tensor, HEADS: tl.constexpr, D: tl.constexpr, BD: tl.constexpr,
) -> None:  # fmt: skip
    """`out` of (`row`, `head`) pairs: what was found, times the sigmoid of the gate behind the query."""
    at = tl.arange(0, BD)
    inside = real[:, None] & (at < D)[None, :]
    behind = projected + (row * LINE + (head * 2 + 1) * D)[:, None] + at[None, :]
    gate = tl.load(behind, mask=inside, other=0).to(tl.float32)
    found = found / tl.where(total > 0, total, 1.0)[:, None] * tl.sigmoid(gate)
    found = tl.where((total > 0)[:, None], found, 0.0)
    target = out + (row * HEADS + head)[:, None] * D + at[None, :]
    tl.store(target, found.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _leave(
    found: tl.tensor, total: tl.tensor, top: tl.tensor, parts: tl.tensor, sums: tl.tensor, row: tl.tensor,
    head: tl.tensor, real: tl.tensor, HEADS: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, SPLITS: tl.constexpr,
) -> None:  # fmt: skip
    """What this split found for (`row`, `head`) pairs, for `merge_splits`."""
    at = tl.arange(0, BD)
    entry = (row * HEADS + head) * SPLITS + tl.program_id(2)
    tl.store(parts + entry[:, None] * D + at[None, :], found, mask=real[:, None] & (at < D)[None, :])
    tl.store(sums + 2 * entry, top, mask=real)
    tl.store(sums + 2 * entry + 1, total, mask=real)


@triton.jit
def _add_masked(
    query: tl.tensor, keys: tl.tensor, values: tl.tensor, seen: tl.tensor, top: tl.tensor, total: tl.tensor,
    found: tl.tensor, scale: tl.constexpr, TYPE: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:  # fmt: skip
    """One step of the running softmax over what each row has `seen` [QR, tokens]."""
    # Scores and the largest of them are left unscaled: then what an exponent takes is one operation.
    factor: tl.constexpr = scale * 1.4426950408889634
    scores = tl.where(seen, tl.dot(query, tl.trans(keys), input_precision="ieee"), -float("inf"))
    new_top = tl.maximum(top, tl.max(scores, 1))
    safe = tl.where(new_top == -float("inf"), 0.0, new_top * factor)
    weights = tl.exp2(scores * factor - safe[:, None])
    keep = tl.exp2(top * factor - safe)
    total = total * keep + tl.sum(weights, 1)
    found = tl.dot(weights.to(TYPE), values, found * keep[:, None], input_precision="ieee")
    return new_top, total, found


@triton.jit
def _add_page(
    number: tl.tensor, query: tl.tensor, pages: tl.tensor, table: tl.tensor, masks: tl.tensor, live: tl.tensor,
    limit: tl.tensor, reach: tl.tensor, key: tl.tensor, top: tl.tensor, total: tl.tensor, found: tl.tensor,
    scale: tl.constexpr, KEY_HEADS: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, PAGE: tl.constexpr,
    RATIO: tl.constexpr, WORDS: tl.constexpr, TYPE: tl.constexpr, SHIFT: tl.constexpr, WHOLE: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:  # fmt: skip
    """The running softmax of a tile's `live` rows over one page; `WHOLE`: all of them see all of it."""
    at, token = tl.arange(0, BD), tl.arange(0, PAGE)
    page = tl.load(table + number).to(tl.int64)
    place = pages + ((page * 2 * KEY_HEADS + key) * PAGE + token)[:, None] * D + at[None, :]
    position = number * PAGE + token - SHIFT
    seen = live[:, None] & (token >= 0)[None, :]
    if WORDS > 0:
        word = tl.load(masks + number, mask=live & (number * PAGE <= limit), other=0)
        seen = (word[:, None] & (1 << (token // RATIO))[None, :]) != 0
    if WHOLE and D == BD:
        keys, values = tl.load(place), tl.load(place + KEY_HEADS * PAGE * D)
    else:
        # Beyond the length a page holds whatever was there before: it must not even be multiplied by zero.
        known = ((position >= 0) & (position < reach))[:, None] & (at < D)[None, :]
        keys, values = tl.load(place, mask=known, other=0), tl.load(place + KEY_HEADS * PAGE * D, mask=known, other=0)
    if not WHOLE:
        seen = seen & (position >= 0)[None, :] & (position[None, :] <= limit[:, None])
    return _add_masked(query, keys.to(TYPE), values.to(TYPE), seen, top, total, found, scale, TYPE)


@triton.jit
def attend_near(
    queries: tl.tensor, projected: tl.tensor, pages: tl.tensor, positions: tl.tensor, tables: tl.tensor,
    masks: tl.tensor, out: tl.tensor, parts: tl.tensor, sums: tl.tensor, LINE: tl.tensor, LANE_PAGES: tl.tensor,
    scale: tl.constexpr, W: tl.constexpr, GROUP: tl.constexpr, KEY_HEADS: tl.constexpr, D: tl.constexpr,
    BD: tl.constexpr, PAGE: tl.constexpr, RATIO: tl.constexpr, NEAR: tl.constexpr, SPLITS: tl.constexpr,
    PER: tl.constexpr, WORDS: tl.constexpr, QR: tl.constexpr, TYPE: tl.constexpr, SHIFT: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:  # fmt: skip
    """Rows that see fewer groups than `NEAR`: one lane, key head and tile of `QR` (row, query head) pairs a program.

    `queries` and `out` [B * W, heads * D]; `pages` [pages, 2, KEY_HEADS, PAGE, D]. A row's gates lie behind its queries
    in a line of `LINE` elements of `projected`. Without masks (`WORDS` 0) near rows see everything before them.
    """
    lane, key = tl.program_id(0) // KEY_HEADS, tl.program_id(0) % KEY_HEADS
    # The tiles with the longest way to go start first.
    item = (tl.num_programs(1) - 1 - tl.program_id(1)) * QR + tl.arange(0, QR)
    row = (lane * W + item // GROUP).to(tl.int64)
    limit = tl.load(positions + row, mask=item < W * GROUP, other=-1)
    real = (item < W * GROUP) & ((limit + 1) // RATIO < NEAR)
    first = tl.program_id(2) * PER
    if SPLITS > 1:
        real = real & (limit + SHIFT >= first * PAGE)
    if tl.max(real.to(tl.int32), 0) > 0:
        limit = tl.where(real, limit, -1)
        head = key * GROUP + item % GROUP
        live = real & (limit >= 0)
        at = tl.arange(0, BD)
        line = queries + (row * (KEY_HEADS * GROUP) + head)[:, None] * D + at[None, :]
        query = tl.load(line, mask=real[:, None] & (at < D)[None, :], other=0).to(TYPE)
        top = tl.full([QR], -float("inf"), tl.float32)
        total = tl.zeros([QR], tl.float32)
        found = tl.zeros([QR, BD], tl.float32)
        reach = tl.max(limit, 0) + 1
        last = tl.minimum(first + PER, tl.cdiv(reach + SHIFT, PAGE))
        table, mask = tables + lane * LANE_PAGES, masks + row * WORDS
        if SHIFT == 0:
            # Nearly all pages end before the tile's first row does: there nobody's limit needs to be looked at.
            start = tl.min(tl.where(live, limit + 1, reach), 0) // PAGE
            start = tl.minimum(last, tl.maximum(start, first))
            for number in tl.range(first, start, num_stages=STAGES):
                top, total, found = _add_page(
                    number, query, pages, table, mask, live, limit, reach, key, top, total, found, scale, KEY_HEADS, D,
                    BD, PAGE, RATIO, WORDS, TYPE, SHIFT, True,
                )  # fmt: skip
            first = start
        for number in tl.range(first, last, num_stages=STAGES):
            top, total, found = _add_page(
                number, query, pages, table, mask, live, limit, reach, key, top, total, found, scale, KEY_HEADS, D, BD,
                PAGE, RATIO, WORDS, TYPE, SHIFT, False,
            )  # fmt: skip
        if SPLITS > 1:
            top *= scale * 1.4426950408889634
            _leave(found, total, top, parts, sums, row, head, real, KEY_HEADS * GROUP, D, BD, SPLITS)
        else:
            _put_gated(found, total, projected, LINE, out, row, head, real, KEY_HEADS * GROUP, D, BD)


@triton.jit
def attend_far(
    queries: tl.tensor, projected: tl.tensor, pages: tl.tensor, positions: tl.tensor, tables: tl.tensor,
    chosen: tl.tensor, numbers: tl.tensor, out: tl.tensor, parts: tl.tensor, sums: tl.tensor, LINE: tl.tensor,
    LANE_PAGES: tl.tensor, scale: tl.constexpr, W: tl.constexpr, GROUP: tl.constexpr, KEY_HEADS: tl.constexpr,
    D: tl.constexpr, BD: tl.constexpr, PAGE: tl.constexpr, RATIO: tl.constexpr, NEAR: tl.constexpr,
    SPLITS: tl.constexpr, PER: tl.constexpr, BUDGET: tl.constexpr, QR: tl.constexpr, BT: tl.constexpr,
    TYPE: tl.constexpr, SHIFT: tl.constexpr, STAGES: tl.constexpr,
) -> None:  # fmt: skip
    """All other rows: one row and key head a program, its chosen groups and its open tail; or `PER` tokens of them."""
    row, key = tl.program_id(0).to(tl.int64), tl.program_id(1)
    position = tl.load(positions + row)
    number = tl.load(numbers + row)
    tail = (position + 1) // RATIO * RATIO
    length = number * RATIO + position + 1 - tail
    first = tl.program_id(2) * PER
    if ((position + 1) // RATIO >= NEAR) & (first < length):
        item, at = tl.arange(0, QR), tl.arange(0, BD)
        head = key * GROUP + item
        inside = (item < GROUP)[:, None] & (at < D)[None, :]
        line = queries + (row * (KEY_HEADS * GROUP) + head)[:, None] * D + at[None, :]
        query = tl.load(line, mask=inside, other=0).to(TYPE)
        top = tl.full([QR], -float("inf"), tl.float32)
        total = tl.zeros([QR], tl.float32)
        found = tl.zeros([QR, BD], tl.float32)
        limit = tl.zeros([QR], tl.int32) + length - 1
        for start in tl.range(first, tl.minimum(first + PER, length), BT, num_stages=STAGES):
            token = start + tl.arange(0, BT)
            in_group = token < number * RATIO
            group = tl.load(chosen + row * BUDGET + token // RATIO, mask=in_group, other=0)
            stored = tl.where(in_group, group * RATIO + token % RATIO, tail + token - number * RATIO) + SHIFT
            here = token < length
            page = tl.load(tables + row // W * LANE_PAGES + stored // PAGE, mask=here, other=0).to(tl.int64)
            place = ((page * 2 * KEY_HEADS + key) * PAGE + stored % PAGE)[:, None] * D + at[None, :]
            known = here[:, None] & (at < D)[None, :]
            keys = tl.load(pages + place, mask=known, other=0).to(TYPE)
            values = tl.load(pages + place + KEY_HEADS * PAGE * D, mask=known, other=0).to(TYPE)
            top, total, found = add_page(query, keys, values, token, limit, top, total, found, scale, TYPE)
        every = row + tl.zeros([QR], tl.int64)
        if SPLITS > 1:
            _leave(found, total, top, parts, sums, every, head, item < GROUP, KEY_HEADS * GROUP, D, BD, SPLITS)
        else:
            _put_gated(found, total, projected, LINE, out, every, head, item < GROUP, KEY_HEADS * GROUP, D, BD)


@triton.jit
def merge_splits(
    parts: tl.tensor, sums: tl.tensor, projected: tl.tensor, positions: tl.tensor, numbers: tl.tensor,
    out: tl.tensor, LINE: tl.tensor, HEADS: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, RATIO: tl.constexpr,
    NEAR: tl.constexpr, SPLITS: tl.constexpr, NEAR_TOKENS: tl.constexpr, FAR_TOKENS: tl.constexpr,
    SHIFT: tl.constexpr,
) -> None:  # fmt: skip
    """One row and query head a program: `out` [R, HEADS * D] of what its splits left in `parts` and `sums`, gated.

    `parts` float32 [R, HEADS, SPLITS, D]: values weighed by powers of two of their scores over the split's largest;
    `sums` float32 [.., SPLITS, 2]: that score, and the weights' sum.
    """
    row, head, at = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.arange(0, BD)
    gate = tl.load(projected + row * LINE + (2 * head + 1) * D + at, mask=at < D, other=0).to(tl.float32)
    seen = tl.load(positions + row) + 1
    length = tl.load(numbers + row) * RATIO + seen % RATIO
    near = tl.where(seen > 0, tl.cdiv(seen + SHIFT, NEAR_TOKENS), 0)
    used = tl.where(seen // RATIO < NEAR, near, tl.cdiv(length, FAR_TOKENS))
    split = tl.arange(0, SPLITS)
    here = split < used
    entry = (row * HEADS + head) * SPLITS + split
    top = tl.load(sums + 2 * entry, mask=here, other=-float("inf"))
    total = tl.load(sums + 2 * entry + 1, mask=here, other=0)
    value = tl.load(parts + entry[:, None] * D + at[None, :], mask=here[:, None] & (at < D)[None, :], other=0)
    best = tl.where(used > 0, tl.max(top, 0), 0.0)
    weight = tl.where(here, tl.exp2(top - best), 0.0)
    whole = tl.sum(total * weight, 0)
    found = tl.sum(value * weight[:, None], 0) / tl.where(whole > 0, whole, 1.0) * tl.sigmoid(gate)
    tl.store(out + (row * HEADS + head) * D + at, found.to(out.dtype.element_ty), mask=at < D)
