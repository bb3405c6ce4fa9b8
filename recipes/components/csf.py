"""CSF, the lossless compression of NVFP4 block scales: a byte window of 16 values a row, and exceptions.

Runs in `ignition`. Codec "byte-window4-fixed-stream-u24-exceptions/1", as the FP4-Local checkpoints of Qwen3.8-Flash
and GLM-5.3-Flash store the scales of their routed experts (design/models.md, section 4).
"""

from __future__ import annotations

import torch
from torch import Tensor

from shared.errors import CheckpointError

SLAB = 16
"""Rows that share a slab: their bases come first, then their codes."""
WINDOW = 16
_HIGHEST_BASE = 256 - WINDOW
_POSITION_BITS = 24
_HIGHEST_E4M3 = 0x7E
"""The largest finite, non-negative E4M3 byte: scales have no sign and are never NaN."""


def fixed_shape(rows: int, columns: int) -> tuple[int, int]:
    """Shape of the fixed stream, uint8, of scales [rows, columns]. Raises `CheckpointError`."""
    if rows % SLAB or columns % 2 or rows * columns > 1 << _POSITION_BITS:
        raise CheckpointError(f"scales [{rows}, {columns}] have no CSF form")
    return rows // SLAB, SLAB * (1 + columns // 2)


def encode(scales: Tensor) -> tuple[Tensor, Tensor]:
    """Scales uint8 [rows, columns] to the fixed stream (uint8) and the exceptions (uint32 [n], ascending).

    A row's base is the lowest start in 0 .. 240 of a window that covers most of its bytes.
    """
    rows, columns = scales.shape
    shape = fixed_shape(rows, columns)
    values = scales.to(torch.int64)
    counts = torch.zeros(rows, 257, dtype=torch.int64)
    counts[:, 1:].scatter_add_(1, values, torch.ones_like(values))
    sums = counts.cumsum(1)
    covered = sums[:, WINDOW : _HIGHEST_BASE + WINDOW + 1] - sums[:, : _HIGHEST_BASE + 1]
    # The lowest start wins a tie, which argmax alone does not promise.
    ranked = covered * (_HIGHEST_BASE + 1) - torch.arange(_HIGHEST_BASE + 1)
    base = ranked.argmax(1)
    offsets = values - base[:, None]
    outside = (offsets < 0) | (offsets >= WINDOW)
    codes = torch.where(outside, 0, offsets).to(torch.uint8)
    packed = codes[:, 0::2] | (codes[:, 1::2] << 4)
    fixed = torch.cat([base.to(torch.uint8).view(rows // SLAB, SLAB), packed.view(rows // SLAB, -1)], dim=1)
    positions = outside.view(-1).nonzero().view(-1)
    exceptions = positions | (values.view(-1)[positions] << _POSITION_BITS)
    return fixed.view(shape), exceptions.to(torch.uint32)


def decode(fixed: Tensor, exceptions: Tensor, rows: int, columns: int) -> Tensor:
    """Scales uint8 [rows, columns] of E4M3 bytes. Raises `CheckpointError` for streams that no encoder writes."""
    if tuple(fixed.shape) != fixed_shape(rows, columns):
        raise CheckpointError(f"a CSF stream of {list(fixed.shape)} does not hold scales [{rows}, {columns}]")
    base = fixed[:, :SLAB].reshape(rows, 1).to(torch.int16)
    packed = fixed[:, SLAB:].reshape(rows, columns // 2)
    codes = torch.stack([packed & 15, packed >> 4], dim=-1).view(rows, columns)
    scales = (base + codes).view(-1)
    words = exceptions.to(torch.int64)
    positions = words & ((1 << _POSITION_BITS) - 1)
    if words.numel() and (int(positions.max()) >= rows * columns or bool((positions.diff() <= 0).any())):
        raise CheckpointError("CSF exceptions are out of range or out of order")
    scales[positions] = (words >> _POSITION_BITS).to(torch.int16)
    if scales.numel() and int(scales.max()) > _HIGHEST_E4M3:
        raise CheckpointError("a decoded scale is not a finite, non-negative E4M3 value")
    return scales.to(torch.uint8).view(rows, columns)
