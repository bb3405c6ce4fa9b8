"""Triton kernels of a mixture of experts over NVFP4 weights for many rows: sorted by expert, then tile by tile.

Sorting counts, so that places follow from the choice alone. A tile's weights are widened once, to bfloat16, which
holds an E2M1 value times its E4M3 scale exactly, and go through the matrix units (W4A16).
"""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

WIDE_UNIT = tl.constexpr(128.0)
"""What widened weights have to be multiplied by."""


@triton.jit
def count_picks(
    chosen: tl.tensor, counts: tl.tensor, picks: tl.tensor, E: tl.constexpr, BE: tl.constexpr, PIECE: tl.constexpr
) -> None:
    """`counts` int32 [pieces, BE]: picks of each of `E` experts in one piece of `chosen` int32 [picks].

    Scores that are no numbers may name an expert that there is not: it counts as the last one, here and in `places`.
    """
    place = tl.program_id(0) * PIECE + tl.arange(0, PIECE)
    here = place < picks
    found = tl.histogram(tl.minimum(tl.load(chosen + place, mask=here, other=0), E - 1), BE, mask=here)
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
    """`places` int32 [picks]: where each pick stands when sorted by expert, equal ones as they came; `order`: back."""
    at = tl.arange(0, PIECE)
    pick = tl.program_id(0) * PIECE + at
    here = pick < picks
    expert = tl.minimum(tl.load(chosen + pick, mask=here, other=E), E - 1)
    same = (expert[:, None] == expert[None, :]) & (at[None, :] < at[:, None])
    place = tl.load(starts + expert, mask=here, other=0) + tl.sum(same.to(tl.int32), 1)
    place += tl.load(counts + tl.program_id(0) * BE + expert, mask=here, other=0)
    tl.store(order + place, pick, mask=here)
    tl.store(places + pick, place, mask=here)


@triton.jit
def _scaled(pair: tl.tensor, scale: tl.tensor, TYPE: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """Both of the bfloat16 values in an int32 times a float32 that bfloat16 holds exactly: the lower one first."""
    if tl.bfloat16 == TYPE:
        bits = scale.to(tl.int32, bitcast=True)
        both = bits | ((bits >> 16) & 0xFFFF)
        # Otherwise the compiler takes the pairs apart, multiplies other ones, and puts them together again.
        low, high = tl.inline_asm_elementwise(
            "{ .reg .b32 p; mul.rn.bf16x2 p, $2, $3; mov.b32 {$0, $1}, p; }", "=h,=h,r,r", [pair, both],
            dtype=(tl.bfloat16, tl.bfloat16), is_pure=True, pack=1,
        )  # fmt: skip
    else:
        low = (pair << 16).to(tl.float32, bitcast=True) * scale
        high = (pair & -65536).to(tl.float32, bitcast=True) * scale
    return low, high


@triton.jit
def _wide(words: tl.tensor, scales: tl.tensor, TYPE: tl.constexpr) -> tl.tensor:
    """`TYPE` [N, 8 * W] over the unit, of int32 [N, W] and the E4M3 byte int32 that goes with each word.

    Of a word's values v0 .. v7 the order is v0 v4 v1 v5 v2 v6 v3 v7: two go through each step side by side. The bits of
    a code become exponent and mantissa of a bfloat16 near the bottom of its range; those of a scale become a float32
    there, which two products bring near the top.
    """
    bits = ((scales & 127) << 20) | ((scales & 128) << 24)
    scale = bits.to(tl.float32, bitcast=True) * 1.329227995784916e36 * 6.646139978924579e35  # 2 ** 120, 2 ** 119
    low_0, high_0 = _scaled(((words << 6) & 0x01C001C0) | ((words << 12) & -0x7FFF8000), scale, TYPE)
    low_1, high_1 = _scaled(((words << 2) & 0x01C001C0) | ((words << 8) & -0x7FFF8000), scale, TYPE)
    low_2, high_2 = _scaled(((words >> 2) & 0x01C001C0) | ((words << 4) & -0x7FFF8000), scale, TYPE)
    low_3, high_3 = _scaled(((words >> 6) & 0x01C001C0) | (words & -0x7FFF8000), scale, TYPE)
    low = tl.join(tl.join(low_0, low_2), tl.join(low_1, low_3))
    high = tl.join(tl.join(high_0, high_2), tl.join(high_1, high_3))
    return tl.reshape(tl.join(low, high), (words.shape[0], 8 * words.shape[1]))


@triton.jit
def _packed(
    packed: tl.tensor, scales: tl.tensor, line: tl.tensor, here: tl.tensor, start: tl.tensor, K: tl.constexpr,
    WORDS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:  # fmt: skip
    """Words int32 [N, WORDS] of matrix rows `line` from word `start` on, and the scale byte of each, int32.

    Where rows of scales are whole words, four are read at once: only then can they be fetched ahead of their use.
    """
    word = start + tl.arange(0, WORDS)
    inside = here[:, None] & (word < K // 8)[None, :]
    if (K % 64 == 0) & (WORDS == 8):
        row = scales.to(tl.pointer_type(tl.int32), bitcast=True) + line * (K // 64) + start // 8
        four = tl.load(row, mask=here, other=0)
        factors = (four[:, None] >> (word % 8 // 2 * 8)[None, :]) & 255
    else:
        row = scales + line[:, None] * (K // 16) + (word // 2)[None, :]
        factors = tl.load(row, mask=inside, other=0).to(tl.int32)
    words = packed.to(tl.pointer_type(tl.int32), bitcast=True) + line[:, None] * (K // 8) + word[None, :]
    return tl.load(words, mask=inside, other=0), factors


@triton.jit
def interleave(x: tl.tensor, out: tl.tensor, K: tl.constexpr, BK: tl.constexpr) -> None:
    """One row a program: `out` [R, K] is `x` with every eight values in the order of widened words."""
    at = tl.arange(0, BK)
    row = tl.program_id(0).to(tl.int64) * K
    source = at // 8 * 8 + at % 2 * 4 + at % 8 // 2
    tl.store(out + row + at, tl.load(x + row + source, mask=at < K, other=0), mask=at < K)


@triton.jit
def grouped_in(
    x: tl.tensor, packed: tl.tensor, scales: tl.tensor, singles: tl.tensor, order: tl.tensor, starts: tl.tensor,
    tiles: tl.tensor, out: tl.tensor, TOP: tl.constexpr, N: tl.constexpr, K: tl.constexpr, BE: tl.constexpr,
    ROWS: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, TYPE: tl.constexpr, STAGES: tl.constexpr,
) -> None:  # fmt: skip
    """One tile of an expert's rows and `BN` of its columns a program: `out` [picks, N] = silu(gate) * up, sorted.

    `x` [R, K] is interleaved and so are the columns of `out`. Matrices [E, 2 * N, K / 2], `singles` float32 [E, 2].
    """
    if tl.program_id(0) < tl.load(starts + BE + 1):
        expert = tl.load(tiles + 2 * tl.program_id(0))
        place = tl.load(tiles + 2 * tl.program_id(0) + 1) + tl.arange(0, ROWS)
        mine = place < tl.load(starts + expert + 1)
        row = (tl.load(order + place, mask=mine, other=0) // TOP).to(tl.int64)
        # Gate and up of a column side by side: one product serves both, and a thread finds the pair in its hands.
        both = tl.arange(0, 2 * BN)
        spot = tl.program_id(1) * BN + both // 2
        line = expert.to(tl.int64) * (2 * N) + spot // 8 * 8 + spot % 2 * 4 + spot % 8 // 2 + both % 2 * N
        found = tl.zeros([ROWS, 2 * BN], tl.float32)
        for start in tl.range(0, K, BK, num_stages=STAGES):
            at = start + tl.arange(0, BK)
            rows = tl.load(x + row[:, None] * K + at[None, :], mask=mine[:, None] & (at < K)[None, :], other=0)
            words, factors = _packed(packed, scales, line, spot < N, start // 8, K, BK // 8)
            found = tl.dot(rows, tl.trans(_wide(words, factors, TYPE)), found, input_precision="ieee")
        gate, up = tl.split(tl.reshape(found, (ROWS, BN, 2)))
        gate *= tl.load(singles + 2 * expert) * WIDE_UNIT
        up *= tl.load(singles + 2 * expert + 1) * WIDE_UNIT
        inner = (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty)
        column = tl.program_id(1) * BN + tl.arange(0, BN)
        target = out + place.to(tl.int64)[:, None] * N + column[None, :]
        tl.store(target, inner, mask=mine[:, None] & (column < N)[None, :])


@triton.jit
def grouped_out(
    inner: tl.tensor, packed: tl.tensor, scales: tl.tensor, singles: tl.tensor, starts: tl.tensor, tiles: tl.tensor,
    out: tl.tensor, N: tl.constexpr, K: tl.constexpr, BE: tl.constexpr, ROWS: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr, TYPE: tl.constexpr, STAGES: tl.constexpr,
) -> None:  # fmt: skip
    """One tile of an expert's rows and `BN` of its outputs a program: `out` [picks, N] of interleaved `inner`."""
    if tl.program_id(0) < tl.load(starts + BE + 1):
        expert = tl.load(tiles + 2 * tl.program_id(0))
        place = tl.load(tiles + 2 * tl.program_id(0) + 1) + tl.arange(0, ROWS)
        mine = place < tl.load(starts + expert + 1)
        row = place.to(tl.int64)
        column = tl.program_id(1) * BN + tl.arange(0, BN)
        here = column < N
        line = expert.to(tl.int64) * N + column
        found = tl.zeros([ROWS, BN], tl.float32)
        for start in tl.range(0, K, BK, num_stages=STAGES):
            at = start + tl.arange(0, BK)
            rows = tl.load(inner + row[:, None] * K + at[None, :], mask=mine[:, None] & (at < K)[None, :], other=0)
            words, factors = _packed(packed, scales, line, here, start // 8, K, BK // 8)
            found = tl.dot(rows, tl.trans(_wide(words, factors, TYPE)), found, input_precision="ieee")
        found *= tl.load(singles + expert) * WIDE_UNIT
        target = out + row[:, None] * N + column[None, :]
        tl.store(target, found.to(out.dtype.element_ty), mask=mine[:, None] & here[None, :])


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
        part = tl.load(parts + place * N + column, mask=here, other=0).to(tl.float32)
        total += part * tl.load(weights + row * TOP + rank)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=here)
