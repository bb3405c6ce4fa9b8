"""Activations of NVFP4 layers (W4A4): rounded as the hardware rounds them, computed with in float32.

Runs in the worker. A checkpoint declares it by an `input_scale` beside each matrix: E2M1 values, one E4M3 scale for 16
of them, under that float32 scale. Rounding is a function of the row alone, so that rows stay independent of their
batch. Which policy a core runs is declared in its manifest (docs/adr/0007).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from recipes.components import nvfp4


class ActivationPolicy(StrEnum):
    """What goes into the matrices of NVFP4 experts that carry input scales. The weights are the same in both."""

    W4A16 = "w4a16"
    """Activations as they are; the input scales are kept and not applied."""
    W4A4 = "w4a4"
    """Activations rounded to NVFP4 under the checkpoint's input scales."""


def rounded(rows: Tensor, input_scale: Tensor) -> Tensor:
    """`rows` [R, n] float32 as NVFP4 holds them, dequantised: n is a multiple of 16, `input_scale` a float32 scalar.

    A block's scale is its largest magnitude / (6 * input_scale), rounded to the nearest E4M3 with ties to even, at most
    448; up to 2^-10 it is zero, and so is the block. Values divide by block scale * input_scale and round to the
    nearest E2M1 with ties to even; beyond 6, where the scale was rounded down or cut off, they saturate. NaN makes its
    block NaN; an infinity saturates, as the device's conversion does.
    """
    return nvfp4.dequantize(*nvfp4.quantize(rows, input_scale), input_scale)


@dataclass(frozen=True, slots=True)
class InputScales:
    """Input scales of a layer's experts, float32: `gate_up` [E], which gate and up share, and `down` [E]."""

    gate_up: Tensor
    down: Tensor


def shared_by(gate: Tensor, up: Tensor) -> Tensor:
    """The scale of one rounded input for both matrices that read it: the larger, which saturates neither."""
    return torch.maximum(gate, up)
