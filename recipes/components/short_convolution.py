"""Causal depthwise convolution over a few past inputs, with the histories of rows that may yet be rejected.

Runs in the worker on the CPU, float32. A slot keeps the last (kernel - 1) * dilation committed inputs; the inputs of a
round stay beside them until commit selects how many of them stand.
"""

from __future__ import annotations

import torch
from torch import Tensor


def history_length(kernel: int, dilation: int = 1) -> int:
    """Committed inputs that the next output still needs."""
    return (kernel - 1) * dilation


def convolve(history: Tensor, inputs: Tensor, weight: Tensor, dilation: int = 1) -> Tensor:
    """Outputs [R, C] for `inputs` [R, C] after `history` [L, C]; `weight` [C, kernel], oldest input first.

    Tap by tap, each step one product or sum of single elements: a row's result does not depend on how many there are.
    """
    series, count = torch.cat([history, inputs]), len(inputs)
    found = series[:count] * weight[:, 0]
    for tap in range(1, weight.shape[1]):
        found = found + series[tap * dilation : tap * dilation + count] * weight[:, tap]
    return found


def advanced(history: Tensor, inputs: Tensor, kept: int) -> Tensor:
    """The history [L, C] after the first `kept` of `inputs`."""
    return torch.cat([history, inputs[:kept]])[-len(history) :]
