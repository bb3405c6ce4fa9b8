"""Triton kernel of paged attention: few rows over a long context, split among programs, or a chunk of a prompt.

The query heads of a key head are rows of one tile. Lengths, page tables and positions are read on the device, so one
captured launch serves every length. Context is split at fixed positions: what a row computes depends on its own
prefix, the width and the split alone, never on its neighbours.
"""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def merge(
    parts: tl.tensor, sums: tl.tensor, base: tl.tensor, used: tl.tensor, item: tl.tensor, SPLITS: tl.constexpr,
    QR: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, AT_ONCE: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """float32 [items, BD]: the parts of a few items of one tile weighed together, in order of position."""
    at = tl.arange(0, BD)
    top = tl.full(item.shape, -float("inf"), tl.float32)
    total = tl.zeros(item.shape, tl.float32)
    found = tl.zeros([item.shape[0], BD], tl.float32)
    for start in range(0, used, AT_ONCE):
        part = start + tl.arange(0, AT_ONCE)
        here = (part < used)[:, None] & (item < QR)[None, :]
        entry = ((base * SPLITS + part) * QR)[:, None] + item[None, :]
        part_top = tl.load(sums + 2 * entry, mask=here, other=-float("inf"), cache_modifier=".cg")
        part_total = tl.load(sums + 2 * entry + 1, mask=here, other=0, cache_modifier=".cg")
        inside = here[:, :, None] & (at < D)[None, None, :]
        value = tl.load(parts + entry[:, :, None] * D + at[None, None, :], mask=inside, other=0, cache_modifier=".cg")
        new_top = tl.maximum(top, tl.max(part_top, 0))
        safe = tl.where(new_top == -float("inf"), 0.0, new_top)
        weight = tl.exp2(part_top - safe[None, :])
        keep = tl.exp2(top - safe)
        total = total * keep + tl.sum(part_total * weight, 0)
        found = found * keep[:, None] + tl.sum(value * weight[:, :, None], 0)
        top = new_top
    return found / tl.where(total > 0, total, 1.0)[:, None]


@triton.jit
def add_page(
    query: tl.tensor, keys: tl.tensor, values: tl.tensor, seen: tl.tensor, limit: tl.tensor, top: tl.tensor,
    total: tl.tensor, found: tl.tensor, scale: tl.constexpr, TYPE: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:  # fmt: skip
    """One step of the running softmax: largest score in powers of two, sum of weights, weighed values."""
    scores = tl.dot(query, tl.trans(keys), input_precision="ieee") * (scale * 1.4426950408889634)
    scores = tl.where(seen[None, :] <= limit[:, None], scores, -float("inf"))
    new_top = tl.maximum(top, tl.max(scores, 1))
    safe = tl.where(new_top == -float("inf"), 0.0, new_top)
    weights = tl.exp2(scores - safe[:, None])
    keep = tl.exp2(top - safe)
    total = total * keep + tl.sum(weights, 1)
    found = found * keep[:, None] + tl.dot(weights.to(TYPE), values, input_precision="ieee")
    return new_top, total, found


@triton.jit
def walk_pages(
    query: tl.tensor, pages: tl.tensor, table: tl.tensor, begin: tl.tensor, stop: tl.tensor, limit: tl.tensor,
    reach: tl.tensor, key: tl.tensor, scale: tl.constexpr, KEY_HEADS: tl.constexpr, D: tl.constexpr,
    BD: tl.constexpr, PAGE: tl.constexpr, QR: tl.constexpr, TYPE: tl.constexpr, STAGES: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:  # fmt: skip
    """The running softmax of a tile over pages begin .. stop of its lane."""
    top = tl.full([QR], -float("inf"), tl.float32)
    total = tl.zeros([QR], tl.float32)
    found = tl.zeros([QR, BD], tl.float32)
    token, at = tl.arange(0, PAGE), tl.arange(0, BD)
    for number in tl.range(begin, stop, num_stages=STAGES):
        page = tl.load(table + number).to(tl.int64)
        seen = number * PAGE + token
        # Beyond the length a page holds whatever was there before: it must not even be multiplied by zero.
        known = (seen < reach)[:, None] & (at < D)[None, :]
        state = pages + ((page * 2 * KEY_HEADS + key) * PAGE + token)[:, None] * D + at[None, :]
        keys = tl.load(state, mask=known, other=0).to(TYPE)
        values = tl.load(state + KEY_HEADS * PAGE * D, mask=known, other=0).to(TYPE)
        top, total, found = add_page(query, keys, values, seen, limit, top, total, found, scale, TYPE)
    return top, total, found


@triton.jit
def leave_part(
    parts: tl.tensor, sums: tl.tensor, arrived: tl.tensor, base: tl.tensor, split: tl.tensor, top: tl.tensor,
    total: tl.tensor, found: tl.tensor, SPLITS: tl.constexpr, QR: tl.constexpr, D: tl.constexpr, BD: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Leaves one split's part of tile `base` for whoever arrives last; how many had arrived before."""
    entry, at = (base * SPLITS + split) * QR + tl.arange(0, QR), tl.arange(0, BD)
    tl.store(parts + entry[:, None] * D + at[None, :], found, mask=(at < D)[None, :])
    tl.store(sums + 2 * entry, top)
    tl.store(sums + 2 * entry + 1, total)
    tl.debug_barrier()
    before = tl.atomic_add(arrived + base, 1, sem="acq_rel", scope="gpu")
    tl.debug_barrier()
    return before


@triton.jit
def _put_merged(
    parts: tl.tensor, sums: tl.tensor, arrived: tl.tensor, out: tl.tensor, base: tl.tensor, used: tl.tensor,
    first: tl.tensor, lane: tl.tensor, key: tl.tensor, W: tl.constexpr, GROUP: tl.constexpr,
    KEY_HEADS: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, QR: tl.constexpr, SPLITS: tl.constexpr,
    AT_ONCE: tl.constexpr, MERGED: tl.constexpr,
) -> None:  # fmt: skip
    """Merges all splits of a tile, whose first item is `first`, a few items at once; `arrived` is zero again."""
    at = tl.arange(0, BD)
    for start in range(0, tl.minimum(QR, W * GROUP - first), MERGED):
        some = start + tl.arange(0, MERGED)
        merged = merge(parts, sums, base, used, some, SPLITS, QR, D, BD, AT_ONCE)
        which = first + some
        real = (some < QR)[:, None] & (which < W * GROUP)[:, None] & (at < D)[None, :]
        row = (lane * W + which // GROUP).to(tl.int64)
        column = (key * GROUP + which % GROUP) * D
        target = row[:, None] * (KEY_HEADS * GROUP * D) + column[:, None] + at[None, :]
        tl.store(out + target, merged.to(out.dtype.element_ty), mask=real)
    tl.store(arrived + base, 0)


@triton.jit
def attend(
    queries: tl.tensor, pages: tl.tensor, positions: tl.tensor, lengths: tl.tensor, tables: tl.tensor,
    parts: tl.tensor, sums: tl.tensor, arrived: tl.tensor, out: tl.tensor, LANE_PAGES: tl.tensor, scale: tl.constexpr,
    W: tl.constexpr, GROUP: tl.constexpr, KEY_HEADS: tl.constexpr, D: tl.constexpr, BD: tl.constexpr,
    PAGE: tl.constexpr, QR: tl.constexpr, SPLITS: tl.constexpr, SPLIT_PAGES: tl.constexpr, AT_ONCE: tl.constexpr,
    MERGED: tl.constexpr, TYPE: tl.constexpr, CHAINED: tl.constexpr, STAGES: tl.constexpr,
) -> None:  # fmt: skip
    """One lane and key head, one tile of `QR` (row, query head) pairs, one split of the context a program.

    `queries` and `out` [B * W, KEY_HEADS * GROUP * D]; `pages` [pages, 2, KEY_HEADS, PAGE, D]. With several splits
    the program that arrives last merges; `arrived` int32 is zero before and after.
    """
    lane, key, split = tl.program_id(0) // KEY_HEADS, tl.program_id(0) % KEY_HEADS, tl.program_id(2)
    # Before the wait: what is older than the kernel before, which writes the keys and values of these rows only.
    length, start = tl.load(lengths + lane), tl.load(positions + lane * W)
    item = tl.program_id(1) * QR + tl.arange(0, QR)
    row = lane * W + item // GROUP
    own = item < W * GROUP
    limit = tl.load(positions + row, mask=own, other=-1)
    at, table = tl.arange(0, BD), tables + lane * LANE_PAGES
    column = (key * GROUP + item % GROUP) * D
    place = row.to(tl.int64)[:, None] * (KEY_HEADS * GROUP * D) + column[:, None] + at[None, :]
    inside = own[:, None] & (at < D)[None, :]
    # A tile ends where its last row does; an idle lane has one split with nothing in it.
    reach = tl.minimum(tl.max(limit, 0) + 1, length)
    all_pages = tl.cdiv(reach, PAGE)
    used = tl.maximum(tl.cdiv(all_pages, SPLIT_PAGES), 1)
    if SPLIT_PAGES == 1:
        seen = split * PAGE + tl.arange(0, PAGE)
        page = tl.load(table + split, mask=split < all_pages, other=0).to(tl.int64)
        state = pages + ((page * 2 * KEY_HEADS + key) * PAGE + tl.arange(0, PAGE))[:, None] * D + at[None, :]
        old = (seen < tl.minimum(start, reach))[:, None] & (at < D)[None, :]
        keys, values = tl.load(state, mask=old, other=0), tl.load(state + KEY_HEADS * PAGE * D, mask=old, other=0)
    if CHAINED:
        gdc_wait()
        gdc_launch_dependents()
    if split < used:
        query = tl.load(queries + place, mask=inside, other=0).to(TYPE)
        if SPLIT_PAGES == 1:
            new = (seen >= start)[:, None] & (seen < reach)[:, None] & (at < D)[None, :]
            keys = tl.where(new, tl.load(state, mask=new, other=0), keys).to(TYPE)
            values = tl.where(new, tl.load(state + KEY_HEADS * PAGE * D, mask=new, other=0), values).to(TYPE)
            top, total = tl.full([QR], -float("inf"), tl.float32), tl.zeros([QR], tl.float32)
            found = tl.zeros([QR, BD], tl.float32)
            top, total, found = add_page(query, keys, values, seen, limit, top, total, found, scale, TYPE)
        else:
            begin, stop = split * SPLIT_PAGES, tl.minimum((split + 1) * SPLIT_PAGES, all_pages)
            top, total, found = walk_pages(
                query, pages, table, begin, stop, limit, reach, key, scale, KEY_HEADS, D, BD, PAGE, QR, TYPE, STAGES
            )
        if SPLITS == 1:
            found = found / tl.where(total > 0, total, 1.0)[:, None]
            tl.store(out + place, found.to(out.dtype.element_ty), mask=inside)
        else:
            base = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
            before = leave_part(parts, sums, arrived, base, split, top, total, found, SPLITS, QR, D, BD)
            if before == used - 1:
                _put_merged(parts, sums, arrived, out, base, used, tl.program_id(1) * QR, lane, key, W, GROUP,
                            KEY_HEADS, D, BD, QR, SPLITS, AT_ONCE, MERGED)  # fmt: skip
