"""Triton kernels of gated hyperconnections: norm, two thin matrices and the sum over streams; and a block's injection.

Few rows take two kernels, bound by the bytes of the matrices, which are asked for before the wait (launch.py has the
rule) and go to the matrix units as the loads leave them: rows are the narrow side. Norms divide last: sums of squares
and products are taken at once. Many rows leave the matrices to cuBLAS.
"""

# mypy: disable-error-code="untyped-decorator,assignment,no-any-return"
from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

CHUNK = tl.constexpr(64)
"""Inputs of a row that a warp takes at once: 16 for each thread of a group of four, eight at a time."""


@triton.jit
def _take_weights(
    source: tl.tensor, lines: tl.tensor, live: tl.tensor, first: tl.tensor, K: tl.constexpr, TIMES: tl.constexpr
) -> tl.tensor:  # fmt: skip
    """[8, S, 2, TIMES, 32] of twice eight `live` lines [8, S or 1, 2, 1, 1] (elements), from inputs `first` [S] on."""
    at = tl.arange(0, TIMES)[None, None, None, :, None] * 32 + tl.arange(0, 32)[None, None, None, None, :]
    at += first[None, :, None, None, None]
    return tl.load(source + lines + at, mask=live & (at < K), other=0)


@triton.jit
def _weights(taken: tl.tensor, S: tl.constexpr, TIMES: tl.constexpr, TYPE: tl.constexpr) -> tl.tensor:
    """[S, 16, TIMES * 32] of `_take_weights`: no value crosses threads on its way to the matrix units."""
    split = tl.reshape(taken.to(TYPE), (8, S, 2, TIMES, 4, 2, 2, 2))
    return tl.reshape(tl.permute(split, (1, 2, 0, 3, 5, 6, 4, 7)), (S, 16, TIMES * 32))


@triton.jit
def _in_order(WIDTH: tl.constexpr) -> tl.tensor:
    """[WIDTH]: the inputs in the order in which `_weights` has them."""
    at = tl.arange(0, WIDTH)
    return at // 32 * 32 + (at // 2) % 4 * 8 + (at // 16) % 2 * 4 + (at // 8) % 2 * 2 + at % 2


@triton.jit
def _take_rows(
    source: tl.tensor, lines: tl.tensor, live: tl.tensor, first: tl.tensor, K: tl.constexpr, S: tl.constexpr
) -> tl.tensor:  # fmt: skip
    """[8, S, 2, 2, 16] of eight lines [8, 1, 1, 1, 1] in float32, four values at a time."""
    each = tl.arange(0, 16)[None, None, None, None, :]
    at = tl.arange(0, 2)[None, None, :, None, None] * 32 + tl.arange(0, 2)[None, None, None, :, None] * 4
    at += (each // 4) * 8 + each % 4 + first[None, :, None, None, None]
    return tl.load(source + lines + at, mask=live & (at < K), other=0).to(tl.float32)


@triton.jit
def _rows(taken: tl.tensor, S: tl.constexpr, TYPE: tl.constexpr) -> tl.tensor:
    """[S, CHUNK, 8] of `_take_rows`: inputs in the order of `_weights`."""
    split = tl.reshape(taken.to(TYPE), (8, S, 2, 2, 4, 2, 2))
    return tl.reshape(tl.permute(split, (1, 2, 3, 5, 4, 6, 0)), (S, CHUNK, 8))


@triton.jit
def lower_streams(
    state: tl.tensor, down: tl.tensor, parts: tl.tensor, sums: tl.tensor, R: tl.tensor, STREAMS: tl.constexpr,
    K: tl.constexpr, N: tl.constexpr, S: tl.constexpr, TURNS: tl.constexpr, TYPE: tl.constexpr, CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """16 outputs, a stream and eight rows a program: products before the stream's norm divides them.

    `parts` float32 [STREAMS, R, N]: a stream of K values of `state` [R, STREAMS * K] times `down` [N, STREAMS * K];
    `sums` float32 [STREAMS, R]: its sum of squares.
    """
    stream = tl.program_id(1)
    slice = tl.arange(0, S) * CHUNK
    line = tl.program_id(0) * 16 + tl.arange(0, 8)[:, None, None, None, None]
    line += 8 * tl.arange(0, 2)[None, None, :, None, None]
    matrix = line * (STREAMS * K) + stream * K
    held = ()
    for turn in tl.static_range(TURNS):
        held = held + (_take_weights(down, matrix, line < N, slice + turn * (S * CHUNK), K, 2),)  # noqa: RUF005
    if CHAINED:
        gdc_wait()
        gdc_launch_dependents()
    row = tl.program_id(2) * 8 + tl.arange(0, 8)[:, None, None, None, None]
    lines = row * (STREAMS * K) + stream * K
    found = tl.zeros((S, 16, 8), tl.float32)
    squares = tl.zeros((8, S, 2, 2, 16), tl.float32)
    for turn in tl.static_range(TURNS):
        piece = _take_rows(state, lines, row < R, slice + turn * (S * CHUNK), K, S)
        squares += piece * piece
        found = tl.dot(_weights(held[turn], S, 2, TYPE), _rows(piece, S, TYPE), found, input_precision="ieee")
    total = tl.sum(found, 0)
    row = tl.program_id(2) * 8 + tl.arange(0, 8)
    output = tl.program_id(0) * 16 + tl.arange(0, 16)
    place = (stream * R + row)[None, :] * N + output[:, None]
    tl.store(parts + place, total, mask=(row < R)[None, :] & (output < N)[:, None])
    if tl.program_id(0) == 0:
        square = tl.sum(tl.sum(tl.reshape(squares, (8, S, 64)), 2), 1)
        tl.store(sums + stream * R + row, square, mask=row < R)


@triton.jit
def _low_rows(
    parts: tl.tensor, sums: tl.tensor, first: tl.tensor, at: tl.tensor, limit: tl.constexpr, R: tl.tensor,
    epsilon: tl.constexpr, STREAMS: tl.constexpr, S: tl.constexpr, H: tl.constexpr, N: tl.constexpr,
    ROWS: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """float32 [ROWS, columns]: the products of all streams, each divided by its norm, over their number.

    All streams are asked for at once: this is what the kernel before left, so everybody waits for it.
    """
    stream, row = tl.arange(0, S)[None, :, None], first + tl.arange(0, ROWS)[:, None, None]
    known = (stream < STREAMS) & (row < R)
    total = tl.load(sums + stream * R + row, mask=known, other=1.0)
    here = known & (at < limit)[None, None, :]
    value = tl.load(parts + (stream * R + row) * N + at[None, None, :], mask=here, other=0)
    return tl.sum(value * tl.rsqrt(total / H + epsilon), 1) / STREAMS


@triton.jit
def _low(
    parts: tl.tensor, sums: tl.tensor, first: tl.tensor, at: tl.tensor, limit: tl.constexpr, R: tl.tensor,
    epsilon: tl.constexpr, STREAMS: tl.constexpr, S: tl.constexpr, H: tl.constexpr, N: tl.constexpr,
    ROWS: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """float32 [8, columns] of `_low_rows`: `ROWS` at once, as many as there are at most."""
    if ROWS == 8:
        found = _low_rows(parts, sums, first, at, limit, R, epsilon, STREAMS, S, H, N, 8)
    else:
        some = _low_rows(parts, sums, first, at, limit, R, epsilon, STREAMS, S, H, N, ROWS)
        found = tl.zeros([8, at.shape[0]], tl.float32)
        which = tl.arange(0, 8)[:, None]
        for row in tl.static_range(ROWS):
            own = tl.sum(tl.where(tl.arange(0, ROWS)[:, None] == row, some, 0.0), 0)
            found = tl.where(which == row, own[None, :], found)
    return found


@triton.jit
def raise_streams(
    state: tl.tensor, norm: tl.tensor, up: tl.tensor, parts: tl.tensor, sums: tl.tensor, mixed: tl.tensor,
    strengths: tl.tensor, R: tl.tensor, epsilon: tl.constexpr, STREAMS: tl.constexpr, S: tl.constexpr,
    H: tl.constexpr, L: tl.constexpr, N: tl.constexpr, ROWS: tl.constexpr, T0: tl.constexpr, T1: tl.constexpr,
    TYPE: tl.constexpr, CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """16 columns of all streams, a warp each, and eight rows a program: a block's input `mixed` [R, H].

    `up` [STREAMS * H, L], whose L inputs are taken in T0 and T1 times 32. Where N is L + STREAMS, the outputs behind L
    give `strengths` float32 [R, STREAMS]: what a block's output is multiplied by on its way into each stream.
    """
    stream = tl.arange(0, S)[None, :, None, None, None]
    column = tl.program_id(0) * 16 + tl.arange(0, 8)[:, None, None, None, None]
    column += 8 * tl.arange(0, 2)[None, None, :, None, None]
    known, lines = (stream < STREAMS) & (column < H), (stream * H + column) * L
    held = _take_weights(up, lines, known, tl.zeros((S,), tl.int32), L, T0)
    held_1 = held
    if T1 > 0:
        held_1 = _take_weights(up, lines, known, tl.zeros((S,), tl.int32) + 32 * T0, L, T1)
    stream = tl.arange(0, S)[:, None, None]
    column = tl.program_id(0) * 16 + tl.arange(0, 16)[None, :, None]
    first = tl.program_id(1) * 8
    row = first + tl.arange(0, 8)
    known = (stream < STREAMS) & (column < H)
    here = known & (row < R)[None, None, :]
    gain = 1.0 + tl.load(norm + stream * H + column, mask=known, other=0).to(tl.float32)
    # The streams are older than the kernel before, which only reads them.
    value = tl.load(state + row[None, None, :] * (STREAMS * H) + stream * H + column, mask=here, other=0)
    if CHAINED:
        gdc_wait()
        gdc_launch_dependents()
    total = tl.load(sums + stream * R + row[None, None, :], mask=here, other=1.0)
    low = _low(parts, sums, first, _in_order(32 * T0), L, R, epsilon, STREAMS, S, H, N, ROWS)
    active = tl.trans((low * tl.sigmoid(low)).to(TYPE))[None, :, :]
    gates = tl.dot(
        _weights(held, S, T0, TYPE), tl.broadcast_to(active, (S, 32 * T0, 8)), tl.zeros((S, 16, 8), tl.float32),
        input_precision="ieee",
    )  # fmt: skip
    if T1 > 0:
        low = _low(parts, sums, first, _in_order(32 * T1) + 32 * T0, L, R, epsilon, STREAMS, S, H, N, ROWS)
        active = tl.trans((low * tl.sigmoid(low)).to(TYPE))[None, :, :]
        gates = tl.dot(
            _weights(held_1, S, T1, TYPE), tl.broadcast_to(active, (S, 32 * T1, 8)), gates, input_precision="ieee"
        )
    normed = value.to(tl.float32) * tl.rsqrt(total / H + epsilon) * gain * tl.sigmoid(gates)
    mean = tl.sum(tl.where(here, normed, 0.0), 0) / STREAMS
    column = tl.program_id(0) * 16 + tl.arange(0, 16)
    place = row[None, :] * H + column[:, None]
    tl.store(mixed + place, mean.to(mixed.dtype.element_ty), mask=(row < R)[None, :] & (column < H)[:, None])
    if (N > L) & (tl.program_id(0) == 0):
        own = tl.arange(0, S)
        raw = _low_rows(parts, sums, first, L + own, N, R, epsilon, STREAMS, S, H, N, 8)
        wanted = (row < R)[:, None] & (own < STREAMS)[None, :]
        tl.store(strengths + row[:, None] * STREAMS + own[None, :], 2.0 * tl.sigmoid(raw), mask=wanted)


@triton.jit
def norm_streams(
    state: tl.tensor, out: tl.tensor, epsilon: tl.constexpr, S: tl.constexpr, H: tl.constexpr, BH: tl.constexpr
) -> None:
    """One row and stream a program: norm without a gain; `state`, `out` [R, S * H]."""
    stream, at = tl.program_id(1), tl.arange(0, BH)
    here = at < H
    line = (tl.program_id(0).to(tl.int64) * S + stream) * H + at
    value = tl.load(state + line, mask=here, other=0).to(tl.float32)
    value *= tl.rsqrt(tl.sum(value * value, 0) / H + epsilon)
    tl.store(out + line, value.to(out.dtype.element_ty), mask=here)


@triton.jit
def gate_low(
    low: tl.tensor, out: tl.tensor, strengths: tl.tensor, LINE: tl.constexpr, S: tl.constexpr, L: tl.constexpr,
    N: tl.constexpr, BN: tl.constexpr,
) -> None:  # fmt: skip
    """One row a program: `out` [R, L] = silu(low [R, N] / S), `strengths` [R, S] of what is behind L.

    Rows of `low` lie `LINE` apart.
    """
    row, at = tl.program_id(0), tl.arange(0, BN)
    value = tl.load(low + row * LINE + at, mask=at < N, other=0).to(tl.float32) / S
    gate = tl.sigmoid(value)
    tl.store(out + row * L + at, (value * gate).to(out.dtype.element_ty), mask=at < L)
    tl.store(strengths + row * S + at - L, 2.0 * gate, mask=(at >= L) & (at < N))


@triton.jit
def mix_streams(
    gates: tl.tensor, normed: tl.tensor, norm: tl.tensor, out: tl.tensor, S: tl.constexpr, H: tl.constexpr,
    BH: tl.constexpr,
) -> None:  # fmt: skip
    """A block's input [R, H]: the mean over streams of sigmoid(gates) * normed, both [R, S * H], with its gain."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BH + tl.arange(0, BH)
    total = tl.zeros([BH], tl.float32)
    for stream in tl.static_range(S):
        line = (row * S + stream) * H + at
        gate = tl.sigmoid(tl.load(gates + line, mask=at < H, other=0).to(tl.float32))
        gate *= 1.0 + tl.load(norm + stream * H + at, mask=at < H, other=0).to(tl.float32)
        total += gate * tl.load(normed + line, mask=at < H, other=0).to(tl.float32)
    tl.store(out + row * H + at, (total / S).to(out.dtype.element_ty), mask=at < H)


@triton.jit
def feed_streams(
    state: tl.tensor, strengths: tl.tensor, output: tl.tensor, S: tl.constexpr, H: tl.constexpr, BH: tl.constexpr
) -> None:
    """Each stream of `state` [R, S * H] += its strength [R, S] * `output` [R, H]."""
    row, stream = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = tl.program_id(2) * BH + tl.arange(0, BH)
    strength = tl.load(strengths + row * S + stream).to(tl.float32)
    line = state + (row * S + stream) * H + at
    value = tl.load(line, mask=at < H, other=0).to(tl.float32)
    value += strength * tl.load(output + row * H + at, mask=at < H, other=0).to(tl.float32)
    tl.store(line, value.to(state.dtype.element_ty), mask=at < H)
