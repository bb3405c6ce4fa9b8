"""Triton kernels that pair residual streams with the token that follows them, and keep a draft layer's last streams.

A pair's input row holds, stream by stream, the normed stream and beside it the normed embedding: one matrix takes both.
"""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def _beside(
    kept: tl.tensor, fresh: tl.tensor, from_kept: tl.tensor, token: tl.tensor, live: tl.tensor, table: tl.tensor,
    embedding_norm: tl.tensor, hidden_norm: tl.tensor, out: tl.tensor, epsilon: tl.constexpr, V: tl.constexpr,
    S: tl.constexpr, H: tl.constexpr, BH: tl.constexpr,
) -> None:  # fmt: skip
    """`out` [S, 2 * H] of the streams [S * H] at `kept` or at `fresh`: one norm over all of them together."""
    at = tl.arange(0, BH)
    here = (at < H) & live
    known = here & (token >= 0) & (token < V)
    embedded = tl.load(table + tl.where(known, token, 0) * H + at, mask=known, other=0).to(tl.float32)
    embedded *= tl.rsqrt(tl.sum(embedded * embedded, 0) / H + epsilon)
    embedded *= 1.0 + tl.load(embedding_norm + at, mask=here, other=0)
    squares = tl.zeros([BH], tl.float32)
    for stream in tl.static_range(S):
        value = tl.load(kept + stream * H + at, mask=here & from_kept, other=0).to(tl.float32)
        value += tl.load(fresh + stream * H + at, mask=here & (from_kept == 0), other=0)
        squares += value * value
    divisor = tl.rsqrt(tl.sum(squares, 0) / (S * H) + epsilon)
    for stream in tl.static_range(S):
        value = tl.load(kept + stream * H + at, mask=here & from_kept, other=0).to(tl.float32)
        value += tl.load(fresh + stream * H + at, mask=here & (from_kept == 0), other=0)
        value *= divisor * (1.0 + tl.load(hidden_norm + stream * H + at, mask=here, other=0))
        tl.store(out + stream * 2 * H + at, value.to(out.dtype.element_ty), mask=at < H)
        tl.store(out + (stream * 2 + 1) * H + at, embedded.to(out.dtype.element_ty), mask=at < H)


@triton.jit
def _place(
    tables: tl.tensor, positions: tl.tensor, places: tl.tensor, lane: tl.tensor, program: tl.tensor,
    position: tl.tensor, live: tl.tensor, LANE_PAGES: tl.tensor, PAGE: tl.constexpr,
) -> None:  # fmt: skip
    """A pair lies one place behind its position: it depends on the token there, which may be another's page's."""
    stored = position + 1
    live = live & (position >= 0) & (stored < LANE_PAGES * PAGE)
    page = tl.load(tables + lane * LANE_PAGES + stored // PAGE, mask=live, other=0)
    tl.store(positions + program, tl.where(live, position, -1).to(tl.int32))
    tl.store(places + program, tl.where(live & (page >= 0), page * PAGE + stored % PAGE, -1).to(tl.int32))


@triton.jit(do_not_specialize=["LANE_PAGES", "W"])
def committed_pairs(
    tails: tl.tensor, vectors: tl.tensor, tokens: tl.tensor, slots: tl.tensor, first: tl.tensor, kept: tl.tensor,
    tables: tl.tensor, table: tl.tensor, embedding_norm: tl.tensor, hidden_norm: tl.tensor, out: tl.tensor,
    pair_slots: tl.tensor, pair_first: tl.tensor, pair_counts: tl.tensor, positions: tl.tensor, places: tl.tensor,
    LANE_PAGES: tl.tensor, W: tl.tensor, epsilon: tl.constexpr, V: tl.constexpr, S: tl.constexpr, H: tl.constexpr,
    BH: tl.constexpr, PAGE: tl.constexpr, CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """One pair of a lane's first `kept` rows a program; the first one also keeps the last row's streams.

    Row i pairs the streams before it, the slot's tail for row 0, with its own token. Nothing stands before position 0,
    so that such a lane's pairs begin with row 1.
    """
    if CHAINED:
        gdc_wait()
        gdc_launch_dependents()
    program = tl.program_id(0)
    lane, index = program // W, program % W
    slot, start, count = tl.load(slots + lane), tl.load(first + lane), tl.load(kept + lane)
    count = tl.where(slot >= 0, count, 0)
    skipped = (start == 0).to(tl.int64)
    source = index + skipped
    live = source < count
    tail = tails + tl.maximum(slot, 0) * (S * H)
    before = vectors + (lane * W + source - 1).to(tl.int64) * (S * H)
    token = tl.load(tokens + lane * W + source, mask=live, other=0)
    _beside(
        tail, before, live & (source == 0), token, live, table, embedding_norm, hidden_norm,
        out + program.to(tl.int64) * (2 * S * H), epsilon, V, S, H, BH,
    )  # fmt: skip
    _place(tables, positions, places, lane, program, start - 1 + source, live, LANE_PAGES, PAGE)
    if index == 0:
        pairs = tl.maximum(count - skipped, 0)
        tl.store(pair_slots + lane, tl.where(pairs > 0, slot, -1))
        tl.store(pair_first + lane, start - 1 + skipped)
        tl.store(pair_counts + lane, pairs)
        tl.debug_barrier()
        last = vectors + (lane * W + tl.maximum(count - 1, 0)).to(tl.int64) * (S * H)
        at = tl.arange(0, BH)
        for stream in tl.static_range(S):
            here = (at < H) & (count > 0)
            value = tl.load(last + stream * H + at, mask=here, other=0)
            tl.store(tail + stream * H + at, value.to(tails.dtype.element_ty), mask=here)


@triton.jit(do_not_specialize=["LANE_PAGES", "DEPTH", "DEPTHS"])
def proposed_pairs(
    tails: tl.tensor, streams: tl.tensor, tokens: tl.tensor, slots: tl.tensor, consumed: tl.tensor, limits: tl.tensor,
    draws: tl.tensor, tables: tl.tensor, table: tl.tensor, embedding_norm: tl.tensor, hidden_norm: tl.tensor,
    out: tl.tensor, pair_slots: tl.tensor, pair_first: tl.tensor, pair_counts: tl.tensor, positions: tl.tensor,
    places: tl.tensor, asked: tl.tensor, own_draws: tl.tensor, LANE_PAGES: tl.tensor, DEPTH: tl.tensor,
    DEPTHS: tl.tensor, epsilon: tl.constexpr, V: tl.constexpr, S: tl.constexpr, H: tl.constexpr, BH: tl.constexpr,
    PAGE: tl.constexpr, CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """One lane a program: its tail with the pending token, or at a further `DEPTH` the layer's streams with a draft.

    Lanes that ask for no draft at this depth are masked. Each gets its draw of `draws` [B, DEPTHS] for this depth.
    """
    if CHAINED:
        gdc_wait()
        gdc_launch_dependents()
    lane = tl.program_id(0)
    slot, position = tl.load(slots + lane), tl.load(consumed + lane) - 1 + DEPTH
    live = (slot >= 0) & (tl.load(limits + lane) > DEPTH) & (position >= 0)
    tail = tails + tl.maximum(slot, 0) * (S * H)
    _beside(
        tail, streams + lane.to(tl.int64) * (S * H), live & (DEPTH == 0), tl.load(tokens + lane), live, table,
        embedding_norm, hidden_norm, out + lane.to(tl.int64) * (2 * S * H), epsilon, V, S, H, BH,
    )  # fmt: skip
    _place(tables, positions, places, lane, lane, position, live, LANE_PAGES, PAGE)
    tl.store(pair_slots + lane, tl.where(live, slot, -1))
    tl.store(pair_first + lane, position)
    tl.store(pair_counts + lane, live.to(tl.int64))
    tl.store(asked + lane, live.to(tl.int8))
    tl.store(own_draws + lane, tl.load(draws + lane * DEPTHS + DEPTH))


@triton.jit(do_not_specialize=["W", "FIRST_ROW"])
def export_prefix(
    tails: tl.tensor, ring: tl.tensor, tags: tl.tensor, vectors: tl.tensor, slots: tl.tensor, first: tl.tensor,
    kept: tl.tensor, targets: tl.tensor, W: tl.tensor, FIRST_ROW: tl.tensor, N: tl.constexpr, BLOCK: tl.constexpr,
    CAPACITY: tl.constexpr, D: tl.constexpr, BC: tl.constexpr, BD: tl.constexpr, CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """Row FIRST_ROW + `targets`[b] becomes slot b's as a prefix of first + kept tokens left it; -1: nothing.

    `tails` [rows, N] take vector kept - 1 of the lane, `ring` [rows, CAPACITY, D] the slot's; that prefix has a pair
    less than tokens, and tags from there on are forgotten.
    """
    if CHAINED:
        gdc_wait()
        gdc_launch_dependents()
    lane, part = tl.program_id(0), tl.program_id(1)
    slot, target, count = tl.load(slots + lane), tl.load(targets + lane), tl.load(kept + lane)
    live = (slot >= 0) & (target >= 0) & (count > 0)
    goal = tl.where(live, FIRST_ROW + target, 0).to(tl.int64)
    at = part * BLOCK + tl.arange(0, BLOCK)
    here = (at < N) & live
    row = (lane * W + tl.maximum(count - 1, 0)).to(tl.int64)
    value = tl.load(vectors + row * N + at, mask=here, other=0)
    tl.store(tails + goal * N + at, value.to(tails.dtype.element_ty), mask=here)
    if part == 0:
        index, element = tl.arange(0, BC), tl.arange(0, BD)
        held = (index < CAPACITY) & live
        source, place = tl.maximum(slot, 0) * CAPACITY + index, goal * CAPACITY + index
        tag = tl.load(tags + source, mask=held, other=-1)
        tl.store(tags + place, tl.where(tag < tl.load(first + lane) + count - 1, tag, -1), mask=held)
        inside = held[:, None] & (element < D)[None, :]
        keys = tl.load(ring + source[:, None] * D + element[None, :], mask=inside, other=0)
        tl.store(ring + place[:, None] * D + element[None, :], keys, mask=inside)
