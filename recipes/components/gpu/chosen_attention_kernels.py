"""Triton kernels of attention to chosen groups and the open tail, for the few rows of a round.

A program takes a block of a row's tokens, another kernel weighs the blocks together: where all of a head's parts are
read by one program, that program is what everybody waits for.
"""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def _length(
    positions: tl.tensor, numbers: tl.tensor, anchors: tl.tensor, row: tl.tensor, RATIO: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:  # fmt: skip
    """(tokens a row attends to, those of chosen groups, where its open tail begins)."""
    position = tl.load(positions + row)
    tail = (tl.load(anchors + row) + 1) // RATIO * RATIO
    grouped = tl.load(numbers + row) * RATIO
    return tl.where(position >= 0, grouped + position + 1 - tail, 0), grouped, tail


@triton.jit
def attend_blocks(
    queries: tl.tensor, pages: tl.tensor, positions: tl.tensor, tables: tl.tensor, chosen: tl.tensor,
    numbers: tl.tensor, anchors: tl.tensor, parts: tl.tensor, sums: tl.tensor, LANE_PAGES: tl.tensor,
    scale: tl.constexpr, W: tl.tensor, GROUP: tl.constexpr, KEY_HEADS: tl.constexpr, D: tl.constexpr,
    BD: tl.constexpr, PAGE: tl.constexpr, RATIO: tl.constexpr, BUDGET: tl.constexpr, QR: tl.constexpr,
    BT: tl.constexpr, BLOCKS: tl.constexpr, SHIFT: tl.constexpr, TYPE: tl.constexpr, CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """One row, key head and block of `BT` tokens a program.

    `parts` float32 [R, KEY_HEADS * GROUP, BLOCKS, D]: values weighed by powers of two of their scores over the
    block's largest; `sums` float32 [.., BLOCKS, 2]: that score and the weights' sum.
    """
    row, key, block = tl.program_id(0) // KEY_HEADS, tl.program_id(0) % KEY_HEADS, tl.program_id(1)
    item, at = tl.arange(0, QR), tl.arange(0, BD)
    head = row * (KEY_HEADS * GROUP) + key * GROUP + item
    inside = (item < GROUP)[:, None] & (at < D)[None, :]
    if CHAINED:
        gdc_wait()
        gdc_launch_dependents()
    length, grouped, tail = _length(positions, numbers, anchors, row, RATIO)
    if block * BT < length:
        query = tl.load(queries + head[:, None] * D + at[None, :], mask=inside, other=0).to(TYPE)
        token = block * BT + tl.arange(0, BT)
        group = tl.load(chosen + row * BUDGET + token // RATIO, mask=token < grouped, other=0)
        seen = tl.where(token < grouped, group * RATIO + token % RATIO, tail + token - grouped) + SHIFT
        here = token < length
        page = tl.load(tables + row // W * LANE_PAGES + seen // PAGE, mask=here, other=0).to(tl.int64)
        place = ((page * 2 * KEY_HEADS + key) * PAGE + seen % PAGE)[:, None] * D + at[None, :]
        known = here[:, None] & (at < D)[None, :]
        keys = tl.load(pages + place, mask=known, other=0).to(TYPE)
        values = tl.load(pages + place + KEY_HEADS * PAGE * D, mask=known, other=0).to(TYPE)
        scores = tl.dot(query, tl.trans(keys), input_precision="ieee") * (scale * 1.4426950408889634)
        scores = tl.where(here[None, :], scores, -float("inf"))
        top = tl.max(scores, 1)
        weights = tl.exp2(scores - top[:, None])
        found = tl.dot(weights.to(TYPE), values, input_precision="ieee")
        entry = head * BLOCKS + block
        tl.store(parts + entry.to(tl.int64)[:, None] * D + at[None, :], found, mask=inside)
        tl.store(sums + 2 * entry, top, mask=item < GROUP)
        tl.store(sums + 2 * entry + 1, tl.sum(weights, 1), mask=item < GROUP)


@triton.jit
def merge_blocks(
    parts: tl.tensor, sums: tl.tensor, projected: tl.tensor, positions: tl.tensor, numbers: tl.tensor,
    anchors: tl.tensor, out: tl.tensor, LINE: tl.tensor, HEADS: tl.constexpr, D: tl.constexpr, BD: tl.constexpr,
    RATIO: tl.constexpr, BT: tl.constexpr, BLOCKS: tl.constexpr, BB: tl.constexpr, CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """One row and query head a program: `out` [R, HEADS * D] = attention * sigmoid(gate); zero of a masked row.

    The gate lies behind the head's query in `projected` [R, LINE].
    """
    row, head, at = tl.program_id(0), tl.program_id(1), tl.arange(0, BD)
    gate = tl.load(projected + row.to(tl.int64) * LINE + (2 * head + 1) * D + at, mask=at < D, other=0)
    if CHAINED:
        gdc_wait()
        gdc_launch_dependents()
    length, _, _ = _length(positions, numbers, anchors, row, RATIO)
    block = tl.arange(0, BB)
    here = block * BT < length
    entry = (row * HEADS + head) * BLOCKS + block
    top = tl.load(sums + 2 * entry, mask=here, other=-float("inf"))
    total = tl.load(sums + 2 * entry + 1, mask=here, other=0)
    value = tl.load(
        parts + entry.to(tl.int64)[:, None] * D + at[None, :], mask=here[:, None] & (at < D)[None, :], other=0
    )
    best = tl.max(top, 0)
    weight = tl.where(here, tl.exp2(top - tl.where(length > 0, best, 0.0)), 0.0)
    whole = tl.sum(total * weight, 0)
    found = tl.sum(value * weight[:, None], 0) / tl.where(whole > 0, whole, 1.0)
    found *= tl.sigmoid(gate.to(tl.float32))
    tl.store(out + (row * HEADS + head).to(tl.int64) * D + at, found.to(out.dtype.element_ty), mask=at < D)
