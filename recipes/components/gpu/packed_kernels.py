"""Triton functions that take few rows through weights of four or eight bits, from memory to matrix units in registers.

A warp owns tiles of 16 outputs and walks the inputs in chunks of 128, of which each group of four threads takes 32
apiece; which inputs meet in one step of the matrix units is free, so both sides are arranged as the loads leave them,
and no value crosses threads. In bfloat16 two values are widened at once, exactly: their bits are put in place by
masks, and one multiplication brings the block's scale. In float32 (Triton's interpreter) it is plain arithmetic.

Tensors of weights are [8, S, T, ...]: eight outputs apart by one, S warps, T times eight outputs (an even number).
Tensors of inputs are [8, S, P, 4, 32]: P times eight rows. `S` warps split the inputs or own outputs of their own.
"""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from recipes.components.gpu.nvfp4_kernels import E2M1_UNIT, e4m3, small_e2m1

FP4_UNIT = tl.constexpr(65536.0)
"""What products with `fp4_weights` in bfloat16 have to be multiplied by; `E2M1_UNIT` in float32."""
FP8_UNIT = tl.constexpr(float(1 << 20))
"""The same for `fp8_weights`."""
_SIGNS = tl.constexpr(-0x7FFF8000)
_FP4_PLACES = tl.constexpr(-0x7E3F7E40)
_FP8_SIZES = tl.constexpr(0x07F007F0)
_HALF_WAY = tl.constexpr(0x79007900)
"""Twice 2^115: two of these bring an E4M3 scale from where its bits put it (over 2^120) to 2^110 times itself."""


@triton.jit
def fp4_whole(found: tl.tensor, TYPE: tl.constexpr) -> tl.tensor:
    """Sums of `fp4_product`, or what they are to be multiplied by, in whole units."""
    return found * (E2M1_UNIT if tl.float32 == TYPE else FP4_UNIT)


@triton.jit
def turned(at: tl.tensor) -> tl.tensor:
    """Where input `at` lies when each 32 are stored as the matrix units take them from words of codes.

    0, 4, 16, 20, 8, 12, 24, 28, then the same from 1, 2 and 3 on.
    """
    return at // 32 * 32 + at % 4 * 8 + at % 16 // 8 * 4 + at % 32 // 16 * 2 + at % 8 // 4


@triton.jit
def take_inputs(
    x: tl.tensor, lines: tl.tensor, chunk: tl.tensor, K: tl.constexpr, P: tl.constexpr, S: tl.constexpr,
    WHOLE: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """[8, S, P, 4, 32] of rows that begin at `lines` [8, 1, P, 1, 1] (elements); `chunk` [1, S, 1, 1, 1].

    `WHOLE`: no chunk has less than 128 inputs, or none.
    """
    part, each = tl.arange(0, 4)[None, None, None, :, None], tl.arange(0, 32)[None, None, None, None, :]
    at = chunk * 128 + (each // 8) * 32 + part * 8 + each % 8
    return tl.load(x + lines + at) if WHOLE else tl.load(x + lines + at, mask=at < K, other=0)


@triton.jit
def still_packed(words: tl.tensor) -> tl.tensor:
    """The same words: in a loop that uses them again they are widened again, not kept wide in too many registers."""
    return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [words], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def _mul2(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """Two products of bfloat16 at once, in int32."""
    return tl.inline_asm_elementwise(
        "mul.rn.bf16x2 $0, $1, $2;", "=r,r,r", [a, b], dtype=tl.int32, is_pure=True, pack=1
    )


@triton.jit
def _halves(pairs: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """Two bfloat16 of each int32, the low half first."""
    low = pairs.to(tl.int16).to(tl.bfloat16, bitcast=True)
    return low, (pairs >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)


@triton.jit
def _fp4_bits(words: tl.tensor, J: tl.constexpr) -> tl.tensor:
    """Codes `J` and `J + 4` of each word as two bfloat16 over 2^126: subnormal ones come out right.

    A product puts a code twice: its sign at 15, its size at 8. Multipliers work beside the units that mask.
    """
    if J >= 2:
        words = words >> 8
    twice = (words & 0x000F000F) * 4160 if J % 2 == 0 else (words & 0x00F000F0) * 260
    return twice & _FP4_PLACES


@triton.jit
def fp4_scales(pairs: tl.tensor, S: tl.constexpr, T: tl.constexpr, TYPE: tl.constexpr) -> tl.tensor:
    """[8, S, T, 16] for words of eight codes, from int32 [4, 8, S, T]: each thread's two E4M3 bytes.

    Float32, or in bfloat16 two of each, times 2^110.
    """
    pairs = tl.permute(pairs, (1, 2, 3, 0))
    bytes = (pairs[:, :, :, :, None] >> (8 * tl.arange(0, 2))) & 255
    twice = bytes * 0x00100010
    scales = e4m3(bytes) if tl.float32 == TYPE else _mul2(_mul2(twice, _HALF_WAY), _HALF_WAY)
    return tl.reshape(tl.broadcast_to(scales[:, :, :, :, :, None], (8, S, T, 4, 2, 2)), (8, S, T, 16))


@triton.jit
def fp4_pair(words: tl.tensor, scales: tl.tensor, J: tl.constexpr, TYPE: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """Codes `J` and `J + 4` of each word times its scale, before `fp4_whole`."""
    if tl.float32 == TYPE:
        low, high = small_e2m1(words >> (4 * J)) * scales, small_e2m1(words >> (4 * J + 16)) * scales
    else:
        low, high = _halves(_mul2(_fp4_bits(words, J), scales))
    return low, high


@triton.jit
def _fp4_weights(
    words: tl.tensor, scales: tl.tensor, J: tl.constexpr, S: tl.constexpr, T: tl.constexpr, TYPE: tl.constexpr
) -> tl.tensor:
    """[S, 8 * T, 32] of codes `J` and `J + 4` of words [8, S, T, 16]."""
    low, high = fp4_pair(words, scales, J, TYPE)
    both = tl.reshape(tl.join(low, high), (8, S, T, 4, 2, 2, 2))
    return tl.reshape(tl.permute(both, (1, 2, 0, 4, 3, 5, 6)), (S, T * 8, 32))


@triton.jit
def fp4_product(
    x: tl.tensor, words: tl.tensor, scales: tl.tensor, before: tl.tensor, S: tl.constexpr, T: tl.constexpr,
    P: tl.constexpr, TURNED: tl.constexpr, TYPE: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """float32 [S, 8 * T, 8 * P] before `fp4_whole`: `before` and what a chunk adds. Words int32 [8, S, T, 16].

    `TURNED`: inputs are in the order of `turned`, in which registers hold what one step of the matrix units takes.
    """
    x = tl.reshape(x, (8, S, P, 2, 2, 4, 2, 2, 2))
    if TURNED:
        even, odd = tl.split(tl.permute(x, (1, 7, 5, 6, 8, 2, 0, 3, 4)))
    else:
        even, odd = tl.split(tl.permute(x, (1, 3, 5, 4, 6, 2, 0, 7, 8)))
    x0, x2 = tl.split(even)
    x1, x3 = tl.split(odd)
    shape: tl.constexpr = (S, 32, 8 * P)
    x0, x1, x2, x3 = tl.reshape(x0, shape), tl.reshape(x1, shape), tl.reshape(x2, shape), tl.reshape(x3, shape)
    found = tl.dot(_fp4_weights(words, scales, 0, S, T, TYPE), x0.to(TYPE), before, input_precision="ieee")
    found = tl.dot(_fp4_weights(words, scales, 1, S, T, TYPE), x1.to(TYPE), found, input_precision="ieee")
    found = tl.dot(_fp4_weights(words, scales, 2, S, T, TYPE), x2.to(TYPE), found, input_precision="ieee")
    return tl.dot(_fp4_weights(words, scales, 3, S, T, TYPE), x3.to(TYPE), found, input_precision="ieee")


@triton.jit
def fp8_scales(bytes: tl.tensor, S: tl.constexpr, T: tl.constexpr, TYPE: tl.constexpr) -> tl.tensor:
    """[8, S, T, 1, 4, 1] of E8M0 bytes int32 [4, 8, S, T]; in bfloat16 two of each, times 2^100, the largest kept."""
    bytes = tl.permute(bytes, (1, 2, 3, 0))
    twice = tl.minimum(bytes + 100, 254) * 0x00800080
    scales = tl.exp2(bytes.to(tl.float32) - 127.0) if tl.float32 == TYPE else twice
    return tl.reshape(scales, (8, S, T, 1, 4, 1))


@triton.jit
def _fp8_weights(
    words: tl.tensor, scales: tl.tensor, J: tl.constexpr, S: tl.constexpr, T: tl.constexpr, TYPE: tl.constexpr
) -> tl.tensor:
    """[S, 8 * T, 64] of bytes `J` and `J + 2` of words [8, S, T, 2, 16]."""
    words = tl.reshape(words, (8, S, T, 2, 4, 4))
    if tl.float32 == TYPE:
        low, high = e4m3((words >> (8 * J)) & 255) * scales, e4m3((words >> (8 * J + 16)) & 255) * scales
    elif J == 0:
        low, high = _halves(_mul2(((words << 8) & _SIGNS) | ((words << 4) & _FP8_SIZES), scales))
    else:
        low, high = _halves(_mul2((words & _SIGNS) | ((words >> 4) & _FP8_SIZES), scales))
    both = tl.reshape(tl.join(low, high), (8, S, T, 2, 4, 2, 2, 2))
    return tl.reshape(tl.permute(both, (1, 2, 0, 3, 5, 4, 6, 7)), (S, T * 8, 64))


@triton.jit
def fp8_product(
    x: tl.tensor, words: tl.tensor, scales: tl.tensor, before: tl.tensor, S: tl.constexpr, T: tl.constexpr,
    P: tl.constexpr, TYPE: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """float32 [S, 8 * T, 8 * P]: `before` and what a chunk adds; words int32 [8, S, T, 2, 16], scales as above."""
    x = tl.reshape(x, (8, S, P, 2, 2, 4, 2, 2, 2))
    x0, x1 = tl.split(tl.permute(x, (1, 3, 4, 5, 6, 7, 2, 0, 8)))
    x0, x1 = tl.reshape(x0, (S, 64, 8 * P)), tl.reshape(x1, (S, 64, 8 * P))
    found = tl.dot(_fp8_weights(words, scales, 0, S, T, TYPE), x0.to(TYPE), before, input_precision="ieee")
    return tl.dot(_fp8_weights(words, scales, 1, S, T, TYPE), x1.to(TYPE), found, input_precision="ieee")
