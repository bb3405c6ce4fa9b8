"""Triton kernels of n-gram embeddings: ids of a round's rows, drafted ones too, and their rows out of a table."""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from recipes.components.gpu.nvfp4_kernels import E2M1_UNIT, e4m3, small_e2m1


@triton.jit
def ngram_ids(
    history: tl.tensor, tokens: tl.tensor, slots: tl.tensor, counts: tl.tensor, multipliers: tl.tensor,
    primes: tl.tensor, offsets: tl.tensor, ids: tl.tensor, boundary: tl.constexpr, W: tl.tensor,
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


@triton.jit
def gate_values(
    projected: tl.tensor, streams: tl.tensor, key_norm: tl.tensor, query_norm: tl.tensor, own_norm: tl.tensor,
    inputs: tl.tensor, epsilon: tl.constexpr, S: tl.constexpr, H: tl.constexpr, BH: tl.constexpr,
    CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """One row and stream a program: the stream += its gate times the row's value; `inputs` = norm of that.

    `projected` [R, S * H + H]: keys of all streams, then the value they share; `streams`, `inputs` [R, S * H].
    """
    row, stream, at = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.arange(0, BH)
    here, weight = at < H, stream * H + at
    key_gain = 1.0 + tl.load(key_norm + weight, mask=here, other=0).to(tl.float32)
    query_gain = 1.0 + tl.load(query_norm + weight, mask=here, other=0).to(tl.float32)
    gain = 1.0 + tl.load(own_norm + weight, mask=here, other=0).to(tl.float32)
    if CHAINED:
        gdc_wait()
        gdc_launch_dependents()
    key = tl.load(projected + row * (S * H + H) + weight, mask=here, other=0).to(tl.float32)
    value = tl.load(projected + row * (S * H + H) + S * H + at, mask=here, other=0).to(tl.float32)
    query = tl.load(streams + row * (S * H) + weight, mask=here, other=0).to(tl.float32)
    divisor = tl.rsqrt(tl.sum(key * key, 0) / H + epsilon) * tl.rsqrt(tl.sum(query * query, 0) / H + epsilon)
    score = tl.sum(key * key_gain * query * query_gain, 0) * divisor * (H**-0.5)
    root = tl.sqrt(tl.maximum(tl.abs(score), 1e-6))
    gate = tl.sigmoid(tl.where(score > 0, root, tl.where(score < 0, -root, 0.0)))
    value *= gate
    tl.store(streams + row * (S * H) + weight, query + value, mask=here)
    normed = value * tl.rsqrt(tl.sum(value * value, 0) / H + epsilon) * gain
    tl.store(inputs + row * (S * H) + weight, normed.to(inputs.dtype.element_ty), mask=here)
