"""NVFP4 activations once more, over the number types of another package: what ours is compared with."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import torch
from torch import Tensor

BLOCK = 16


def rounded_by_ml_dtypes(rows: Tensor, scale: Tensor) -> Tensor:
    """`rows` [R, n] float32, rounded and dequantised in float32; ml_dtypes rounds to E4M3 and E2M1."""
    blocks, unit = rows.numpy().reshape(len(rows), -1, BLOCK), np.float32(float(scale))
    largest = np.abs(blocks).max(-1, keepdims=True)
    block_scales = np.minimum(largest / (np.float32(6) * unit), np.float32(448)).astype(ml_dtypes.float8_e4m3fn)
    steps = block_scales.astype(np.float32) * unit
    quotients = np.divide(blocks, steps, out=np.zeros_like(blocks), where=steps > 0)
    codes = np.clip(quotients, -6, 6).astype(ml_dtypes.float4_e2m1fn).astype(np.float32)
    return torch.from_numpy((codes * block_scales.astype(np.float32) * unit).reshape(rows.shape))
