"""Triton kernel of a linear layer over MXFP8 weights for few rows, bound by the bytes of its weights.

A program owns 8 * T outputs, its warps share the inputs. The first chunks are asked for before the wait for the kernel
before (launch.py has the rule).
"""

# mypy: disable-error-code="untyped-decorator, assignment, var-annotated"
from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from recipes.components.gpu.packed_kernels import FP8_UNIT, fp8_product, fp8_scales, take_inputs


@triton.jit
def take_fp8(
    values: tl.tensor, scales: tl.tensor, first: tl.tensor, chunk: tl.tensor, N: tl.constexpr, K: tl.constexpr,
    S: tl.constexpr, T: tl.constexpr, APART: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:  # fmt: skip
    """Words [8, S, T, 2, 16] and scale bytes [4, 8, S, T] of a chunk [1, S, 1] of outputs from `first` on.

    With `APART` every second eight outputs are those of the matrix's second half.
    """
    eight, times, part = tl.arange(0, 8), tl.arange(0, T), tl.arange(0, 4)
    if APART > 0:
        line = first + (times // 2) * 8 + (times % 2) * APART
        inside = first + (times // 2) * 8
    else:
        line = first + times * 8
        inside = line
    each = tl.arange(0, 16)[None, None, None, None, :]
    limit: tl.constexpr = N - APART
    word = (tl.arange(0, 2) * 4)[None, None, None, :, None] + (each // 4) * 8 + each % 4
    word += tl.reshape(chunk, (1, S, 1, 1, 1)) * 32
    rows = line[None, None, :, None, None] + eight[:, None, None, None, None]
    here = (inside[None, None, :, None, None] + eight[:, None, None, None, None] < limit) & (word < K // 4)
    at = values.to(tl.pointer_type(tl.int32), bitcast=True) + rows.to(tl.int64) * (K // 4) + word
    words = tl.load(at, mask=here, other=0)
    rows = line[None, None, None, :] + eight[None, :, None, None]
    here = inside[None, None, None, :] + eight[None, :, None, None] < limit
    places = tl.reshape(chunk, (1, 1, S, 1)) * 4
    part = part[:, None, None, None]
    if K % 128 == 0:
        # Each thread takes all four and keeps its own: a load of single bytes would change how matrix units are fed.
        four = scales.to(tl.pointer_type(tl.int32), bitcast=True) + rows.to(tl.int64) * (K // 128) + places // 4
        four += part * 0
        bytes = (tl.load(four, mask=here & (places < K // 32), other=0) >> (8 * part)) & 255
    else:
        at = scales + rows.to(tl.int64) * (K // 32) + places + part
        bytes = tl.load(at, mask=here & (places + part < K // 32), other=0).to(tl.int32)
    return words, bytes


@triton.jit
def take_streams(
    state: tl.tensor, strengths: tl.tensor, row: tl.tensor, column: tl.tensor, R: tl.tensor, N: tl.constexpr,
    STREAMS: tl.constexpr,
) -> tl.tuple:  # fmt: skip
    """Each of `STREAMS` streams [columns, rows] of `state` float32 [R, STREAMS * N], and its strengths [1, rows].

    All are asked for at once: after the first store the compiler would keep each load behind the store before.
    """
    held = ()
    here = (row < R)[None, :] & (column < N)[:, None]
    for stream in tl.static_range(STREAMS):
        at = state + (row.to(tl.int64)[None, :] * STREAMS + stream) * N + column[:, None]
        strength = tl.load(strengths + row * STREAMS + stream, mask=row < R, other=0)[None, :]
        held += ((tl.load(at, mask=here, other=0), strength),)
    return held


@triton.jit
def feed_streams(
    state: tl.tensor, held: tl.tuple, total: tl.tensor, row: tl.tensor, column: tl.tensor, R: tl.tensor,
    N: tl.constexpr, STREAMS: tl.constexpr,
) -> None:  # fmt: skip
    """Stores each stream that `take_streams` took plus its strength times `total` [columns, rows]."""
    here = (row < R)[None, :] & (column < N)[:, None]
    for stream in tl.static_range(STREAMS):
        at = state + (row.to(tl.int64)[None, :] * STREAMS + stream) * N + column[:, None]
        before, strength = held[stream]
        tl.store(at, before + total * strength, mask=here)


@triton.jit
def mxfp8_linear(
    x: tl.tensor, values: tl.tensor, scales: tl.tensor, out: tl.tensor, strengths: tl.tensor, R: tl.tensor,
    N: tl.constexpr, K: tl.constexpr, S: tl.constexpr, T: tl.constexpr, P: tl.constexpr, TURNS: tl.constexpr,
    AHEAD: tl.constexpr, GATED: tl.constexpr, STREAMS: tl.constexpr, TYPE: tl.constexpr, CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """`out` [R, N] of `x` [R, K]; gated: [R, N / 2], silu of the first half's outputs times the second's.

    With `STREAMS` instead each of so many streams in `out` [R, STREAMS * N] += its strength [R, STREAMS] times that.
    """
    apart: tl.constexpr = N // 2 if GATED else 0
    width: tl.constexpr = 4 * T if GATED else 8 * T
    outputs: tl.constexpr = N // 2 if GATED else N
    first = tl.program_id(0) * width
    slice = tl.arange(0, S)
    held = ()
    for turn in tl.static_range(AHEAD):
        held += (take_fp8(values, scales, first, slice + turn * S, N, K, S, T, apart),)
    if CHAINED:
        gdc_wait()
        gdc_launch_dependents()
    row = tl.program_id(1) * (8 * P) + tl.arange(0, 8 * P)
    column = first + tl.arange(0, width)
    streams = take_streams(out, strengths, row, column, R, outputs, STREAMS)
    place = tl.arange(0, 8)[:, None, None, None, None] + 8 * tl.arange(0, P)[None, None, :, None, None]
    place += tl.program_id(1) * (8 * P)
    # Columns of the matrix units that no row has take the last one's.
    lines = tl.minimum(place, R - 1).to(tl.int64) * K
    found = tl.zeros((S, 8 * T, 8 * P), tl.float32)
    for turn in tl.static_range(TURNS):
        if turn + AHEAD < TURNS:
            held += (take_fp8(values, scales, first, slice + (turn + AHEAD) * S, N, K, S, T, apart),)
        chunk = tl.reshape(slice + turn * S, (1, S, 1, 1, 1))
        piece = take_inputs(x, lines, chunk, K, P, S, K == 128 * S * TURNS)
        words, bytes = held[turn]
        found = fp8_product(piece, words, fp8_scales(bytes, S, T, TYPE), found, S, T, P, TYPE)
    total = tl.sum(found, 0)
    if tl.float32 != TYPE:
        total *= FP8_UNIT
    if GATED:
        pairs = tl.permute(tl.reshape(total, (T // 2, 2, 8, 8 * P)), (0, 2, 3, 1))
        gate, up = tl.split(pairs)
        total = tl.reshape(gate * tl.sigmoid(gate) * up, (width, 8 * P))
    if STREAMS > 0:
        feed_streams(out, streams, total, row, column, R, outputs, STREAMS)
    else:
        here = (row < R)[None, :] & (column < outputs)[:, None]
        at = out + row.to(tl.int64)[None, :] * outputs + column[:, None]
        tl.store(at, total.to(out.dtype.element_ty), mask=here)
