"""Gated hyperconnections on a device: several residual streams a token, mixed into a block and fed by its output.

Runs in the worker. The streams are updated in place. Reference: hyperconnection.py, whose `Mixer` holds the weights.
"""

from __future__ import annotations

import torch
from torch import Tensor

from recipes.components.gpu.launch import power_above, runs_triton
from recipes.components.hyperconnection import Mixer

_BLOCK = 1024


def mix(mixer: Mixer, state: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A block's input [R, H] from the streams [R, S * H], and the normed streams that `feed` needs; both in `dtype`."""
    if not runs_triton(state):
        mixed, normed = mixer.mix(state.float())
        return mixed.to(dtype), normed.to(dtype)
    from recipes.components.gpu.streams_kernels import gate_low, mix_streams, norm_streams

    count, streams = len(state), mixer.streams
    hidden = state.shape[1] // streams
    normed = torch.empty(count, streams * hidden, dtype=dtype, device=state.device)
    norm_streams[(count, streams)](state, mixer.norm, normed, mixer.epsilon, streams, hidden, power_above(hidden))
    low = normed @ mixer.down.T.to(dtype)
    gated, block = torch.empty_like(low), min(_BLOCK, power_above(low.numel()))
    gate_low[(-(-low.numel() // block),)](low, gated, streams, low.numel(), block)
    gates = gated @ mixer.up.T.to(dtype)
    mixed, block = torch.empty(count, hidden, dtype=dtype, device=state.device), min(_BLOCK, power_above(hidden))
    mix_streams[(count, -(-hidden // block))](gates, normed, mixed, streams, hidden, block)
    return mixed, normed


def feed(mixer: Mixer, state: Tensor, normed: Tensor, output: Tensor) -> None:
    """Injects a block's `output` [R, H] into the streams `state` [R, S * H]. A mixer that injects nothing: nothing."""
    if mixer.inject is None:
        return
    if not runs_triton(state):
        state.copy_(mixer.combine(state.float(), normed.float(), output.float()))
        return
    from recipes.components.gpu.streams_kernels import feed_streams

    strengths = normed @ mixer.inject.T.to(normed.dtype)
    count, hidden = output.shape
    block = min(_BLOCK, power_above(hidden))
    feed_streams[(count, mixer.streams, -(-hidden // block))](state, strengths, output, mixer.streams, hidden, block)
