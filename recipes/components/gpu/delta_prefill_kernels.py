"""Triton kernels of the gated delta rule over prompt chunks: pieces of rows are prepared alone, then walked in order.

Within a piece the corrections solve a unit triangular system, whose inverse is built from halves: of two neighbouring
diagonal blocks the one below takes -T22 A21 T11. Products of decays stay differences of logarithms, none above zero.
"""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _units(
    source: tl.tensor, row: tl.tensor, live: tl.tensor, width: tl.constexpr, K: tl.constexpr, BK: tl.constexpr
) -> tl.tensor:
    """float32 [C, BK]: heads of `source` at rows of `width`, each of length one."""
    at = tl.arange(0, BK)
    value = tl.load(source + row[:, None] * width + at[None, :], mask=live[:, None] & (at < K)[None, :], other=0)
    wide = value.to(tl.float32)
    return wide * tl.rsqrt(tl.sum(wide * wide, 1) + 1e-6)[:, None]


@triton.jit
def _solved(inverse: tl.tensor, asked: tl.tensor, TYPE: tl.constexpr) -> tl.tensor:
    """`inverse` float32 [C, C] times `asked` [C, N] of `TYPE`: two numbers of that type hold what one would lose."""
    high = inverse.to(TYPE)
    low = (inverse - high.to(tl.float32)).to(TYPE)
    found = tl.dot(high, asked, input_precision="ieee")
    return tl.dot(low, asked, found, input_precision="ieee").to(TYPE)


@triton.jit
def prepare(
    mixed: tl.tensor, rates: tl.tensor, strengths: tl.tensor, decay_log: tl.tensor, decay_bias: tl.tensor,
    slots: tl.tensor, counts: tl.tensor, queries: tl.tensor, keys: tl.tensor, solved_keys: tl.tensor,
    solved_values: tl.tensor, scores: tl.tensor, logs: tl.tensor, LINE: tl.tensor, W: tl.constexpr,
    PIECES: tl.constexpr, HK: tl.constexpr, HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr,
    BV: tl.constexpr, C: tl.constexpr, LEVELS: tl.constexpr, TYPE: tl.constexpr,
) -> None:  # fmt: skip
    """One piece of `C` rows and one value head a program: all that does not depend on the state before the piece.

    Tiles, one a piece and head: `queries`, `keys` [C, BK] of key heads; `solved_keys` [C, BK], `solved_values` [BV, C]:
    the system's solutions for what the state and the values ask; `scores` [C, C]; `logs` float32 [C], summed decays.
    Rows of `rates` and `strengths` lie LINE apart. The system is solved in float16, unless all is float32: it and its
    inverse are of products of unit vectors, decays and strengths, none larger than one.
    """
    piece, head = tl.program_id(0), tl.program_id(1)
    lane, start = piece // PIECES, piece % PIECES * C
    count = tl.where(tl.load(slots + lane) >= 0, tl.load(counts + lane), 0)
    if start < count:
        width: tl.constexpr = 2 * HK * K + HV * V
        key_head = head // (HV // HK)
        i, at = tl.arange(0, C), tl.arange(0, BK)
        live = start + i < count
        row = (lane * W + start + i).to(tl.int64)
        query = (_units(mixed + key_head * K, row, live, width, K, BK) * (K**-0.5)).to(TYPE)
        key = _units(mixed + (HK + key_head) * K, row, live, width, K, BK).to(TYPE)
        at_v = tl.arange(0, BV)
        place = mixed + row[:, None] * width + 2 * HK * K + head * V + at_v[None, :]
        value = tl.load(place, mask=live[:, None] & (at_v < V)[None, :], other=0).to(TYPE)
        raw = tl.load(rates + row * LINE + head, mask=live, other=0).to(tl.float32) + tl.load(decay_bias + head)
        softplus = tl.where(raw > 20.0, raw, tl.log(1.0 + tl.exp(tl.minimum(raw, 20.0))))
        log = tl.cumsum(tl.where(live, -tl.exp(tl.load(decay_log + head).to(tl.float32)) * softplus, 0.0), 0)
        beta = tl.sigmoid(tl.load(strengths + row * LINE + head, mask=live, other=0).to(tl.float32))
        beta = tl.where(live, beta, 0.0)
        tile = (piece * HV + head).to(tl.int64)
        tl.store(logs + tile * C + i, log)
        line = i[:, None] * BK + at[None, :]
        if head % (HV // HK) == 0:
            shared = (piece * HK + key_head).to(tl.int64) * (C * BK)
            tl.store(queries + shared + line, query)
            tl.store(keys + shared + line, key)
        lower = i[:, None] >= i[None, :]
        between = tl.where(lower, tl.exp(tl.minimum(log[:, None] - log[None, :], 0.0)), 0.0)
        weight = tl.dot(query, tl.trans(key), input_precision="ieee") * between
        tl.store(scores + tile * (C * C) + i[:, None] * C + i[None, :], weight.to(TYPE))
        system = tl.dot(key, tl.trans(key), input_precision="ieee") * between * beta[:, None]
        below = i[:, None] - i[None, :]
        inverse = tl.where(below == 0, 1.0, tl.where((below == 1) & (i % 2 == 1)[:, None], -system, 0.0))
        half: tl.constexpr = tl.float32 if tl.float32 == TYPE else tl.float16
        narrow = system.to(half)
        for level in tl.static_range(1, LEVELS):
            block = i >> level
            pair = (block % 2 == 1)[:, None] & (block[:, None] - block[None, :] == 1)
            rounded = inverse.to(half)
            part = tl.dot(tl.where(pair, narrow, 0.0), rounded, input_precision="ieee").to(half)
            inverse -= tl.dot(rounded, part, input_precision="ieee")
        solved = _solved(inverse * (beta * tl.exp(log))[None, :], key, TYPE)
        tl.store(solved_keys + tile * (C * BK) + line, solved)
        solved = _solved(inverse * beta[None, :], value, TYPE)
        tl.store(solved_values + tile * (C * BV) + at_v[:, None] * C + i[None, :], tl.trans(solved))


@triton.jit
def walk(
    states: tl.tensor, slots: tl.tensor, counts: tl.tensor, queries: tl.tensor, keys: tl.tensor,
    solved_keys: tl.tensor, solved_values: tl.tensor, scores: tl.tensor, logs: tl.tensor, out: tl.tensor,
    final: tl.tensor, W: tl.constexpr, PIECES: tl.constexpr, HK: tl.constexpr, HV: tl.constexpr, K: tl.constexpr,
    V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, PART: tl.constexpr, C: tl.constexpr, TYPE: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:  # fmt: skip
    """One lane, value head and `PART` of its columns a program, piece after piece. Everything is held transposed.

    The state is then the left factor of every product, straight from registers. Masked rows of `out` become zero.
    """
    lane, head = tl.program_id(0) // HV, tl.program_id(0) % HV
    slot = tl.load(slots + lane)
    count = tl.where(slot >= 0, tl.load(counts + lane), 0).to(tl.int32)
    v, k, i = tl.program_id(1) * PART + tl.arange(0, PART), tl.arange(0, BK), tl.arange(0, C)
    spot = (head * K + k)[None, :] * V + v[:, None]
    inside = (v < V)[:, None] & (k < K)[None, :]
    held = states + tl.maximum(slot, 0).to(tl.int64) * (HV * K * V)
    state = tl.load(held + spot, mask=inside & (slot >= 0), other=0)
    line = i[:, None] * BK + k[None, :]
    used = tl.cdiv(count, C)
    for number in tl.range(0, used, num_stages=STAGES):
        piece = lane * PIECES + number
        tile = (piece * HV + head).to(tl.int64)
        shared = (piece * HK + head // (HV // HK)).to(tl.int64) * (C * BK)
        solved = tl.load(solved_keys + tile * (C * BK) + line)
        value = tl.load(solved_values + tile * (C * BV) + v[:, None] * C + i[None, :]).to(tl.float32)
        query = tl.load(queries + shared + line)
        key = tl.load(keys + shared + line)
        weight = tl.load(scores + tile * (C * C) + i[:, None] * C + i[None, :])
        log, end = tl.load(logs + tile * C + i), tl.load(logs + tile * C + C - 1)
        before = state.to(TYPE)
        value -= tl.dot(before, tl.trans(solved), input_precision="ieee")
        found = tl.dot(before, tl.trans(query), input_precision="ieee") * tl.exp(log)[None, :]
        found = tl.dot(value.to(TYPE), tl.trans(weight), found, input_precision="ieee")
        added = (value * tl.exp(end - log)[None, :]).to(TYPE)
        state = tl.dot(added, key, state * tl.exp(end), input_precision="ieee")
        index = number * C + i
        place = out + (lane * W + index).to(tl.int64)[None, :] * (HV * V) + head * V + v[:, None]
        found = tl.where((index < count)[None, :], found, 0.0)
        tl.store(place, found.to(out.dtype.element_ty), mask=(index < W)[None, :] & (v < V)[:, None])
    for number in tl.range(used, PIECES):
        index = number * C + i
        place = out + (lane * W + index).to(tl.int64)[None, :] * (HV * V) + head * V + v[:, None]
        nothing = tl.zeros([PART, C], out.dtype.element_ty)
        tl.store(place, nothing, mask=(index < W)[None, :] & (v < V)[:, None])
    tl.store(final + lane.to(tl.int64) * (HV * K * V) + spot, state, mask=inside)
