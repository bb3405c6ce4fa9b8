"""Triton kernels of a mixture of experts over NVFP4 weights, for few rows: each chosen expert's bytes are read once.

Activations are not rounded to four bits (W4A16). A program holds outputs of one expert for all rows that chose it;
a row's sums are always taken in one order and its experts added in the order of their rank, so that a result depends
neither on neighbours nor on which programs were quick.
"""

# mypy: disable-error-code="untyped-decorator, assignment, var-annotated, no-any-return"
from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from recipes.components.gpu.mxfp8_linear_kernels import feed_streams, take_fp8, take_streams
from recipes.components.gpu.packed_kernels import (
    FP8_UNIT,
    fp4_product,
    fp4_scales,
    fp4_whole,
    fp8_product,
    fp8_scales,
    still_packed,
    take_inputs,
    turned,
)


@triton.jit
def _choose(
    scores: tl.tensor, weights: tl.tensor, chosen: tl.tensor, E: tl.constexpr, BE: tl.constexpr, TOP: tl.constexpr,
    BT: tl.constexpr,
) -> None:  # fmt: skip
    """The `TOP` best of softmax(`scores` [E]), renormalised; equal ones go to the lower expert."""
    at, ranks = tl.arange(0, BE), tl.arange(0, BT)
    score = tl.load(scores + at, mask=at < E, other=-float("inf")).to(tl.float32)
    # Positive floats are in the order of their bits, and integers are compared across a warp in one instruction.
    left = tl.exp(score - tl.max(score, 0)).to(tl.int32, bitcast=True)
    left = tl.where(at < E, left, -1)
    best, found = tl.zeros([BT], tl.float32), tl.zeros([BT], tl.int32)
    for rank in tl.static_range(TOP):
        highest = tl.max(left, 0)
        expert = tl.min(tl.where(left == highest, at, BE), 0)
        left = tl.where(at == expert, -1, left)
        best = tl.where(ranks == rank, highest.to(tl.float32, bitcast=True), best)
        found = tl.where(ranks == rank, expert, found)
    tl.store(weights + ranks, best / tl.sum(best, 0), mask=ranks < TOP)
    tl.store(chosen + ranks, found, mask=ranks < TOP)


@triton.jit
def route(
    scores: tl.tensor, weights: tl.tensor, chosen: tl.tensor, x: tl.tensor, out: tl.tensor, STRIDE: tl.constexpr,
    E: tl.constexpr, BE: tl.constexpr, TOP: tl.constexpr, BT: tl.constexpr, K: tl.constexpr, BK: tl.constexpr,
    CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """One row a program: its choice by scores [R, E]. A second program, if there is one, stores the row `turned`."""
    if CHAINED:
        gdc_wait()
        gdc_launch_dependents()
    row = tl.program_id(0)
    if tl.program_id(1) == 0:
        _choose(scores + row * STRIDE, weights + row * TOP, chosen + row * TOP, E, BE, TOP, BT)
    else:
        line = row.to(tl.int64) * K
        for start in range(0, K, BK):
            at = start + tl.arange(0, BK)
            value = tl.load(x + line + at, mask=at < K, other=0)
            value = tl.permute(tl.reshape(value, (BK // 32, 2, 2, 2, 4)), (0, 4, 2, 1, 3))
            value = tl.reshape(value, (BK,))
            tl.store(out + line + at, value, mask=at < K)


@triton.jit
def _take_fp4(
    packed: tl.tensor, scales: tl.tensor, line: tl.tensor, scale_line: tl.tensor, chunk: tl.tensor, K: tl.constexpr,
    S: tl.constexpr, T: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:  # fmt: skip
    """Words [8, S, T, 16] and pairs of scale bytes [4, 8, S, T] of a chunk [S]; lines [8, S, T, 1] and [1, 8, S, T].

    A negative line is outside.
    """
    word = tl.reshape(chunk, (1, S, 1, 1)) * 16 + tl.arange(0, 16)[None, None, None, :]
    at = packed.to(tl.pointer_type(tl.int32), bitcast=True) + line.to(tl.int64) * (K // 8) + word
    words = tl.load(at, mask=(line >= 0) & (word < K // 8), other=0)
    # Two bytes a thread: more would come in another arrangement.
    pair = tl.max_contiguous(tl.arange(0, 4)[:, None, None, None], [1, 1, 1, 1]) + tl.reshape(chunk, (1, 1, S, 1)) * 4
    if K % 32 == 0:
        at = scales.to(tl.pointer_type(tl.uint16), bitcast=True) + scale_line.to(tl.int64) * (K // 32) + pair
        pairs = tl.load(at, mask=(scale_line >= 0) & (pair < K // 32), other=0).to(tl.int32)
    else:
        at = scales + scale_line.to(tl.int64) * (K // 16) + 2 * pair
        pairs = tl.load(at, mask=(scale_line >= 0) & (2 * pair < K // 16), other=0).to(tl.int32)
        high = tl.load(at + 1, mask=(scale_line >= 0) & (2 * pair + 1 < K // 16), other=0).to(tl.int32)
        pairs = pairs | (high << 8)
    return words, pairs


@triton.jit
def _picks(
    chosen: tl.tensor, own: tl.tensor, expert: tl.tensor, R: tl.tensor, TOP: tl.constexpr, BT: tl.constexpr,
    BR: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """[BR], or [8] for one row: the pick (row * TOP + rank) by which each row chose this program's expert, or -1."""
    if BR == 1:
        picks = tl.where(tl.arange(0, 8) == 0, own, -1)
    else:
        row, rank = tl.arange(0, BR)[:, None], tl.arange(0, BT)[None, :]
        pick = row * TOP + rank
        there = tl.load(chosen + pick, mask=(row < R) & (rank < TOP), other=-1)
        picks = tl.max(tl.where(there == expert, pick, -1), 1)
    return picks


@triton.jit
def _serves(picks: tl.tensor, own: tl.tensor, TOP: tl.constexpr, BR: tl.constexpr) -> tl.tensor:
    """Whether this program's pick is the first of its expert."""
    first = own if BR == 1 else tl.min(tl.where(picks >= 0, picks, BR * TOP))
    return first == own


@triton.jit
def _eight(picks: tl.tensor, start: tl.tensor, BR: tl.constexpr) -> tl.tensor:
    """[8]: picks `start` to `start` + 7 of those there are; eight rows keep their places."""
    if BR <= 8:
        found = picks
    else:
        place = tl.cumsum((picks >= 0).to(tl.int32), 0) - 1
        here = (picks >= 0)[None, :] & (place[None, :] == start + tl.arange(0, 8)[:, None])
        found = tl.max(tl.where(here, picks[None, :], -1), 1)
    return found


@triton.jit
def _take_turn(
    packed: tl.tensor, scales: tl.tensor, line: tl.tensor, scale_line: tl.tensor, turn: tl.constexpr, K: tl.constexpr,
    S: tl.constexpr, T: tl.constexpr, SHARED: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:  # fmt: skip
    """A warp's chunk of a turn; with `SHARED` the warps share the inputs, without each goes through all of them."""
    chunk = tl.arange(0, S) + turn * S if SHARED else tl.zeros([S], tl.int32) + turn
    return _take_fp4(packed, scales, line, scale_line, chunk, K, S, T)


@triton.jit
def _take_first(
    packed: tl.tensor, scales: tl.tensor, line: tl.tensor, scale_line: tl.tensor, K: tl.constexpr, S: tl.constexpr,
    T: tl.constexpr, SHARED: tl.constexpr, AHEAD: tl.constexpr,
) -> tl.tuple:  # fmt: skip
    """The chunks of the first turns, asked for at once."""
    held = ()
    for turn in tl.static_range(AHEAD):
        held += (_take_turn(packed, scales, line, scale_line, turn, K, S, T, SHARED),)
    return held


@triton.jit
def _product(
    x: tl.tensor, row: tl.tensor, held: tl.tuple, packed: tl.tensor, scales: tl.tensor, line: tl.tensor,
    scale_line: tl.tensor, K: tl.constexpr, S: tl.constexpr, T: tl.constexpr, SHARED: tl.constexpr,
    TURNS: tl.constexpr, AHEAD: tl.constexpr, AGAIN: tl.constexpr, TURNED: tl.constexpr, TYPE: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """float32 [S, 8 * T, 8] before `fp4_whole`: rows [8] of `x` through these lines, of which `held` are the first.

    With `SHARED` the warps' parts are still to be added; without, each has outputs of its own. `AGAIN`: in a loop.
    """
    lines = tl.reshape(row, (8, 1, 1, 1, 1)).to(tl.int64) * K
    whole: tl.constexpr = 128 * TURNS * (S if SHARED else 1) == K
    found = tl.zeros((S, 8 * T, 8), tl.float32)
    for turn in tl.static_range(TURNS):
        if turn + AHEAD < TURNS:
            held += (_take_turn(packed, scales, line, scale_line, turn + AHEAD, K, S, T, SHARED),)
        chunk = tl.arange(0, S) + turn * S if SHARED else tl.zeros([S], tl.int32) + turn
        piece = take_inputs(x, lines, tl.reshape(chunk, (1, S, 1, 1, 1)), K, 1, S, whole)
        words, pairs = held[turn]
        if (tl.float32 != TYPE) and AGAIN:
            words = still_packed(words)
        found = fp4_product(piece, words, fp4_scales(pairs, S, T, TYPE), found, S, T, 1, TURNED, TYPE)
    return found


@triton.jit
def experts_in(
    x: tl.tensor, packed: tl.tensor, scales: tl.tensor, singles: tl.tensor, chosen: tl.tensor, out: tl.tensor,
    R: tl.tensor, TOP: tl.constexpr, BT: tl.constexpr, BR: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    S: tl.constexpr, T: tl.constexpr, TURNS: tl.constexpr, AHEAD: tl.constexpr, TURNED: tl.constexpr,
    TYPE: tl.constexpr, EARLY: tl.constexpr, CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """`out` [R, TOP, N] = silu(gate) * up of each row's experts; matrices [E, 2 * N, ...], `singles` [E, 2].

    The program of the first row that chose an expert serves all that did, eight at a time; the others do nothing.
    It is `turned` if that goes up evenly. `TURNED`: so is `x`. `EARLY`: rows and routing came before the kernel before,
    so weights are asked for before the wait.
    """
    if CHAINED and not EARLY:
        gdc_wait()
        gdc_launch_dependents()
    pick = tl.program_id(1)
    expert = tl.load(chosen + pick)
    picks = _picks(chosen, pick, expert, R, TOP, BT, BR)
    if _serves(picks, pick, TOP, BR):
        times, eight = tl.arange(0, T), tl.arange(0, 8)
        column = tl.program_id(0) * (4 * T) + (times // 2) * 8
        half = expert * (2 * N) + (times % 2) * N
        here = column[None, None, :, None] + eight[:, None, None, None]
        line = tl.where(here < N, half[None, None, :, None] + here, -1)
        there = column[None, None, None, :] + eight[None, :, None, None]
        scale_line = tl.where(there < N, half[None, None, None, :] + there, -1)
        held = _take_first(packed, scales, line, scale_line, K, S, T, True, AHEAD)
        single, second = tl.load(singles + 2 * expert), tl.load(singles + 2 * expert + 1)
        output = tl.program_id(0) * (4 * T) + tl.arange(0, 4 * T)[:, None]
        if CHAINED and EARLY:
            gdc_wait()
            gdc_launch_dependents()
        for start in range(0, tl.sum((picks >= 0).to(tl.int32), 0) if BR > 8 else 1, 8):
            own = _eight(picks, start, BR)
            # Columns of the matrix units that no row has take the first one's.
            row = tl.where(own >= 0, own, pick) // TOP
            found = _product(
                x, row, held, packed, scales, line, scale_line, K, S, T, True, TURNS, AHEAD, BR > 8, TURNED,
                TYPE,
            )  # fmt: skip
            found = tl.sum(found, 0)
            gate, up = tl.split(tl.permute(tl.reshape(found, (T // 2, 2, 8, 8)), (0, 2, 3, 1)))
            gate, up = gate * fp4_whole(single, TYPE), up * fp4_whole(second, TYPE)
            inner = tl.reshape(gate * tl.sigmoid(gate) * up, (4 * T, 8))
            at = out + own.to(tl.int64)[None, :] * N + (turned(output) if N % 32 == 0 else output)
            tl.store(at, inner.to(out.dtype.element_ty), mask=(own >= 0)[None, :] & (output < N))
    elif CHAINED and EARLY:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def experts_out(
    inner: tl.tensor, packed: tl.tensor, scales: tl.tensor, singles: tl.tensor, chosen: tl.tensor, out: tl.tensor,
    R: tl.tensor, TOP: tl.constexpr, BT: tl.constexpr, BR: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    S: tl.constexpr, T: tl.constexpr, TURNS: tl.constexpr, AHEAD: tl.constexpr, TYPE: tl.constexpr,
    CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """`out` float32 [R, TOP, N]: each expert's output of its own `inner` [R, TOP, K], as `experts_in` made it."""
    pick = tl.program_id(1)
    # Routing came before the kernel before: what was chosen stands, and its weights may be asked for.
    expert = tl.load(chosen + pick)
    picks = _picks(chosen, pick, expert, R, TOP, BT, BR)
    if _serves(picks, pick, TOP, BR):
        base = tl.program_id(0) * (8 * S * T)
        slice, times, eight = tl.arange(0, S) * (8 * T), tl.arange(0, T) * 8, tl.arange(0, 8)
        here = base + slice[None, :, None, None] + times[None, None, :, None] + eight[:, None, None, None]
        line = tl.where(here < N, expert * N + here, -1)
        there = base + slice[None, None, :, None] + times[None, None, None, :] + eight[None, :, None, None]
        scale_line = tl.where(there < N, expert * N + there, -1)
        held = _take_first(packed, scales, line, scale_line, K, S, T, False, AHEAD)
        single = tl.load(singles + expert)
        output = base + tl.arange(0, 8 * S * T)[:, None]
        if CHAINED:
            gdc_wait()
            gdc_launch_dependents()
        for start in range(0, tl.sum((picks >= 0).to(tl.int32), 0) if BR > 8 else 1, 8):
            own = _eight(picks, start, BR)
            found = _product(
                inner, tl.where(own >= 0, own, pick), held, packed, scales, line, scale_line, K, S, T, False, TURNS,
                AHEAD, BR > 8, K % 32 == 0, TYPE,
            )  # fmt: skip
            found = tl.reshape(found, (8 * S * T, 8))
            at = out + own.to(tl.int64)[None, :] * N + output
            tl.store(at, found * fp4_whole(single, TYPE), mask=(own >= 0)[None, :] & (output < N))
    elif CHAINED:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def add_experts(
    parts: tl.tensor, weights: tl.tensor, shared: tl.tensor, gate: tl.tensor, out: tl.tensor, GATE_STRIDE: tl.constexpr,
    TOP: tl.constexpr, BT: tl.constexpr, N: tl.constexpr, BN: tl.constexpr, CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """`out` [R, N] = sigmoid(gate [R]) * shared [R, N] + weighted sum of `parts` [R, TOP, N], always in one order."""
    row = tl.program_id(0)
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    rank = tl.arange(0, BT)
    if CHAINED:
        gdc_wait()
        gdc_launch_dependents()
    at = row.to(tl.int64) * N + column
    weight = tl.load(weights + row * TOP + rank, mask=rank < TOP, other=0)
    here = (rank < TOP)[:, None] & (column < N)[None, :]
    part = tl.load(parts + (row * TOP + rank).to(tl.int64)[:, None] * N + column[None, :], mask=here, other=0)
    total = tl.sigmoid(tl.load(gate + row * GATE_STRIDE).to(tl.float32))
    total = total * tl.load(shared + at, mask=column < N, other=0).to(tl.float32)
    total += tl.sum(part * weight[:, None], 0)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=column < N)


@triton.jit
def finish_experts(
    parts: tl.tensor, weights: tl.tensor, inner: tl.tensor, values: tl.tensor, scales: tl.tensor, gate: tl.tensor,
    state: tl.tensor, strengths: tl.tensor, R: tl.tensor, STRIDE: tl.constexpr, TOP: tl.constexpr, N: tl.constexpr,
    K: tl.constexpr, STREAMS: tl.constexpr, S: tl.constexpr, T: tl.constexpr, TURNS: tl.constexpr,
    TYPE: tl.constexpr, CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """What the experts of a row say goes into its streams `state` [R, STREAMS * N], by its strengths [R, STREAMS].

    It is the weighted sum of `parts` [R, TOP, N], in order of rank, and sigmoid(gate) times the shared expert's output:
    its `inner` [R, K] through an MXFP8 matrix, which is asked for before the wait. 8 * T outputs of eight rows a
    program; gates lie `STRIDE` apart.
    """
    first = tl.program_id(0) * (8 * T)
    slice = tl.arange(0, S)
    held = ()
    for turn in tl.static_range(TURNS):
        held += (take_fp8(values, scales, first, slice + turn * S, N, K, S, T, 0),)
    if CHAINED:
        gdc_wait()
        gdc_launch_dependents()
    row = tl.program_id(1) * 8 + tl.arange(0, 8)
    column = first + tl.arange(0, 8 * T)
    streams = take_streams(state, strengths, row, column, R, N, STREAMS)
    lines = tl.reshape(tl.minimum(row, R - 1), (8, 1, 1, 1, 1)).to(tl.int64) * K
    found = tl.zeros((S, 8 * T, 8), tl.float32)
    for turn in tl.static_range(TURNS):
        chunk = tl.reshape(slice + turn * S, (1, S, 1, 1, 1))
        piece = take_inputs(inner, lines, chunk, K, 1, S, K == 128 * S * TURNS)
        words, bytes = held[turn]
        found = fp8_product(piece, words, fp8_scales(bytes, S, T, TYPE), found, S, T, 1, TYPE)
    total = tl.sum(found, 0)
    if tl.float32 != TYPE:
        total *= FP8_UNIT
    total *= tl.sigmoid(tl.load(gate + row * STRIDE, mask=row < R, other=0))[None, :]
    here = (row < R)[None, :] & (column < N)[:, None]
    for rank in tl.static_range(TOP):
        pick = row * TOP + rank
        at = parts + pick.to(tl.int64)[None, :] * N + column[:, None]
        total += tl.load(at, mask=here, other=0) * tl.load(weights + pick, mask=row < R, other=0)[None, :]
    feed_streams(state, streams, total, row, column, R, N, STREAMS)
