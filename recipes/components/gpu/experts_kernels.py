"""Triton kernels of a mixture of experts over NVFP4 weights, for few rows: each expert's bytes are read where they lie.

Activations are not rounded to four bits (W4A16). A program holds a few outputs of one expert; a row's experts are added
in the order of their rank, so that a result does not depend on which programs were quick.
"""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from recipes.components.gpu.nvfp4_kernels import E2M1_UNIT, e4m3, small_e2m1


@triton.jit
def route(
    scores: tl.tensor, weights: tl.tensor, chosen: tl.tensor, E: tl.constexpr, BE: tl.constexpr, TOP: tl.constexpr,
    BT: tl.constexpr,
) -> None:  # fmt: skip
    """One row a program: the `TOP` best of softmax(scores [R, E]), renormalised; equal ones go to the lower expert."""
    row = tl.program_id(0)
    at = tl.arange(0, BE)
    score = tl.load(scores + row * E + at, mask=at < E, other=-float("inf")).to(tl.float32)
    best = tl.max(score, 0)
    left = tl.where(at < E, tl.exp(score - best), -1.0)
    total = 0.0
    for rank in tl.static_range(TOP):
        highest = tl.max(left, 0)
        expert = tl.min(tl.where(left == highest, at, BE), 0)
        left = tl.where(at == expert, -1.0, left)
        total += highest
        tl.store(weights + row * TOP + rank, highest)
        tl.store(chosen + row * TOP + rank, expert)
    rank = tl.arange(0, BT)
    tl.debug_barrier()
    place = weights + row * TOP + rank
    tl.store(place, tl.load(place, mask=rank < TOP, other=0) / total, mask=rank < TOP)


@triton.jit
def _packed(
    packed: tl.tensor, scales: tl.tensor, line: tl.tensor, here: tl.tensor, K: tl.constexpr, START: tl.constexpr,
    WORDS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:  # fmt: skip
    """Words of eight values int32 [BN, WORDS] of rows `line` of [.., K / 2], and the block scales that they share."""
    word = START + tl.arange(0, WORDS)[None, :]
    inside = here[:, None] & (word < K // 8)
    row = line[:, None]
    words = packed.to(tl.pointer_type(tl.int32), bitcast=True) + row * (K // 8) + word
    return tl.load(words, mask=inside, other=0), tl.load(scales + row * (K // 16) + word // 2, mask=inside, other=0)


@triton.jit
def _sums(
    x: tl.tensor, words: tl.tensor, scales: tl.tensor, K: tl.constexpr, START: tl.constexpr, WORDS: tl.constexpr
) -> tl.tensor:
    """float32 [BN]: products of one piece with `x` [K], over the unit and without the matrix's own scale."""
    word = START + tl.arange(0, WORDS)[None, :]
    total = tl.zeros(words.shape, tl.float32)
    for pair in tl.static_range(4):
        if x.dtype.element_ty == tl.bfloat16:
            inputs = x.to(tl.pointer_type(tl.int32), bitcast=True) + word * 4 + pair
            both = tl.load(inputs, mask=word < K // 8, other=0)
            even = (both << 16).to(tl.float32, bitcast=True)
            odd = (both & -65536).to(tl.float32, bitcast=True)
        else:
            even = tl.load(x + word * 8 + 2 * pair, mask=word < K // 8, other=0).to(tl.float32)
            odd = tl.load(x + word * 8 + 2 * pair + 1, mask=word < K // 8, other=0).to(tl.float32)
        total += small_e2m1(words >> (8 * pair)) * even
        total += small_e2m1(words >> (8 * pair + 4)) * odd
    return tl.sum(total * e4m3(scales.to(tl.int32)), 1)


@triton.jit
def _matrix_rows(
    x: tl.tensor, packed: tl.tensor, scales: tl.tensor, line: tl.tensor, here: tl.tensor, K: tl.constexpr,
    W0: tl.constexpr, W1: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """float32 [BN] of `x` [K] and matrix rows `line`, in two pieces of words; all weights are asked for at once."""
    words, factors = _packed(packed, scales, line, here, K, 0, W0)
    words_1, factors_1 = words, factors
    if W1 > 0:
        words_1, factors_1 = _packed(packed, scales, line, here, K, W0, W1)
    found = _sums(x, words, factors, K, 0, W0)
    if W1 > 0:
        found += _sums(x, words_1, factors_1, K, W0, W1)
    return found * E2M1_UNIT


@triton.jit
def experts_in(
    x: tl.tensor, packed: tl.tensor, scales: tl.tensor, singles: tl.tensor, chosen: tl.tensor, out: tl.tensor,
    TOP: tl.constexpr, N: tl.constexpr, K: tl.constexpr, BN: tl.constexpr, W0: tl.constexpr, W1: tl.constexpr,
) -> None:  # fmt: skip
    """`out` [R, TOP, N] = silu(gate) * up of each row's experts; matrices [E, 2 * N, ...], `singles` [E, 2]."""
    pick = tl.program_id(0)
    expert = tl.load(chosen + pick).to(tl.int64)
    both = tl.arange(0, 2 * BN)
    column = tl.program_id(1) * BN + both // 2
    line = expert * (2 * N) + column + both % 2 * N
    row = x + (pick // TOP).to(tl.int64) * K
    found = _matrix_rows(row, packed, scales, line, column < N, K, W0, W1)
    gate, up = tl.split(tl.reshape(found * tl.load(singles + 2 * expert + both % 2), (BN, 2)))
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    inner = (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty)
    tl.store(out + pick.to(tl.int64) * N + column, inner, mask=column < N)


@triton.jit
def experts_out(
    inner: tl.tensor, packed: tl.tensor, scales: tl.tensor, singles: tl.tensor, chosen: tl.tensor, out: tl.tensor,
    N: tl.constexpr, K: tl.constexpr, BN: tl.constexpr, W0: tl.constexpr, W1: tl.constexpr,
) -> None:  # fmt: skip
    """`out` float32 [R, TOP, N]: each expert's output of its own `inner` [R, TOP, K]."""
    pick = tl.program_id(0)
    expert = tl.load(chosen + pick).to(tl.int64)
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    row = inner + pick.to(tl.int64) * K
    found = _matrix_rows(row, packed, scales, expert * N + column, column < N, K, W0, W1)
    tl.store(out + pick.to(tl.int64) * N + column, found * tl.load(singles + expert), mask=column < N)


@triton.jit
def add_experts(
    parts: tl.tensor, weights: tl.tensor, shared: tl.tensor, gate: tl.tensor, out: tl.tensor, TOP: tl.constexpr,
    N: tl.constexpr, BN: tl.constexpr,
) -> None:  # fmt: skip
    """`out` [R, N] = sigmoid(gate [R]) * shared [R, N] + weighted sum of `parts` [R, TOP, N] in order of rank."""
    row = tl.program_id(0)
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    at = row.to(tl.int64) * N + column
    total = tl.sigmoid(tl.load(gate + row).to(tl.float32))
    total = total * tl.load(shared + at, mask=column < N, other=0).to(tl.float32)
    for rank in tl.static_range(TOP):
        pick = row * TOP + rank
        part = tl.load(parts + pick.to(tl.int64) * N + column, mask=column < N, other=0)
        total += part * tl.load(weights + pick)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=column < N)
