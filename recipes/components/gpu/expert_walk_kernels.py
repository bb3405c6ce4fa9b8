"""Triton functions that walk a few rows through outputs of one expert's NVFP4 matrix.

A warp has 8 * T outputs and takes its inputs chunk by chunk (packed_kernels.py), a chunk a turn, some turns ahead. The
order of a row's sums depends on neither number.
"""

# mypy: disable-error-code="untyped-decorator, assignment, var-annotated, no-any-return"
from __future__ import annotations

import triton
import triton.language as tl

from recipes.components.gpu.packed_kernels import fp4_product, fp4_scales, still_packed, take_inputs


@triton.jit
def fp4_places(
    packed: tl.tensor, scales: tl.tensor, line: tl.tensor, scale_line: tl.tensor, room: tl.tensor,
    scale_room: tl.tensor, K: tl.constexpr, S: tl.constexpr, SHARED: tl.constexpr,
) -> tl.tuple:  # fmt: skip
    """Where each warp's first chunk is: of lines [8, S, T, 1], and their scales' lines [1, 8, S, T], of a matrix.

    A line is there if its `room`, of the same shape, is positive. With `SHARED` the warps share the inputs, without
    each goes through all of them.
    """
    slice = tl.arange(0, S) if SHARED else tl.zeros([S], tl.int32)
    word = tl.reshape(slice, (1, S, 1, 1)) * 16 + tl.arange(0, 16)[None, None, None, :]
    words = packed.to(tl.pointer_type(tl.int32), bitcast=True) + line.to(tl.int64) * (K // 8) + word
    # Two bytes a thread: more would come in another arrangement.
    pair = tl.max_contiguous(tl.arange(0, 4)[:, None, None, None], [1, 1, 1, 1]) + tl.reshape(slice, (1, 1, S, 1)) * 4
    if K % 32 == 0:
        pairs = scales.to(tl.pointer_type(tl.uint16), bitcast=True) + scale_line.to(tl.int64) * (K // 32) + pair
    else:
        pairs = scales + scale_line.to(tl.int64) * (K // 16) + 2 * pair
    return words, pairs, word, pair, room, scale_room


@triton.jit
def _take(
    at: tl.tuple, turn: tl.constexpr, K: tl.constexpr, S: tl.constexpr, SHARED: tl.constexpr, WHOLE: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """Words [8, S, T, 16] and pairs of scale bytes [4, 8, S, T] of a turn. `WHOLE`: all lines and inputs are there."""
    words, pairs, word, pair, room, scale_room = at
    chunks: tl.constexpr = turn * (S if SHARED else 1)
    words += chunks * 16
    word += chunks * 16
    pair += chunks * 4
    if WHOLE:
        found = tl.load(words)
        bytes = tl.load(pairs + chunks * 4).to(tl.int32)
    elif K % 32 == 0:
        found = tl.load(words, mask=(room > 0) & (word < K // 8), other=0)
        here = (scale_room > 0) & (pair < K // 32)
        bytes = tl.load(pairs + chunks * 4, mask=here, other=0).to(tl.int32)
    else:
        found = tl.load(words, mask=(room > 0) & (word < K // 8), other=0)
        pairs += chunks * 8
        here = scale_room > 0
        bytes = tl.load(pairs, mask=here & (2 * pair < K // 16), other=0).to(tl.int32)
        high = tl.load(pairs + 1, mask=here & (2 * pair + 1 < K // 16), other=0).to(tl.int32)
        bytes = bytes | (high << 8)
    return found, bytes


@triton.jit
def fp4_ahead(
    at: tl.tuple, K: tl.constexpr, S: tl.constexpr, SHARED: tl.constexpr, AHEAD: tl.constexpr, WHOLE: tl.constexpr
) -> tl.tuple:
    """The chunks of the first turns, asked for at once."""
    held = ()
    for turn in tl.static_range(AHEAD):
        held += (_take(at, turn, K, S, SHARED, WHOLE),)
    return held


@triton.jit
def fp4_rows(
    x: tl.tensor, row: tl.tensor, held: tl.tuple, at: tl.tuple, K: tl.constexpr, S: tl.constexpr, T: tl.constexpr,
    SHARED: tl.constexpr, TURNS: tl.constexpr, AHEAD: tl.constexpr, WHOLE: tl.constexpr, AGAIN: tl.constexpr,
    TURNED: tl.constexpr, TYPE: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """float32 [S, 8 * T, 8] before `fp4_whole`: rows [8] of `x`; the first turns' chunks are `held`.

    With `SHARED` the warps' parts are still to be added; without, each has outputs of its own. `AGAIN`: in a loop.
    """
    lines = tl.reshape(row, (8, 1, 1, 1, 1)).to(tl.int64) * K
    whole: tl.constexpr = 128 * TURNS * (S if SHARED else 1) == K
    found = tl.zeros((S, 8 * T, 8), tl.float32)
    for turn in tl.static_range(TURNS):
        if turn + AHEAD < TURNS:
            held += (_take(at, turn + AHEAD, K, S, SHARED, WHOLE),)
        chunk = tl.arange(0, S) + turn * S if SHARED else tl.zeros([S], tl.int32) + turn
        piece = take_inputs(x, lines, tl.reshape(chunk, (1, S, 1, 1, 1)), K, 1, S, whole)
        words, pairs = held[turn]
        if (tl.float32 != TYPE) and AGAIN:
            words = still_packed(words)
        found = fp4_product(piece, words, fp4_scales(pairs, S, T, TYPE), found, S, T, 1, TURNED, TYPE)
    return found
