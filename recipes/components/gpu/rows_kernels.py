"""Triton kernels that act on each row by itself: embedding and placing, norms, rotation into pages, gates.

The first one opens a forward; the others serve many rows at once, where linear layers are left to cuBLAS.
"""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def open_rows(
    tokens: tl.tensor, slots: tl.tensor, first: tl.tensor, counts: tl.tensor, tables: tl.tensor, table: tl.tensor,
    stream: tl.tensor, positions: tl.tensor, places: tl.tensor, lengths: tl.tensor, LANE_PAGES: tl.tensor,
    VOCABULARY: tl.constexpr, W: tl.tensor, H: tl.constexpr, BH: tl.constexpr, PAGE: tl.constexpr,
    STREAMS: tl.constexpr, CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """One row a program: its embedding into the streams, its position and the place of its state, or -1 if masked."""
    if CHAINED:
        gdc_wait()
        gdc_launch_dependents()
    row = tl.program_id(0)
    lane, index = row // W, row % W
    start, count = tl.load(first + lane), tl.load(counts + lane)
    active = tl.load(slots + lane) >= 0
    position = start + index
    live = active & (index < count) & (position >= 0) & (position < LANE_PAGES * PAGE)
    page = tl.load(tables + lane * LANE_PAGES + position // PAGE, mask=live, other=0)
    tl.store(positions + row, tl.where(live, position, -1).to(tl.int32))
    tl.store(places + row, tl.where(live & (page >= 0), page * PAGE + position % PAGE, -1).to(tl.int32))
    tl.store(lengths + lane, tl.where(active & (count > 0), start + count, 0).to(tl.int32), mask=index == 0)
    token = tl.load(tokens + row)
    known = live & (token >= 0) & (token < VOCABULARY)
    at = tl.arange(0, BH)
    value = tl.load(table + tl.where(known, token, 0) * H + at, mask=(at < H) & known, other=0)
    for copy in tl.static_range(STREAMS):
        tl.store(stream + (row.to(tl.int64) * STREAMS + copy) * H + at, value.to(tl.float32), mask=at < H)


@triton.jit
def norm_rows(
    stream: tl.tensor, change: tl.tensor, scale: tl.tensor, gain: tl.tensor, out: tl.tensor, epsilon: tl.constexpr,
    H: tl.constexpr, BH: tl.constexpr, CHANGED: tl.constexpr, SCALED: tl.constexpr, CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """One row a program: adds its `change`, scaled for each column, to the stream, then norm of the sum."""
    if CHAINED:
        gdc_wait()
        gdc_launch_dependents()
    at = tl.arange(0, BH)
    here = at < H
    row = tl.program_id(0).to(tl.int64) * H + at
    value = tl.load(stream + row, mask=here, other=0)
    if CHANGED:
        added = tl.load(change + row, mask=here, other=0).to(tl.float32)
        if SCALED:
            added *= tl.load(scale + at, mask=here, other=0)
        value += added
        tl.store(stream + row, value, mask=here)
    divisor = tl.rsqrt(tl.sum(value * value, 0) / H + epsilon)
    normed = value * divisor * tl.load(gain + at, mask=here, other=0).to(tl.float32)
    tl.store(out + row, normed.to(out.dtype.element_ty), mask=here)


@triton.jit
def turn_and_store(
    projected: tl.tensor, scale: tl.tensor, turns: tl.tensor, positions: tl.tensor, places: tl.tensor,
    queries: tl.tensor, pages: tl.tensor, QUERY_HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, D: tl.constexpr,
    BD: tl.constexpr, PAGE: tl.constexpr, SCALED: tl.constexpr, CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """One row and head a program: rotation of queries and keys, keys and values of placed rows into their pages."""
    if CHAINED:
        gdc_wait()
        gdc_launch_dependents()
    row, head = tl.program_id(0), tl.program_id(1)
    heads: tl.constexpr = QUERY_HEADS + 2 * KEY_HEADS
    within = 2 * tl.arange(0, BD)
    here = within < D
    at = (row.to(tl.int64) * heads + head) * D + within
    a = tl.load(projected + at, mask=here, other=0).to(tl.float32)
    b = tl.load(projected + at + 1, mask=here, other=0).to(tl.float32)
    if SCALED:
        a *= tl.load(scale + head * D + within, mask=here, other=0)
        b *= tl.load(scale + head * D + within + 1, mask=here, other=0)
    position, place = tl.load(positions + row), tl.load(places + row)
    turning = here & (position >= 0) & (head < QUERY_HEADS + KEY_HEADS)
    cosine = tl.load(turns + position * D + within, mask=turning, other=1)
    sine = tl.load(turns + position * D + within + 1, mask=turning, other=0)
    x, y = a * cosine - b * sine, a * sine + b * cosine
    if head < QUERY_HEADS:
        at = (row.to(tl.int64) * QUERY_HEADS + head) * D + within
        tl.store(queries + at, x.to(queries.dtype.element_ty), mask=here)
        tl.store(queries + at + 1, y.to(queries.dtype.element_ty), mask=here)
    else:
        plane = (place // PAGE).to(tl.int64) * (2 * KEY_HEADS) + head - QUERY_HEADS
        at = (plane * PAGE + place % PAGE) * D + within
        tl.store(pages + at, x.to(pages.dtype.element_ty), mask=here & (place >= 0))
        tl.store(pages + at + 1, y.to(pages.dtype.element_ty), mask=here & (place >= 0))


@triton.jit
def gate_rows(
    both: tl.tensor, scale: tl.tensor, out: tl.tensor, N: tl.constexpr, BN: tl.constexpr, SCALED: tl.constexpr,
    CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """`out` [R, N] = silu(gate) * up of `both` [R, 2 * N], scaled for each column before."""
    if CHAINED:
        gdc_wait()
        gdc_launch_dependents()
    at = tl.program_id(1) * BN + tl.arange(0, BN)
    here = at < N
    row = tl.program_id(0).to(tl.int64)
    gate = tl.load(both + row * 2 * N + at, mask=here, other=0).to(tl.float32)
    up = tl.load(both + row * 2 * N + N + at, mask=here, other=0).to(tl.float32)
    if SCALED:
        gate *= tl.load(scale + at, mask=here, other=0)
        up *= tl.load(scale + N + at, mask=here, other=0)
    tl.store(out + row * N + at, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), mask=here)
