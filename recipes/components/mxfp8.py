"""MXFP8: E4M3 values with one power-of-two scale (E8M0) for 32 of them along the inputs.

Runs in `ignition` and, for the reference arithmetic, in the worker (design/models.md, section 1.5).
"""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 32
_BIAS = 127
_LARGEST_EXPONENT = 8
"""E4M3 reaches 448, which is below 2^9: a block's scale has the exponent of its largest value less eight."""


def dequantize(values: Tensor, scales: Tensor) -> Tensor:
    """The matrix float32 [out, in] of `values` float8_e4m3fn [out, in] and `scales` uint8 [out, in/32] (E8M0)."""
    exponents = torch.exp2(scales.to(torch.float32) - _BIAS)
    grouped = torch.unflatten(values.to(torch.float32), -1, (-1, BLOCK)) * exponents.unsqueeze(-1)
    return grouped.flatten(-2)


def quantize(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Values float8_e4m3fn [out, in] and scales uint8 [out, in/32] of a float32 matrix [out, in]."""
    blocks = torch.unflatten(matrix.to(torch.float32), -1, (-1, BLOCK))
    largest = blocks.abs().amax(-1).clamp(min=torch.finfo(torch.float32).tiny)
    exponents = (torch.floor(torch.log2(largest)) - _LARGEST_EXPONENT).clamp(-_BIAS, _BIAS)
    scaled = (blocks / torch.exp2(exponents).unsqueeze(-1)).clamp(-448.0, 448.0)
    return scaled.flatten(-2).to(torch.float8_e4m3fn), (exponents + _BIAS).to(torch.uint8)
