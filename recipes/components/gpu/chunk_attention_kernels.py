"""Triton kernels of sparse attention for prompt chunks: scores by tiles of rows, their choice, attention to it.

Rows that do not stand far behind a context's beginning share tiles, which go over all of it under the rows' masks; far
rows gather what they chose. Which of both a row does follows from its position alone. Scores are not negative.
"""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from recipes.components.gpu.attention_kernels import add_page
from recipes.components.gpu.choice_kernels import best_of


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
def _choose(
    line: tl.tensor, out: tl.tensor, masks: tl.tensor, visible: tl.tensor, BUDGET: tl.constexpr, BG: tl.constexpr,
    WORDS: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Writes the choice of a row that sees at most `BG` groups; how many there are. Equal scores: the lower group."""
    at = tl.arange(0, BG)
    take = at < visible
    place = at
    if visible > BUDGET:
        bits = tl.load(line + at, mask=at < visible, other=0).to(tl.int32, bitcast=True)
        take, place = best_of(bits, at < visible, BUDGET)
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
def choose_rows(
    scores: tl.tensor, positions: tl.tensor, chosen: tl.tensor, numbers: tl.tensor, masks: tl.tensor, G: tl.tensor,
    RATIO: tl.constexpr, BUDGET: tl.constexpr, NEAR: tl.constexpr, BN: tl.constexpr, WORDS: tl.constexpr,
    BF: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """One row a program: `chosen` int32 [R, BUDGET], ascending, and how many; of near rows `masks` int32 [R, WORDS].

    A near row sees fewer groups than `NEAR`, which `BN` covers; 16 are a word. Up to `BF` groups are held in registers.
    """
    row = tl.program_id(0).to(tl.int64)
    visible = (tl.load(positions + row) + 1) // RATIO
    line, out, mask = scores + row * G, chosen + row * BUDGET, masks + row * WORDS
    number = visible
    if visible < NEAR:
        number = _choose(line, out, mask, visible, BUDGET, BN, WORDS)
    elif visible <= BF:
        number = _choose(line, out, mask, visible, BUDGET, BF, 0)
    else:
        number = _choose_far(line, out, visible, BUDGET, BLOCK)
    tl.store(numbers + row, number)


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
def _add_masked(
    query: tl.tensor, keys: tl.tensor, values: tl.tensor, seen: tl.tensor, top: tl.tensor, total: tl.tensor,
    found: tl.tensor, scale: tl.constexpr, TYPE: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:  # fmt: skip
    """One step of the running softmax over what each row has `seen` [QR, tokens]."""
    scores = tl.dot(query, tl.trans(keys), input_precision="ieee") * (scale * 1.4426950408889634)
    scores = tl.where(seen, scores, -float("inf"))
    new_top = tl.maximum(top, tl.max(scores, 1))
    safe = tl.where(new_top == -float("inf"), 0.0, new_top)
    weights = tl.exp2(scores - safe[:, None])
    keep = tl.exp2(top - safe)
    total = total * keep + tl.sum(weights, 1)
    found = tl.dot(weights.to(TYPE), values, found * keep[:, None], input_precision="ieee")
    return new_top, total, found


@triton.jit
def attend_near(
    queries: tl.tensor, projected: tl.tensor, pages: tl.tensor, positions: tl.tensor, tables: tl.tensor,
    masks: tl.tensor, out: tl.tensor, LINE: tl.tensor, LANE_PAGES: tl.tensor, scale: tl.constexpr, W: tl.constexpr,
    GROUP: tl.constexpr, KEY_HEADS: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, PAGE: tl.constexpr,
    RATIO: tl.constexpr, NEAR: tl.constexpr, WORDS: tl.constexpr, QR: tl.constexpr, TYPE: tl.constexpr,
    SHIFT: tl.constexpr, STAGES: tl.constexpr,
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
    if tl.max(real.to(tl.int32), 0) > 0:
        limit = tl.where(real, limit, -1)
        head = key * GROUP + item % GROUP
        at, token = tl.arange(0, BD), tl.arange(0, PAGE)
        line = queries + (row * (KEY_HEADS * GROUP) + head)[:, None] * D + at[None, :]
        query = tl.load(line, mask=real[:, None] & (at < D)[None, :], other=0).to(TYPE)
        top = tl.full([QR], -float("inf"), tl.float32)
        total = tl.zeros([QR], tl.float32)
        found = tl.zeros([QR, BD], tl.float32)
        reach = tl.max(limit, 0) + 1
        for number in tl.range(0, tl.cdiv(reach + SHIFT, PAGE), num_stages=STAGES):
            page = tl.load(tables + lane * LANE_PAGES + number).to(tl.int64)
            position = number * PAGE + token - SHIFT
            # Beyond the length a page holds whatever was there before: it must not even be multiplied by zero.
            known = ((position >= 0) & (position < reach))[:, None] & (at < D)[None, :]
            place = pages + ((page * 2 * KEY_HEADS + key) * PAGE + token)[:, None] * D + at[None, :]
            keys = tl.load(place, mask=known, other=0).to(TYPE)
            values = tl.load(place + KEY_HEADS * PAGE * D, mask=known, other=0).to(TYPE)
            seen = (position >= 0)[None, :] & (position[None, :] <= limit[:, None])
            if WORDS > 0:
                mask = tl.load(masks + row * WORDS + number, mask=real & (number * PAGE <= limit), other=0)
                seen = seen & (((mask[:, None] >> (token // RATIO)[None, :]) & 1) == 1)
            top, total, found = _add_masked(query, keys, values, seen, top, total, found, scale, TYPE)
        _put_gated(found, total, projected, LINE, out, row, head, real, KEY_HEADS * GROUP, D, BD)


@triton.jit
def attend_far(
    queries: tl.tensor, projected: tl.tensor, pages: tl.tensor, positions: tl.tensor, tables: tl.tensor,
    chosen: tl.tensor, numbers: tl.tensor, out: tl.tensor, LINE: tl.tensor, LANE_PAGES: tl.tensor,
    scale: tl.constexpr, W: tl.constexpr, GROUP: tl.constexpr, KEY_HEADS: tl.constexpr, D: tl.constexpr,
    BD: tl.constexpr, PAGE: tl.constexpr, RATIO: tl.constexpr, BUDGET: tl.constexpr, NEAR: tl.constexpr,
    QR: tl.constexpr, BT: tl.constexpr, TYPE: tl.constexpr, SHIFT: tl.constexpr, STAGES: tl.constexpr,
) -> None:  # fmt: skip
    """All other rows: one row and key head a program, its chosen groups and its open tail."""
    row, key = tl.program_id(0).to(tl.int64), tl.program_id(1)
    position = tl.load(positions + row)
    if (position + 1) // RATIO >= NEAR:
        number = tl.load(numbers + row)
        tail = (position + 1) // RATIO * RATIO
        length = number * RATIO + position + 1 - tail
        item, at = tl.arange(0, QR), tl.arange(0, BD)
        head = key * GROUP + item
        inside = (item < GROUP)[:, None] & (at < D)[None, :]
        line = queries + (row * (KEY_HEADS * GROUP) + head)[:, None] * D + at[None, :]
        query = tl.load(line, mask=inside, other=0).to(TYPE)
        top = tl.full([QR], -float("inf"), tl.float32)
        total = tl.zeros([QR], tl.float32)
        found = tl.zeros([QR, BD], tl.float32)
        limit = tl.zeros([QR], tl.int32) + length - 1
        for start in tl.range(0, length, BT, num_stages=STAGES):
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
        _put_gated(found, total, projected, LINE, out, every, head, item < GROUP, KEY_HEADS * GROUP, D, BD)
