"""Root-mean-square norm in two halves: the weight now, the row's divisor later.

Runs in the worker on the CPU. torch's own is a chain of eight operations there; a linear layer that follows can divide
its output rows instead of its input, which is one small operation (docs/log.md).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def scaled_weight(weight: Tensor) -> Tensor:
    """`weight` [K] times the root of K, so that the divisor needs no mean."""
    return weight * math.sqrt(weight.shape[0])


def divisor(rows: Tensor, epsilon: float) -> Tensor:
    """float32 [R, 1]: norm(rows) = rows * scaled_weight / divisor. Each step after the sum is correctly rounded."""
    lengths: Tensor = torch.linalg.vector_norm(rows, 2, dim=1, keepdim=True)
    lengths.square_().add_(epsilon * rows.shape[1]).sqrt_()
    return lengths


def reference_rms_norm(rows: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """The norm in float64."""
    exact = rows.double()
    return (exact / (exact.square().mean(1, keepdim=True) + epsilon).sqrt() * weight.double()).float()
