"""Triton kernel that widens an MXFP8 matrix, bound by the bytes that it reads and writes."""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from recipes.components.gpu.nvfp4_kernels import e4m3


@triton.jit
def widen(
    values: tl.tensor, scales: tl.tensor, out: tl.tensor, total: tl.tensor, BLOCK: tl.constexpr, BLOCKS: tl.constexpr
) -> None:
    """`BLOCKS` of `total` blocks of `BLOCK` E4M3 bytes a program, each times its power of two, an E8M0 byte.

    Written out as integers until the value is whole: a scale of 2^-127 has no exponent of its own.
    """
    block = tl.program_id(0) * BLOCKS + tl.arange(0, BLOCKS)
    here = (block < total)[:, None]
    at = block.to(tl.int64)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    byte = tl.load(values + at, mask=here, other=0).to(tl.int32)
    scale = tl.load(scales + block, mask=block < total, other=0).to(tl.int32)
    factor = tl.where(scale == 0, 1 << 22, scale << 23).to(tl.float32, bitcast=True)
    tl.store(out + at, (e4m3(byte) * factor[:, None]).to(out.dtype.element_ty), mask=here)
