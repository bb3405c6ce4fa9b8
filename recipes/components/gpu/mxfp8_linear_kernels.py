"""Triton kernel of a linear layer over MXFP8 weights for few rows, bound by the bytes of its weights.

A program owns 8 * T outputs, its warps share the inputs. The first chunks are asked for before the wait for the kernel
before (launch.py has the rule).
"""

# mypy: disable-error-code="untyped-decorator, assignment, var-annotated, no-any-return"
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
    """Words [8, S, T, 2, 16] and scale bytes [4, 8, S, T] of each warp's `chunk` [S], of outputs from its `first` [S].

    With `APART` every second eight outputs are those of the matrix's second half.
    """
    eight, times, part = tl.arange(0, 8), tl.arange(0, T), tl.arange(0, 4)
    inside = times // 2 * 8 if APART > 0 else times * 8
    line = inside + times % 2 * APART
    each = tl.arange(0, 16)[None, None, None, None, :]
    limit: tl.constexpr = N - APART
    word = (tl.arange(0, 2) * 4)[None, None, None, :, None] + (each // 4) * 8 + each % 4
    word += tl.reshape(chunk, (1, S, 1, 1, 1)) * 32
    eighth = first[None, :, None, None, None] + eight[:, None, None, None, None]
    rows = eighth + line[None, None, :, None, None]
    here = (eighth + inside[None, None, :, None, None] < limit) & (word < K // 4)
    at = values.to(tl.pointer_type(tl.int32), bitcast=True) + rows.to(tl.int64) * (K // 4) + word
    words = tl.load(at, mask=here, other=0)
    eighth = first[None, None, :, None] + eight[None, :, None, None]
    rows = eighth + line[None, None, None, :]
    here = eighth + inside[None, None, None, :] < limit
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
def fp8_chunk(turn: tl.constexpr, S: tl.constexpr, SHARED: tl.constexpr) -> tl.tensor:
    """[S]: each warp's chunk of a turn. With `SHARED` warps share the inputs, without each goes through all of them."""
    return tl.arange(0, S) + turn * S if SHARED else tl.zeros([S], tl.int32) + turn


@triton.jit
def _take_step(
    values: tl.tensor, scales: tl.tensor, first: tl.tensor, step: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    S: tl.constexpr, T: tl.constexpr, APART: tl.constexpr, SHARED: tl.constexpr, TURNS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:  # fmt: skip
    """The chunks of a turn of a tile; one tile's turns follow the other's."""
    tile = first + step // TURNS * (4 * T if APART > 0 else 8 * T)
    return take_fp8(values, scales, tile, fp8_chunk(step % TURNS, S, SHARED), N, K, S, T, APART)


@triton.jit
def fp8_ahead(
    values: tl.tensor, scales: tl.tensor, first: tl.tensor, N: tl.constexpr, K: tl.constexpr, S: tl.constexpr,
    T: tl.constexpr, APART: tl.constexpr, SHARED: tl.constexpr, TURNS: tl.constexpr, AHEAD: tl.constexpr,
) -> tl.tuple:  # fmt: skip
    """The chunks of the first turns, asked for at once."""
    held = ()
    for step in tl.static_range(AHEAD):
        held += (_take_step(values, scales, first, step, N, K, S, T, APART, SHARED, TURNS),)
    return held


@triton.jit
def fp8_rows(
    x: tl.tensor, values: tl.tensor, scales: tl.tensor, held: tl.tuple, first: tl.tensor, start: tl.tensor,
    R: tl.tensor, N: tl.constexpr, K: tl.constexpr, S: tl.constexpr, T: tl.constexpr, P: tl.constexpr,
    APART: tl.constexpr, SHARED: tl.constexpr, TURNS: tl.constexpr, AHEAD: tl.constexpr, TILE: tl.constexpr,
    TILES: tl.constexpr, TYPE: tl.constexpr,
) -> tl.tuple:  # fmt: skip
    """(float32 [S, 8 * T, 8 * P], `held`): rows from `start` on through outputs of the tile `TILE` of `TILES`.

    The first one's begin at `first` [S]. `held` are the chunks asked for so far, with `AHEAD` more than are used. Sums
    are over `FP8_UNIT` in bfloat16; with `SHARED` the warps' parts are still to be added.
    """
    place = start + tl.arange(0, 8)[:, None, None, None, None] + 8 * tl.arange(0, P)[None, None, :, None, None]
    # Columns of the matrix units that no row has take the last one's.
    lines = tl.minimum(place, R - 1).to(tl.int64) * K
    whole: tl.constexpr = 128 * TURNS * (S if SHARED else 1) == K
    found = tl.zeros((S, 8 * T, 8 * P), tl.float32)
    for turn in tl.static_range(TURNS):
        if TILE * TURNS + turn + AHEAD < TILES * TURNS:
            held += (
                _take_step(
                    values, scales, first, TILE * TURNS + turn + AHEAD, N, K, S, T, APART, SHARED, TURNS
                ),
            )  # fmt: skip
        chunk = tl.reshape(fp8_chunk(turn, S, SHARED), (1, S, 1, 1, 1))
        words, bytes = held[TILE * TURNS + turn]
        piece = take_inputs(x, lines, chunk, K, P, S, whole)
        found = fp8_product(piece, words, fp8_scales(bytes, S, T, TYPE), found, S, T, P, TYPE)
    return found, held


@triton.jit
def fp8_whole(found: tl.tensor, TYPE: tl.constexpr) -> tl.tensor:
    """Sums of `fp8_rows` in whole units."""
    return found if tl.float32 == TYPE else found * FP8_UNIT


@triton.jit
def gated(found: tl.tensor, T: tl.constexpr, P: tl.constexpr) -> tl.tensor:
    """[4 * T, 8 * P]: silu(gate) * up of [8 * T, 8 * P], in which eight gates and their ups take turns."""
    gate, up = tl.split(tl.permute(tl.reshape(found, (T // 2, 2, 8, 8 * P)), (0, 2, 3, 1)))
    return tl.reshape(gate * tl.sigmoid(gate) * up, (4 * T, 8 * P))


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
def _fetch(address: tl.tensor, BYTES: tl.constexpr) -> None:
    """Has so many bytes brought into the card's cache. One thread of a program asks for them."""
    tl.inline_asm_elementwise(
        """
        {
            .reg .pred first;
            .reg .b32 thread;
            mov.u32 thread, %tid.x;
            setp.eq.u32 first, thread, 0;
            @first cp.async.bulk.prefetch.L2.global [$1], $2;
            mov.u32 $0, 0;
        }
        """,
        "=r,l,r", [address.to(tl.int64), BYTES], dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def mxfp8_linear(
    x: tl.tensor, values: tl.tensor, scales: tl.tensor, out: tl.tensor, strengths: tl.tensor, R: tl.tensor,
    N: tl.constexpr, K: tl.constexpr, S: tl.constexpr, T: tl.constexpr, P: tl.constexpr, TILES: tl.constexpr,
    TURNS: tl.constexpr, AHEAD: tl.constexpr, FETCH: tl.constexpr, GATED: tl.constexpr, STREAMS: tl.constexpr,
    TYPE: tl.constexpr, CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """`out` [R, N] of `x` [R, K]; gated: [R, N / 2], silu of the first half's outputs times the second's.

    With `STREAMS` instead each of so many streams in `out` [R, STREAMS * N] += its strength [R, STREAMS] times that.
    A program takes `TILES` tiles in one walk. `FETCH`: all of a tile comes into the card's cache before the wait.
    """
    apart: tl.constexpr = N // 2 if GATED else 0
    width: tl.constexpr = 4 * T if GATED else 8 * T
    outputs: tl.constexpr = N // 2 if GATED else N
    first = tl.program_id(0) * (width * TILES)
    lines = first + tl.zeros([S], tl.int32)
    held = fp8_ahead(values, scales, lines, N, K, S, T, apart, True, TURNS, AHEAD)
    if CHAINED:
        if FETCH:  # noqa: SIM102 (known when it is compiled)
            if first + width <= N:
                _fetch(values + first.to(tl.int64) * K, width * K)
        gdc_wait()
        gdc_launch_dependents()
    start = tl.program_id(1) * (8 * P)
    row = start + tl.arange(0, 8 * P)
    for tile in tl.static_range(TILES):
        column = first + tile * width + tl.arange(0, width)
        streams = take_streams(out, strengths, row, column, R, outputs, STREAMS)
        found, held = fp8_rows(
            x, values, scales, held, lines, start, R, N, K, S, T, P, apart, True, TURNS, AHEAD, tile, TILES, TYPE
        )  # fmt: skip
        total = fp8_whole(tl.sum(found, 0), TYPE)
        if GATED:
            total = gated(total, T, P)
        if STREAMS > 0:
            feed_streams(out, streams, total, row, column, R, outputs, STREAMS)
        else:
            here = (row < R)[None, :] & (column < outputs)[:, None]
            at = out + row.to(tl.int64)[None, :] * outputs + column[:, None]
            tl.store(at, total.to(out.dtype.element_ty), mask=here)
