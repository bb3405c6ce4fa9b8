"""Triton kernels of gated hyperconnections, around the two thin matrices that are left to cuBLAS."""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def norm_streams(
    state: tl.tensor, norm: tl.tensor, out: tl.tensor, epsilon: tl.constexpr, S: tl.constexpr, H: tl.constexpr,
    BH: tl.constexpr,
) -> None:  # fmt: skip
    """One row and stream a program: zero-centred norm; `state`, `out` [R, S * H], `norm` [S * H]."""
    stream, at = tl.program_id(1), tl.arange(0, BH)
    here = at < H
    line = (tl.program_id(0).to(tl.int64) * S + stream) * H + at
    value = tl.load(state + line, mask=here, other=0).to(tl.float32)
    weight = 1.0 + tl.load(norm + stream * H + at, mask=here, other=0).to(tl.float32)
    value *= tl.rsqrt(tl.sum(value * value, 0) / H + epsilon) * weight
    tl.store(out + line, value.to(out.dtype.element_ty), mask=here)


@triton.jit
def gate_low(low: tl.tensor, out: tl.tensor, S: tl.constexpr, N: tl.tensor, BLOCK: tl.constexpr) -> None:
    """silu(low / S), element by element."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(low + at, mask=at < N, other=0).to(tl.float32) / S
    tl.store(out + at, (value * tl.sigmoid(value)).to(out.dtype.element_ty), mask=at < N)


@triton.jit
def mix_streams(
    gates: tl.tensor, normed: tl.tensor, out: tl.tensor, S: tl.constexpr, H: tl.constexpr, BH: tl.constexpr
) -> None:
    """A block's input [R, H]: the mean over streams of sigmoid(gates) * normed, both [R, S * H]."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BH + tl.arange(0, BH)
    total = tl.zeros([BH], tl.float32)
    for stream in tl.static_range(S):
        line = (row * S + stream) * H + at
        gate = tl.sigmoid(tl.load(gates + line, mask=at < H, other=0).to(tl.float32))
        total += gate * tl.load(normed + line, mask=at < H, other=0).to(tl.float32)
    tl.store(out + row * H + at, (total / S).to(out.dtype.element_ty), mask=at < H)


@triton.jit
def feed_streams(
    state: tl.tensor, strengths: tl.tensor, output: tl.tensor, S: tl.constexpr, H: tl.constexpr, BH: tl.constexpr
) -> None:
    """Each stream of `state` [R, S * H] += 2 * sigmoid(strength / S) * `output` [R, H]; `strengths` [R, S], raw."""
    row, stream = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = tl.program_id(2) * BH + tl.arange(0, BH)
    strength = 2.0 * tl.sigmoid(tl.load(strengths + row * S + stream).to(tl.float32) / S)
    line = state + (row * S + stream) * H + at
    value = tl.load(line, mask=at < H, other=0).to(tl.float32)
    value += strength * tl.load(output + row * H + at, mask=at < H, other=0).to(tl.float32)
    tl.store(line, value.to(state.dtype.element_ty), mask=at < H)
