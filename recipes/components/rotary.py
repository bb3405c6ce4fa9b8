"""Rotary positions as one complex product.

A head stores its pairs side by side, (x0, y0, x1, y1, ...): llama.cpp's layout. Checkpoints that keep them as two
halves are brought to it once, at export (`pair_heads`); scores do not change as long as queries and keys agree.
"""

from __future__ import annotations

import torch
from torch import Tensor


def rotations(length: int, head_size: int, theta: float) -> Tensor:
    """complex64 [length, head_size / 2]: unit rotations of each position, computed in float64."""
    frequencies = theta ** -(torch.arange(0, head_size, 2, dtype=torch.float64) / head_size)
    angles = torch.arange(length, dtype=torch.float64)[:, None] * frequencies
    return torch.polar(torch.ones_like(angles), angles).to(torch.complex64)


def rotate(heads: Tensor, turns: Tensor) -> None:
    """Turns `heads` float32 [R, H, D] in place by `turns` complex64 [R, 1, D / 2]. Rows may be strided, heads not."""
    torch.view_as_complex(heads.view(*heads.shape[:2], -1, 2)).mul_(turns)


def reference_rotate(heads: Tensor, positions: Tensor, theta: float) -> Tensor:
    """What `rotate` computes, in float64, pair by pair."""
    size = heads.shape[-1]
    frequencies = theta ** -(torch.arange(0, size, 2, dtype=torch.float64) / size)
    angles = (positions.double()[:, None] * frequencies)[:, None]
    x, y = heads.double()[..., 0::2], heads.double()[..., 1::2]
    turned = torch.stack([x * angles.cos() - y * angles.sin(), x * angles.sin() + y * angles.cos()], dim=-1)
    return turned.flatten(-2).float()


def pair_heads(weight: Tensor, heads: int) -> Tensor:
    """Rows of a query or key weight [heads * D, K] from two halves a head to pairs side by side."""
    size = weight.shape[0] // heads
    return weight.view(heads, 2, size // 2, -1).transpose(1, 2).reshape(weight.shape)
