"""NVFP4: two E2M1 values a byte, one E4M3 scale for 16 of them along the inputs, one float32 scale a matrix.

Runs in `ignition` and, for the reference arithmetic, in the worker. value = E2M1 * E4M3 * global scale; the even column
is the low nibble (design/models.md, section 1.5).
"""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 16
LARGEST = 6.0
"""The largest E2M1 magnitude."""
_LARGEST_SCALE = 448.0
"""The largest E4M3 magnitude."""
_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def _table(device: torch.device) -> Tensor:
    positive = torch.tensor(_MAGNITUDES, dtype=torch.float32, device=device)
    return torch.cat([positive, -positive])


def unpack(packed: Tensor) -> Tensor:
    """E2M1 values float32 [..., n] of bytes uint8 [..., n/2]."""
    codes = torch.stack([packed & 15, packed >> 4], dim=-1).flatten(-2)
    return _table(packed.device)[codes.long()]


def dequantize(packed: Tensor, scales: Tensor, global_scale: Tensor) -> Tensor:
    """The matrix float32 [out, in] of `packed` uint8 [out, in/2], `scales` float8_e4m3fn [out, in/16] and a scalar."""
    values = unpack(packed)
    grouped = torch.unflatten(values, -1, (-1, BLOCK)) * scales.to(torch.float32).unsqueeze(-1)
    return grouped.flatten(-2) * global_scale.to(torch.float32)


def round_to_e2m1(values: Tensor) -> Tensor:
    """Codes uint8 of the nearest E2M1 values; half-way cases go to the even code, beyond the largest it saturates."""
    magnitudes = torch.tensor(_MAGNITUDES, dtype=torch.float32, device=values.device)
    size = values.abs().clamp(max=LARGEST)
    upper = torch.searchsorted(magnitudes, size).clamp(max=len(_MAGNITUDES) - 1)
    lower = (upper - 1).clamp(min=0)
    below, above = size - magnitudes[lower], magnitudes[upper] - size
    nearest = torch.where((below < above) | ((below == above) & (lower % 2 == 0)), lower, upper)
    return (nearest + 8 * (values < 0)).to(torch.uint8)


def global_scale_of(matrix: Tensor) -> Tensor:
    """The float32 scalar that lets the largest block scale of the matrix just fit E4M3."""
    largest = matrix.abs().max().to(torch.float32)
    return torch.clamp(largest / (LARGEST * _LARGEST_SCALE), min=torch.finfo(torch.float32).tiny)


def quantize(matrix: Tensor, global_scale: Tensor) -> tuple[Tensor, Tensor]:
    """Bytes uint8 [out, in/2] and scales float8_e4m3fn [out, in/16] of a float32 matrix [out, in]."""
    blocks = torch.unflatten(matrix.to(torch.float32), -1, (-1, BLOCK))
    wanted = blocks.abs().amax(-1) / (LARGEST * global_scale)
    scales = wanted.clamp(max=_LARGEST_SCALE).to(torch.float8_e4m3fn)
    unit = scales.to(torch.float32).unsqueeze(-1) * global_scale
    codes = round_to_e2m1(torch.where(unit > 0, blocks / unit, torch.zeros_like(blocks))).flatten(-2)
    return codes[..., 0::2] | (codes[..., 1::2] << 4), scales
