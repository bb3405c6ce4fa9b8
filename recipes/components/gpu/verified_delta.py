"""A gated delta net over the few rows of a verified round: from its projections to its gated outputs, and records.

Runs in the worker. One kernel does what convolution, delta rule and norm do one after the other; those are its
reference (recurrence.py). Nothing of the state changes: commit makes of the records what was accepted.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from recipes.components.device_model import DeviceRows
from recipes.components.gpu.launch import chained, multiprocessors, power_above, runs_triton
from recipes.components.gpu.recurrence import DeltaGates, DeltaShape, Records, convolve, delta, finish

_COLUMNS = 16
"""Of a warp; also the least keys of a tile."""


@dataclass(frozen=True, slots=True)
class DeltaNet:
    """A layer's own weights: `convolution` [C, taps], `gates`, `norm` [V] of a head's outputs."""

    convolution: Tensor
    gates: DeltaGates
    norm: Tensor
    epsilon: float


@dataclass(frozen=True, slots=True)
class DeltaState:
    """A layer's committed state: `matrices` float32 [rows, HV, K, V], `history` [rows, taps - 1, C]."""

    matrices: Tensor
    history: Tensor


@dataclass(frozen=True, slots=True)
class Split:
    """Parts of `projected` [R, LINE]: `inputs` of the convolution, `gates`, `rates` and `strengths`, raw."""

    inputs: Tensor
    gates: Tensor
    rates: Tensor
    strengths: Tensor

    @classmethod
    def of(cls, projected: Tensor, shape: DeltaShape) -> Split:
        """Views."""
        wide = shape.value_heads * shape.value
        channels = 2 * shape.key_heads * shape.key + wide
        sizes = [channels, wide, shape.value_heads, shape.value_heads]
        return cls(*torch.split(projected, sizes, dim=1))


def verified_delta(
    net: DeltaNet, state: DeltaState, projected: Tensor, rows: DeviceRows, shape: DeltaShape, records: Records
) -> Tensor:
    """Gated outputs [R, HV * V], zero where masked, of `projected` [R, LINE] of at most eight rows a lane.

    Fills `records`, of this layer and round.
    """
    if not runs_triton(projected):
        return _verified_delta(net, state, projected, rows, shape, records)
    from recipes.components.gpu.verified_delta_kernels import verified_delta as kernel

    out = projected.new_empty(len(projected), shape.value_heads * shape.value)
    early, key, value = chained(projected), _tile(shape.key), _tile(shape.value)
    programs = len(rows.slots) * shape.value_heads
    # With half the warps two programs share a multiprocessor. The bits are the same.
    warps = min(4 if programs > multiprocessors(projected) else 8, value // _COLUMNS)
    kernel[(programs,)](
        state.matrices, state.history, projected, net.convolution, net.gates.log, net.gates.bias, net.norm, rows.slots,
        rows.counts, out, records.keys, records.values, records.decays, net.epsilon, rows.width, shape.key_heads,
        shape.value_heads, shape.key, shape.value, key, value, state.history.shape[1], early,
        num_warps=warps, num_stages=1, **({"launch_pdl": True} if early else {}),
    )  # fmt: skip
    return out


def _tile(size: int) -> int:
    """Columns or keys that the kernel's threads have together: at least those of a warp's columns."""
    return max(_COLUMNS, power_above(size))


def _verified_delta(
    net: DeltaNet, state: DeltaState, projected: Tensor, rows: DeviceRows, shape: DeltaShape, records: Records
) -> Tensor:
    split = Split.of(projected, shape)
    mixed = convolve(state.history, split.inputs, net.convolution, rows)
    outputs, found = delta(state.matrices, mixed, split.rates, split.strengths, net.gates, rows, shape)
    for name in ("keys", "values", "decays"):
        getattr(records, name).copy_(getattr(found, name))
    return finish(outputs, split.gates, net.norm, net.epsilon)
