"""NVFP4 inside Triton kernels: bytes to float32 by integer arithmetic, the same everywhere."""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

E2M1_UNIT = tl.constexpr(16384.0)
"""What `small_e2m1` has to be multiplied by."""


@triton.jit
def small_e2m1(code: tl.tensor) -> tl.tensor:
    """float32 of a four-bit code int32 (0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives) over `E2M1_UNIT`.

    Its bits are those of a half float of that size, subnormals included; the unit goes into a factor that is at hand.
    """
    bits = ((code & 7) << 9) | ((code & 8) << 12)
    return bits.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def e4m3(byte: tl.tensor) -> tl.tensor:
    """float32 of an E4M3 byte int32 that is no NaN."""
    exponent, mantissa = (byte >> 3) & 15, byte & 7
    significand = tl.where(exponent == 0, mantissa, 8 + mantissa).to(tl.float32)
    power = ((tl.maximum(exponent, 1) + 117) << 23).to(tl.float32, bitcast=True)
    return tl.where(byte & 128 == 0, significand, -significand) * power
