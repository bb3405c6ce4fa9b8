"""Matrices of linear layers on a device as a core stores them: floating point, or MXFP8 whose own bytes are read.

Runs in the worker. Layers over the same inputs are one matrix, so that a block is one launch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from recipes.components.gpu.mxfp8_linear import Mxfp8Weight, mxfp8_inject, mxfp8_linear, stacked
from recipes.components.gpu.streams import Injection

Matrix = Tensor | Mxfp8Weight
"""[N, K]: outputs by inputs."""


def multiply(x: Tensor, matrix: Matrix, out: Tensor | None = None) -> Tensor:
    """[R, N] of `x` [R, K], in its type, or in `out`."""
    if isinstance(matrix, Mxfp8Weight):
        return mxfp8_linear(x, matrix, out=out)
    return torch.mm(x, matrix.T, out=out) if out is not None else x @ matrix.T


def inject(x: Tensor, matrix: Matrix, injection: Injection) -> None:
    """The layer's output of `x` [R, K] goes into the streams."""
    if isinstance(matrix, Mxfp8Weight):
        mxfp8_inject(x, matrix, injection)
    else:
        injection.add(x @ matrix.T)


def joined(parts: list[Matrix]) -> Matrix:
    """Layers over the same inputs as one, outputs one after the other. Of two kinds: plain, in the plain one's type."""
    packed = [part for part in parts if isinstance(part, Mxfp8Weight)]
    if len(packed) == len(parts):
        return stacked(*packed)
    plain = [part.wide() if isinstance(part, Mxfp8Weight) else part for part in parts]
    kind = next(part.dtype for part in parts if isinstance(part, Tensor))
    return torch.cat([part.to(kind) for part in plain])


def behind(matrix: Matrix, first: int) -> Matrix:
    """The outputs from `first` on, a view."""
    if isinstance(matrix, Mxfp8Weight):
        return Mxfp8Weight(matrix.values[first:], matrix.scales[first:])
    return matrix[first:]


def before(matrix: Matrix, stop: int) -> Matrix:
    """The outputs before `stop`, a view."""
    if isinstance(matrix, Mxfp8Weight):
        return Mxfp8Weight(matrix.values[:stop], matrix.scales[:stop])
    return matrix[:stop]
