"""Triton kernels of linear layers over few rows: bound by the bytes of their weights, so those are asked for first.

A program owns `BN` outputs and a tile of `BM` rows and holds the whole inner dimension at once, in two pieces that are
powers of two (576 = 512 + 64), each cut into `S` slices that the warps share. One row goes through plain products, more
through the matrix units. Weights are loaded before the wait for the kernel before (launch.py has the rule).
"""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def columns(START: tl.constexpr, WIDTH: tl.constexpr, S: tl.constexpr) -> tl.tensor:
    """[S, 1, WIDTH / S]: the inner positions of a piece, slice by slice."""
    each: tl.constexpr = WIDTH // S
    return START + tl.arange(0, S)[:, None, None] * each + tl.arange(0, each)[None, None, :]


@triton.jit
def take_gain(gain: tl.tensor, K: tl.constexpr, START: tl.constexpr, WIDTH: tl.constexpr, S: tl.constexpr) -> tl.tensor:
    """float32 [S, 1, WIDTH / S] of the norm's weight [K]."""
    at = columns(START, WIDTH, S)
    return tl.load(gain + at, mask=at < K, other=0).to(tl.float32)


@triton.jit
def take_weights(
    weight: tl.tensor,
    outputs: tl.tensor,
    N: tl.constexpr,
    K: tl.constexpr,
    START: tl.constexpr,
    WIDTH: tl.constexpr,
    S: tl.constexpr,
) -> tl.tensor:
    """[S, BN, WIDTH / S] of `weight` [N, K]."""
    at = columns(START, WIDTH, S)
    here = (at < K) & (outputs < N)[None, :, None]
    return tl.load(weight + outputs.to(tl.int64)[None, :, None] * K + at, mask=here, other=0)


@triton.jit
def take_rows(
    rows: tl.tensor,
    row: tl.tensor,
    R: tl.tensor,
    K: tl.constexpr,
    START: tl.constexpr,
    WIDTH: tl.constexpr,
    S: tl.constexpr,
) -> tl.tensor:
    """float32 [S, BM, WIDTH / S] of `rows` [R, K]."""
    at = columns(START, WIDTH, S)
    here = (at < K) & (row < R)[None, :, None]
    return tl.load(rows + row.to(tl.int64)[None, :, None] * K + at, mask=here, other=0).to(tl.float32)


@triton.jit
def squares(piece: tl.tensor) -> tl.tensor:
    """float32 [BM]: sums of squares along the inner dimension."""
    return tl.sum(tl.sum(piece * piece, 2), 0)


@triton.jit
def product(
    piece: tl.tensor, weights: tl.tensor, before: tl.tensor, S: tl.constexpr, BM: tl.constexpr, TYPE: tl.constexpr
) -> tl.tensor:  # fmt: skip
    """float32 [S, BM, BN], or [BM, BN] of one slice or row: `before` and what one piece of the inner dimension adds."""
    if BM == 1:
        found = before + tl.sum(tl.sum(piece * weights.to(tl.float32), 2), 0)[None, :]
    elif S == 1:
        rows = tl.reshape(piece.to(TYPE), (piece.shape[1], piece.shape[2]))
        turned = tl.trans(tl.reshape(weights.to(TYPE), (weights.shape[1], weights.shape[2])))
        found = tl.dot(rows, turned, before, input_precision="ieee")
    else:
        turned = tl.permute(weights.to(TYPE), (0, 2, 1))
        found = tl.dot(piece.to(TYPE), turned, before, input_precision="ieee")
    return found


@triton.jit
def nothing_yet(S: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr) -> tl.tensor:
    """What `product` starts from."""
    # Two returns would not compile, nor would a conditional expression of two shapes.
    if (BM > 1) & (S > 1):  # noqa: SIM108
        found = tl.zeros([S, BM, BN], tl.float32)
    else:
        found = tl.zeros([BM, BN], tl.float32)
    return found


@triton.jit
def normed_product(
    stream: tl.tensor, row: tl.tensor, R: tl.tensor, gain_0: tl.tensor, gain_1: tl.tensor, weights_0: tl.tensor,
    weights_1: tl.tensor, epsilon: tl.constexpr, K: tl.constexpr, K0: tl.constexpr, K1: tl.constexpr,
    S: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, TYPE: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """float32 [BM, BN] of norm(stream) through a layer. The divisor comes last: both sums are taken at once."""
    piece = take_rows(stream, row, R, K, 0, K0, S)
    if K1 > 0:
        piece_1 = take_rows(stream, row, R, K, K0, K1, S)
    total = squares(piece)
    # One row: its gain is in the weights already.
    found = product(piece if BM == 1 else piece * gain_0, weights_0, nothing_yet(S, BM, BN), S, BM, TYPE)
    if K1 > 0:
        total += squares(piece_1)
        found = product(piece_1 if BM == 1 else piece_1 * gain_1, weights_1, found, S, BM, TYPE)
    if (BM > 1) & (S > 1):
        found = tl.sum(found, 0)
    return found * tl.rsqrt(total / K + epsilon)[:, None]


@triton.jit
def project_heads(
    stream: tl.tensor, gain: tl.tensor, weight: tl.tensor, scale: tl.tensor, turns: tl.tensor, positions: tl.tensor,
    places: tl.tensor, queries: tl.tensor, pages: tl.tensor, R: tl.tensor,
    epsilon: tl.constexpr, QUERY_HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
    K: tl.constexpr, K0: tl.constexpr, K1: tl.constexpr, S: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    SCALED: tl.constexpr, TYPE: tl.constexpr, CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """norm, query/key/value layer, rotation, and the rows' keys and values into their pages; `BN` counts pairs.

    Rows without a place write no page. `queries` [R, QUERY_HEADS * D]; `pages` [pages, 2, KEY_HEADS, PAGE, D];
    `turns` float32 [positions, D]: cosine and sine of each pair.
    """
    N: tl.constexpr = (QUERY_HEADS + 2 * KEY_HEADS) * D
    output = tl.program_id(0) * 2 * BN + tl.arange(0, 2 * BN)
    weights_0, gain_0 = take_weights(weight, output, N, K, 0, K0, S), take_gain(gain, K, 0, K0, S)
    weights_1, gain_1 = weights_0, gain_0
    if K1 > 0:
        weights_1, gain_1 = take_weights(weight, output, N, K, K0, K1, S), take_gain(gain, K, K0, K1, S)
    if BM == 1:
        weights_0, weights_1 = weights_0.to(tl.float32) * gain_0, weights_1.to(tl.float32) * gain_1
    if SCALED:
        scales = tl.load(scale + output, mask=output < N, other=0)[None, :]
    if CHAINED:
        gdc_wait()
        gdc_launch_dependents()
    row = tl.program_id(1) * BM + tl.arange(0, BM)
    position = tl.load(positions + row, mask=row < R, other=-1)
    place = tl.load(places + row, mask=row < R, other=-1)
    even = tl.program_id(0) * 2 * BN + 2 * tl.arange(0, BN)
    head, within = even // D, even % D
    turning = (position >= 0)[:, None] & (head < QUERY_HEADS + KEY_HEADS)[None, :]
    turn = turns + position[:, None] * D + within[None, :]
    cosine, sine = tl.load(turn, mask=turning, other=1), tl.load(turn + 1, mask=turning, other=0)
    found = normed_product(
        stream, row, R, gain_0, gain_1, weights_0, weights_1, epsilon, K, K0, K1, S, BM, 2 * BN, TYPE
    )
    if SCALED:
        found *= scales
    a, b = tl.split(tl.reshape(found, (BM, BN, 2)))
    x, y = a * cosine - b * sine, a * sine + b * cosine

    is_query = (row < R)[:, None] & (head < QUERY_HEADS)[None, :]
    at = queries + row.to(tl.int64)[:, None] * (QUERY_HEADS * D) + even[None, :]
    tl.store(at, x.to(queries.dtype.element_ty), mask=is_query)
    tl.store(at + 1, y.to(queries.dtype.element_ty), mask=is_query)
    is_state = (place >= 0)[:, None] & (head >= QUERY_HEADS)[None, :] & (even < N)[None, :]
    plane = (place // PAGE).to(tl.int64)[:, None] * (2 * KEY_HEADS) + (head - QUERY_HEADS)[None, :]
    at = pages + (plane * PAGE + (place % PAGE)[:, None]) * D + within[None, :]
    tl.store(at, x.to(pages.dtype.element_ty), mask=is_state)
    tl.store(at + 1, y.to(pages.dtype.element_ty), mask=is_state)


@triton.jit
def gate_up(
    stream: tl.tensor, gain: tl.tensor, weight: tl.tensor, scale: tl.tensor, out: tl.tensor, R: tl.tensor,
    epsilon: tl.constexpr, N: tl.constexpr, K: tl.constexpr, K0: tl.constexpr, K1: tl.constexpr, S: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, SCALED: tl.constexpr, TYPE: tl.constexpr, CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """norm, then silu(gate) * up of a layer [2 * N, K] that holds gate and up one after the other; `out` [R, N]."""
    both = tl.arange(0, 2 * BN)
    output = tl.program_id(0) * BN + both // 2
    # Beyond N a gate's row would be an up's: it is computed and not stored.
    output = tl.where(output < N, output + both % 2 * N, 2 * N)
    weights_0, gain_0 = take_weights(weight, output, 2 * N, K, 0, K0, S), take_gain(gain, K, 0, K0, S)
    weights_1, gain_1 = weights_0, gain_0
    if K1 > 0:
        weights_1, gain_1 = take_weights(weight, output, 2 * N, K, K0, K1, S), take_gain(gain, K, K0, K1, S)
    if BM == 1:
        weights_0, weights_1 = weights_0.to(tl.float32) * gain_0, weights_1.to(tl.float32) * gain_1
    if SCALED:
        scales = tl.load(scale + output, mask=output < 2 * N, other=0)[None, :]
    if CHAINED:
        gdc_wait()
        gdc_launch_dependents()
    row = tl.program_id(1) * BM + tl.arange(0, BM)
    found = normed_product(
        stream, row, R, gain_0, gain_1, weights_0, weights_1, epsilon, K, K0, K1, S, BM, 2 * BN, TYPE
    )
    if SCALED:
        found *= scales
    gate, up = tl.split(tl.reshape(found, (BM, BN, 2)))
    column = tl.program_id(0) * BN + tl.arange(0, BN)
    here = (row < R)[:, None] & (column < N)[None, :]
    at = out + row.to(tl.int64)[:, None] * N + column[None, :]
    tl.store(at, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), mask=here)


@triton.jit
def plain(
    rows: tl.tensor, weight: tl.tensor, scale: tl.tensor, out: tl.tensor, R: tl.tensor, N: tl.constexpr,
    K: tl.constexpr, K0: tl.constexpr, K1: tl.constexpr, S: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    ADD: tl.constexpr, SCALED: tl.constexpr, TYPE: tl.constexpr, CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """`out` [R, N] = rows [R, K] times weight [N, K] transposed; with `ADD` it is added to what `out` holds."""
    output = tl.program_id(0) * BN + tl.arange(0, BN)
    weights = take_weights(weight, output, N, K, 0, K0, S)
    if K1 > 0:
        weights_1 = take_weights(weight, output, N, K, K0, K1, S)
    if BM == 1:
        weights = weights.to(tl.float32)
        if K1 > 0:
            weights_1 = weights_1.to(tl.float32)
    if SCALED:
        scales = tl.load(scale + output, mask=output < N, other=0)[None, :]
    if CHAINED:
        gdc_wait()
        gdc_launch_dependents()
    row = tl.program_id(1) * BM + tl.arange(0, BM)
    here = (row < R)[:, None] & (output < N)[None, :]
    at = out + row.to(tl.int64)[:, None] * N + output[None, :]
    piece = take_rows(rows, row, R, K, 0, K0, S)
    if K1 > 0:
        piece_1 = take_rows(rows, row, R, K, K0, K1, S)
    if ADD:
        before = tl.load(at, mask=here, other=0)
    found = product(piece, weights, nothing_yet(S, BM, BN), S, BM, TYPE)
    if K1 > 0:
        found = product(piece_1, weights_1, found, S, BM, TYPE)
    if (BM > 1) & (S > 1):
        found = tl.sum(found, 0)
    if SCALED:
        found *= scales
    if ADD:
        found += before
    tl.store(at, found.to(out.dtype.element_ty), mask=here)
