"""Triton kernel that widens an MXFP8 matrix, bound by the bytes that it reads and writes."""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def widen(
    values: tl.tensor, scales: tl.tensor, out: tl.tensor, total: tl.tensor, BLOCK: tl.constexpr, BLOCKS: tl.constexpr
) -> None:
    """`BLOCKS` of `total` blocks of `BLOCK` E4M3 bytes a program, each times its power of two, an E8M0 byte.

    A byte's bits become those of a float32 over 2^120, the subnormal ones too. A scale of 2^-127 has no exponent.
    """
    block = tl.program_id(0) * BLOCKS + tl.arange(0, BLOCKS)
    here = (block < total)[:, None]
    at = block.to(tl.int64)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    byte = tl.load(values + at, mask=here, other=0).to(tl.int32)
    scale = tl.load(scales + block, mask=block < total, other=0).to(tl.int32)
    factor = tl.where(scale == 0, 1 << 22, scale << 23).to(tl.float32, bitcast=True)
    bits = ((byte & 127) << 20) | ((byte & 128) << 24)
    value = bits.to(tl.float32, bitcast=True) * 1.329227995784916e36  # 2 ** 120
    tl.store(out + at, (value * factor[:, None]).to(out.dtype.element_ty), mask=here)
