"""Triton kernels of a mixture of experts over NVFP4 weights for many rows: sorted by expert, then tile by tile.

Sorting counts, so that places follow from the choice alone. A tile's weights are widened once, to bfloat16, which
holds an E2M1 value times its E4M3 scale exactly, and go through the matrix units (W4A16) as their left side, from
registers; rows, of which an expert has few, are the right one.
"""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from recipes.components.gpu.packed_kernels import fp4_pair, fp4_scales, fp4_whole


@triton.jit
def count_picks(
    chosen: tl.tensor, counts: tl.tensor, picks: tl.tensor, E: tl.constexpr, BE: tl.constexpr, PIECE: tl.constexpr
) -> None:
    """`counts` int32 [pieces, BE]: picks of each of `E` experts in one piece of `chosen` int32 [picks].

    Scores that are no numbers may name an expert that there is not: it counts as the last one, here and in `places`.
    Negative ones are nobody and count nowhere.
    """
    place = tl.program_id(0) * PIECE + tl.arange(0, PIECE)
    expert = tl.load(chosen + place, mask=place < picks, other=-1)
    found = tl.histogram(tl.minimum(expert, E - 1), BE, mask=expert >= 0)
    tl.store(counts + tl.program_id(0) * BE + tl.arange(0, BE), found)


@triton.jit
def sum_pieces(
    counts: tl.tensor, totals: tl.tensor, pieces: tl.tensor, BE: tl.constexpr, BP: tl.constexpr, SOME: tl.constexpr
) -> None:
    """`SOME` experts a program: `counts` become picks in earlier pieces, `totals` int32 [BE] those in all."""
    piece, expert = tl.arange(0, BP), tl.program_id(0) * SOME + tl.arange(0, SOME)
    at = piece[:, None] * BE + expert[None, :]
    inside = (piece < pieces)[:, None] & (expert < BE)[None, :]
    own = tl.load(counts + at, mask=inside, other=0)
    tl.debug_barrier()
    tl.store(counts + at, tl.cumsum(own, 0) - own, mask=inside)
    tl.store(totals + expert, tl.sum(own, 0), mask=expert < BE)


@triton.jit
def lay_tiles(
    totals: tl.tensor, starts: tl.tensor, tiles: tl.tensor, BE: tl.constexpr, ROWS: tl.constexpr, BT: tl.constexpr
) -> None:
    """One expert a program: where its picks start, and its tiles: (expert, first place) pairs in `tiles` int32.

    `starts` int32 [BE + 2]: the last but one is the number of picks, the last that of tiles.
    """
    own, expert = tl.program_id(0), tl.arange(0, BE)
    total = tl.load(totals + expert)
    needed = (total + ROWS - 1) // ROWS
    start = tl.sum(tl.where(expert < own, total, 0), 0)
    first = tl.sum(tl.where(expert < own, needed, 0), 0)
    mine = tl.sum(tl.where(expert == own, needed, 0), 0)
    tl.store(starts + own, start)
    for begin in tl.range(0, mine, BT):
        tile = begin + tl.arange(0, BT)
        tl.store(tiles + 2 * (first + tile), tl.zeros([BT], tl.int32) + own, mask=tile < mine)
        tl.store(tiles + 2 * (first + tile) + 1, start + tile * ROWS, mask=tile < mine)
    tl.store(starts + BE + tl.arange(0, 2), tl.where(tl.arange(0, 2) == 0, tl.sum(total, 0), tl.sum(needed, 0)),
             mask=own == BE - 1)  # fmt: skip


@triton.jit
def place_picks(
    chosen: tl.tensor, counts: tl.tensor, starts: tl.tensor, order: tl.tensor, places: tl.tensor, picks: tl.tensor,
    E: tl.constexpr, BE: tl.constexpr, PIECE: tl.constexpr,
) -> None:  # fmt: skip
    """`places` int32 [picks]: where each pick stands when sorted by expert, equal ones as they came; `order`: back.

    Picks of nobody stand at -1.
    """
    at = tl.arange(0, PIECE)
    pick = tl.program_id(0) * PIECE + at
    expert = tl.minimum(tl.load(chosen + pick, mask=pick < picks, other=-1), E - 1)
    here = expert >= 0
    same = (expert[:, None] == expert[None, :]) & (at[None, :] < at[:, None])
    place = tl.load(starts + expert, mask=here, other=0) + tl.sum(same.to(tl.int32), 1)
    place += tl.load(counts + tl.program_id(0) * BE + expert, mask=here, other=0)
    tl.store(order + place, pick, mask=here)
    tl.store(places + pick, tl.where(here, place, -1), mask=pick < picks)


@triton.jit
def _input_at(place: tl.tensor) -> tl.tensor:
    """Which input stands at `place` when each 128 are stored in the order of `_wide`."""
    word, code = place % 8 // 2 * 4 + place % 128 // 32, place % 32 // 8 + place % 2 * 4
    return place // 128 * 128 + word * 8 + code


@triton.jit
def interleave(x: tl.tensor, out: tl.tensor, K: tl.constexpr, KP: tl.constexpr, BK: tl.constexpr) -> None:
    """One row a program: `out` [R, KP] is `x` [R, K] in the order of widened words, zero where there is no input."""
    place = tl.arange(0, BK)
    row, source = tl.program_id(0).to(tl.int64), _input_at(place)
    tl.store(out + row * KP + place, tl.load(x + row * K + source, mask=source < K, other=0), mask=place < KP)


@triton.jit
def _take(
    packed: tl.tensor, scales: tl.tensor, line: tl.tensor, chunk: tl.tensor, K: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """Of 128 inputs the words int32 [8, S, T, 16] of matrix rows `line` [8, S, T], pairs of scale bytes [4, 8, S, T].

    Where rows of scales are whole chunks, eight are read at once: less than four bytes cannot be fetched ahead.
    """
    word = chunk * 16 + tl.arange(0, 16)[None, None, None, :]
    from_words = packed.to(tl.pointer_type(tl.int32), bitcast=True) + line[:, :, :, None] * (K // 8) + word
    quarter = tl.arange(0, 4)[:, None, None, None]
    if K % 128 == 0:
        eight = tl.load(scales.to(tl.pointer_type(tl.int64), bitcast=True) + line * (K // 128) + chunk)
        pairs = (eight[None, :, :, :] >> (quarter * 16)).to(tl.int32)
        words = tl.load(from_words)
    else:
        first = chunk * 8 + quarter * 2
        from_scales = scales + line[None, :, :, :] * (K // 16) + first
        low = tl.load(from_scales, mask=first < K // 16, other=0).to(tl.int32)
        pairs = low | (tl.load(from_scales + 1, mask=first + 1 < K // 16, other=0).to(tl.int32) << 8)
        words = tl.load(from_words, mask=word < K // 8, other=0)
    return words, pairs


@triton.jit
def _wide(words: tl.tensor, pairs: tl.tensor, S: tl.constexpr, T: tl.constexpr, TYPE: tl.constexpr) -> tl.tensor:
    """`TYPE` [8 * S * T, 128] before `fp4_whole`, outputs in the order of `_lines`, inputs in that of `_input_at`.

    That is how one step of the matrix units takes its left side from registers: a thread holds four words of each of
    its outputs, and of a word's codes the two that are widened at once become neighbours. Nothing crosses threads.
    """
    scales = fp4_scales(pairs, S, T, TYPE)
    low_0, high_0 = fp4_pair(words, scales, 0, TYPE)
    low_1, high_1 = fp4_pair(words, scales, 1, TYPE)
    low_2, high_2 = fp4_pair(words, scales, 2, TYPE)
    low_3, high_3 = fp4_pair(words, scales, 3, TYPE)
    even = tl.join(tl.join(low_0, high_0), tl.join(low_2, high_2))
    odd = tl.join(tl.join(low_1, high_1), tl.join(low_3, high_3))
    parts = tl.reshape(tl.join(even, odd), (8, S, T // 2, 2, 4, 4, 2, 2, 2))
    return tl.reshape(tl.permute(parts, (2, 1, 3, 0, 5, 7, 8, 4, 6)), (8 * S * T, 128))


@triton.jit
def _lines(S: tl.constexpr, T: tl.constexpr, EACH: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """[8, S, T] of a tile's outputs: its number among the first of each pair of eights, and which of the pair.

    A warp owns pairs of eights; the number counts eights `EACH` apart: 8 where a pair is of one output each, 16 where
    both are outputs that follow one another.
    """
    eight, warp, time = tl.arange(0, 8)[:, None, None], tl.arange(0, S)[None, :, None], tl.arange(0, T)[None, None, :]
    return (time // 2 * S + warp) * EACH + eight, time % 2


@triton.jit
def _walk(
    first: tl.tensor, second: tl.tensor, packed: tl.tensor, scales: tl.tensor, line: tl.tensor, K: tl.constexpr,
    S: tl.constexpr, T: tl.constexpr, ROWS: tl.constexpr, MORE: tl.constexpr, STAGES: tl.constexpr,
    TYPE: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:  # fmt: skip
    """float32 [8 * S * T, ROWS] and [8 * S * T, MORE] before `fp4_whole`: matrix rows times rows of inputs.

    `first` [ROWS, 128] and `second` [MORE, 128] point to the first chunk of each. Widened weights serve both.
    """
    found = tl.zeros([8 * S * T, ROWS], tl.float32)
    more = tl.zeros([8 * S * T, MORE if MORE else 1], tl.float32)
    for chunk in tl.range(0, (K + 127) // 128, num_stages=STAGES):
        words, pairs = _take(packed, scales, line, chunk, K)
        weights = _wide(words, pairs, S, T, TYPE)
        rows = tl.trans(tl.load(first + chunk * 128)).to(TYPE)
        found = tl.dot(weights, rows, found, input_precision="ieee")
        if MORE:
            rows = tl.trans(tl.load(second + chunk * 128)).to(TYPE)
            more = tl.dot(weights, rows, more, input_precision="ieee")
    return found, more


@triton.jit
def _gated(
    found: tl.tensor, gates: tl.tensor, ups: tl.tensor, S: tl.constexpr, T: tl.constexpr, ROWS: tl.constexpr
) -> tl.tensor:
    """silu(gate) * up [4 * S * T, ROWS] in units of `gates` and `ups`: a thread has both of an output in its hands."""
    gate, up = tl.split(tl.permute(tl.reshape(found, (T // 2, S, 2, 8, ROWS)), (0, 1, 3, 4, 2)))
    gate *= gates
    return tl.reshape(gate * tl.sigmoid(gate) * (up * ups), (4 * S * T, ROWS))


@triton.jit
def _put(
    out: tl.tensor, found: tl.tensor, place: tl.tensor, stop: tl.tensor, column: tl.tensor, N: tl.constexpr
) -> None:
    """`found` [columns, rows] to `out` [picks, N] at places before `stop`."""
    target = out + place.to(tl.int64)[None, :] * N + column[:, None]
    tl.store(target, found.to(out.dtype.element_ty), mask=(place < stop)[None, :] & (column < N)[:, None])


@triton.jit
def grouped_in(
    x: tl.tensor, packed: tl.tensor, scales: tl.tensor, singles: tl.tensor, order: tl.tensor, starts: tl.tensor,
    tiles: tl.tensor, out: tl.tensor, TOP: tl.constexpr, N: tl.constexpr, K: tl.constexpr, BE: tl.constexpr,
    ROWS: tl.constexpr, MORE: tl.constexpr, S: tl.constexpr, T: tl.constexpr, STAGES: tl.constexpr,
    TYPE: tl.constexpr,
) -> None:  # fmt: skip
    """One tile of an expert's rows and 4 * S * T of its columns a program: `out` = silu(gate) * up, sorted.

    `x` [R, K] and `out` [picks, N] are interleaved, rows of whole chunks. Matrices [E, 2 * N, K / 2], `singles` float32
    [E, 2]. Gate and up of a column are a pair of eights apart.
    """
    tile = tl.program_id(0)
    expert, start = tl.load(tiles + 2 * tile), tl.load(tiles + 2 * tile + 1)
    if tile < tl.load(starts + BE + 1):
        wide: tl.constexpr = (N + 127) // 128 * 128
        base, stop = tl.program_id(1) * (4 * S * T), tl.load(starts + expert + 1)
        gates, ups = fp4_whole(tl.load(singles + 2 * expert), TYPE), fp4_whole(tl.load(singles + 2 * expert + 1), TYPE)
        number, second = _lines(S, T, 8)
        line = (expert * 2 + second) * N + tl.minimum(_input_at(base + number), N - 1)
        place, later = start + tl.arange(0, ROWS), start + ROWS + tl.arange(0, MORE if MORE else 1)
        row = tl.load(order + place, mask=place < stop, other=0) // TOP
        more = tl.load(order + later, mask=later < stop, other=0) // TOP
        line_of_x: tl.constexpr = (K + 127) // 128 * 128
        at = x + tl.arange(0, 128)[None, :]
        found, others = _walk(
            at + row.to(tl.int64)[:, None] * line_of_x, at + more.to(tl.int64)[:, None] * line_of_x, packed, scales,
            line.to(tl.int64), K, S, T, ROWS, MORE, STAGES, TYPE,
        )  # fmt: skip
        column = base + tl.arange(0, 4 * S * T)
        _put(out, _gated(found, gates, ups, S, T, ROWS), place, stop, column, wide)
        if MORE:
            _put(out, _gated(others, gates, ups, S, T, MORE), later, stop, column, wide)


@triton.jit
def grouped_out(
    inner: tl.tensor, packed: tl.tensor, scales: tl.tensor, singles: tl.tensor, starts: tl.tensor, tiles: tl.tensor,
    out: tl.tensor, N: tl.constexpr, K: tl.constexpr, BE: tl.constexpr, ROWS: tl.constexpr, MORE: tl.constexpr,
    S: tl.constexpr, T: tl.constexpr, STAGES: tl.constexpr, TYPE: tl.constexpr,
) -> None:  # fmt: skip
    """One tile of an expert's rows and 8 * S * T of its outputs a program: `out` [picks, N] of `inner`, as `grouped_in`
    made it."""
    tile = tl.program_id(0)
    expert, start = tl.load(tiles + 2 * tile), tl.load(tiles + 2 * tile + 1)
    if tile < tl.load(starts + BE + 1):
        base, stop = tl.program_id(1) * (8 * S * T), tl.load(starts + expert + 1)
        single = fp4_whole(tl.load(singles + expert), TYPE)
        number, second = _lines(S, T, 16)
        line = expert * N + tl.minimum(base + number + second * 8, N - 1)
        place, later = start + tl.arange(0, ROWS), start + ROWS + tl.arange(0, MORE if MORE else 1)
        line_of_x: tl.constexpr = (K + 127) // 128 * 128
        at = inner + tl.arange(0, 128)[None, :]
        # Rows that a tile lacks are its first one.
        row, more = tl.where(place < stop, place, start), tl.where(later < stop, later, start)
        found, others = _walk(
            at + row.to(tl.int64)[:, None] * line_of_x, at + more.to(tl.int64)[:, None] * line_of_x, packed, scales,
            line.to(tl.int64), K, S, T, ROWS, MORE, STAGES, TYPE,
        )  # fmt: skip
        column = base + tl.arange(0, 8 * S * T)
        _put(out, found * single, place, stop, column, N)
        if MORE:
            _put(out, others * single, later, stop, column, N)


@triton.jit
def gather_parts(
    parts: tl.tensor, weights: tl.tensor, places: tl.tensor, shared: tl.tensor, gate: tl.tensor, out: tl.tensor,
    GATE_LINE: tl.tensor, TOP: tl.constexpr, N: tl.constexpr, BN: tl.constexpr,
) -> None:  # fmt: skip
    """`out` [R, N] = sigmoid(gate [R]) * shared [R, N] + weighted sum of each row's parts, in order of rank.

    Gates lie `GATE_LINE` elements apart.
    """
    row = tl.program_id(0)
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    here = column < N
    at = row.to(tl.int64) * N + column
    total = tl.load(shared + at, mask=here, other=0).to(tl.float32)
    total *= tl.sigmoid(tl.load(gate + row.to(tl.int64) * GATE_LINE).to(tl.float32))
    for rank in tl.static_range(TOP):
        place = tl.load(places + row * TOP + rank).to(tl.int64)
        part = tl.load(parts + place * N + column, mask=here & (place >= 0), other=0).to(tl.float32)
        total += part * tl.load(weights + row * TOP + rank)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=here)
