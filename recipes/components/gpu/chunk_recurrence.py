"""The short convolution of a prompt chunk on a device, before its gated delta rule.

Runs in the worker. Inputs are columns of one wide projection, read where they lie: copies of them took 200 us a layer
of 4,096 rows. A chunk is kept as a whole or not at all, so all that commit needs of a convolution is its newest rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from recipes.components.device_model import DeviceRows
from recipes.components.gpu.launch import power_above, runs_triton

_RUN, _CHANNELS = 8, 512
"""Rows and channels of a program, which reads each row once."""


def convolve_chunk(pool: Tensor, inputs: Tensor, weight: Tensor, rows: DeviceRows, tails: Tensor) -> Tensor:
    """silu(convolution) [R, C], as `recurrence.convolve` of dilation 1; fills `tails` [B * (taps - 1), C].

    `inputs` [R, C], whose rows may lie apart. A lane's tail is what its slot's history becomes if its rows are kept.
    """
    lanes, channels, taps = len(rows.slots), inputs.shape[1], weight.shape[1]
    if not runs_triton(inputs):
        from recipes.components.gpu.recurrence import convolve

        for lane, (slot, count) in enumerate(zip(rows.slots.tolist(), rows.counts.tolist(), strict=True)):
            own = inputs[lane * rows.width : lane * rows.width + count].to(pool.dtype)
            if slot >= 0:
                tails[lane * (taps - 1) : (lane + 1) * (taps - 1)] = torch.cat([pool[slot], own])[1 - taps :]
        return convolve(pool, inputs, weight, rows)
    from recipes.components.gpu.chunk_recurrence_kernels import convolve_runs

    out = inputs.new_empty(len(inputs), channels)
    block = min(_CHANNELS, power_above(channels))
    convolve_runs[(lanes, -(-rows.width // _RUN), -(-channels // block))](
        pool, inputs, weight, rows.slots, rows.counts, out, tails, rows.width, inputs.stride(0), channels, taps, _RUN,
        block,
    )  # fmt: skip
    return out
