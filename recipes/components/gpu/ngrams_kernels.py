"""Triton kernels of n-gram embeddings: ids of a round's rows, drafted ones too, and their rows out of a table."""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from recipes.components.gpu.nvfp4_kernels import E2M1_UNIT, e4m3, small_e2m1


@triton.jit
def ngram_ids(
    history: tl.tensor, tokens: tl.tensor, slots: tl.tensor, counts: tl.tensor, multipliers: tl.tensor,
    primes: tl.tensor, offsets: tl.tensor, ids: tl.tensor, boundary: tl.constexpr, W: tl.constexpr,
    DEPTH: tl.constexpr, HEADS: tl.constexpr, BH: tl.constexpr,
) -> None:  # fmt: skip
    """One row a program: `ids` int64 [B * W, DEPTH * HEADS], zero where masked; `history` int64 [rows, DEPTH]."""
    row = tl.program_id(0)
    lane, index = row // W, row % W
    slot, count = tl.load(slots + lane), tl.load(counts + lane)
    live = (slot >= 0) & (index < count)
    head = tl.arange(0, BH)
    mixed = tl.load(tokens + row, mask=live, other=0) * tl.load(multipliers)
    hidden = slot < -1
    for order in tl.static_range(1, DEPTH + 1):
        place = index + DEPTH - order
        past = tl.load(history + tl.maximum(slot, 0) * DEPTH + place, mask=live & (place < DEPTH), other=0)
        past += tl.load(tokens + lane * W + place - DEPTH, mask=live & (place >= DEPTH), other=0)
        hidden = hidden | (past == boundary)
        mixed = mixed ^ (tl.where(hidden, boundary, past) * tl.load(multipliers + order))
        at = (order - 1) * HEADS + head
        prime = tl.load(primes + at, mask=head < HEADS, other=1)
        rest = mixed % prime
        rest = tl.where(rest < 0, rest + prime, rest) + tl.load(offsets + at, mask=head < HEADS, other=0)
        tl.store(ids + row.to(tl.int64) * (DEPTH * HEADS) + at, tl.where(live, rest, 0), mask=head < HEADS)


@triton.jit
def gather_rows(
    table: tl.tensor, scale: tl.tensor, ids: tl.tensor, out: tl.tensor, STRIDE: tl.tensor, SIZE: tl.constexpr,
    BLOCKS: tl.constexpr,
) -> None:  # fmt: skip
    """One table row a program: `out` [n, SIZE] of NVFP4 rows of `STRIDE` bytes: values, then block scales."""
    which = tl.program_id(0).to(tl.int64)
    line = table + tl.load(ids + which) * STRIDE
    block, byte = tl.arange(0, BLOCKS)[:, None], tl.arange(0, 8)[None, :]
    here = block < SIZE // 16
    pair = tl.load(line + block * 8 + byte, mask=here, other=0).to(tl.int32)
    factor = e4m3(tl.load(line + SIZE // 2 + block, mask=here, other=0).to(tl.int32)) * (tl.load(scale) * E2M1_UNIT)
    at = out + which * SIZE + block * 16 + byte * 2
    tl.store(at, (small_e2m1(pair & 15) * factor).to(out.dtype.element_ty), mask=here)
    tl.store(at + 1, (small_e2m1(pair >> 4) * factor).to(out.dtype.element_ty), mask=here)
