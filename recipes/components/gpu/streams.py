"""Gated hyperconnections on a device: several residual streams a token, mixed into a block and fed by its output.

Runs in the worker. The streams are updated in place. Reference: hyperconnection.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import silu

from recipes.components.gpu.launch import chained, even_lines, power_above, power_below, runs_triton
from recipes.components.hyperconnection import Mixer, centred_rms_norm

_BLOCK = 1024
FEW_ROWS = 32
"""Up to here the thin matrices are multiplied by kernels of their own, beyond by cuBLAS."""
_CHUNK, _TIMES, _WARPS = 64, 32, 8
"""Inputs of a warp at once, in both matrices; warps that divide a stream. Fixed: a row's bits do not depend on R."""


@dataclass(frozen=True, slots=True)
class DeviceMixer:
    """A `Mixer` as kernels take it. `norm` [S * H] counts from one.

    `down` [N', S * H] holds `Mixer.down` and behind it `Mixer.inject`, if there is one, both with the norm's gain in
    them: `outputs` lines, L or L + S, and zeros up to a multiple of eight. `up` [S * H, L].
    """

    norm: Tensor
    down: Tensor
    up: Tensor
    streams: int
    epsilon: float
    outputs: int

    @classmethod
    def of(cls, mixer: Mixer, dtype: torch.dtype) -> DeviceMixer:
        """Matrices in `dtype`."""
        down = mixer.down if mixer.inject is None else torch.cat([mixer.down, mixer.inject])
        gained = even_lines((down.float() * (1.0 + mixer.norm.float())).to(dtype))
        up = mixer.up.to(dtype).contiguous()
        return cls(mixer.norm.float(), gained, up, mixer.streams, mixer.epsilon, len(down))

    def to(self, device: torch.device) -> DeviceMixer:
        """The same weights on `device`."""
        norm, down, up = (part.to(device) for part in (self.norm, self.down, self.up))
        return DeviceMixer(norm, down, up, self.streams, self.epsilon, self.outputs)


@dataclass(frozen=True, slots=True)
class Injection:
    """Where a block's output goes: into each of `state` float32 [R, S * H], times its strength float32 [R, S]."""

    state: Tensor
    strengths: Tensor

    def add(self, output: Tensor) -> None:
        """Injects `output` [R, H]."""
        feed(self.state, self.strengths, output)


def mix(mixer: DeviceMixer, state: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A block's input [R, H] in `dtype` from the streams [R, S * H], and the strengths float32 [R, S] for `feed`.

    The strengths of a mixer that injects nothing are not set.
    """
    if not runs_triton(state):
        return _mix(mixer, state, dtype)
    return _mix_few(mixer, state, dtype) if len(state) <= FEW_ROWS else _mix_many(mixer, state, dtype)


def _mix(mixer: DeviceMixer, state: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    grouped, low = torch.unflatten(state.float(), -1, (mixer.streams, -1)), mixer.up.shape[1]
    plain = centred_rms_norm(grouped, torch.zeros(()), mixer.epsilon)
    found = plain.flatten(-2) @ mixer.down.float().T / mixer.streams
    gates = torch.sigmoid(silu(found[:, :low]) @ mixer.up.float().T).view_as(plain)
    mixed = (gates * plain * (1.0 + mixer.norm.view(mixer.streams, -1))).mean(-2)
    return mixed.to(dtype), 2.0 * torch.sigmoid(found[:, low : mixer.outputs])


def _mix_few(mixer: DeviceMixer, state: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    import triton.language as tl

    from recipes.components.gpu.streams_kernels import lower_streams, raise_streams

    count, streams, outputs = len(state), mixer.streams, mixer.outputs
    hidden, low, device = mixer.down.shape[1] // streams, mixer.up.shape[1], state.device
    parts = torch.empty(streams, count, outputs, dtype=torch.float32, device=device)
    sums = torch.empty(streams, count, dtype=torch.float32, device=device)
    mixed = torch.empty(count, hidden, dtype=dtype, device=device)
    strengths = torch.empty(count, streams, dtype=torch.float32, device=device)
    eights, early, padded = -(-count // 8), chained(state), power_above(streams)
    common = {
        "TYPE": tl.float32 if dtype == torch.float32 else tl.bfloat16,
        "CHAINED": early,
        **({"launch_pdl": True} if early else {}),
    }
    lower_streams[(-(-outputs // 16), streams, eights)](
        state, mixer.down, parts, sums, count, streams, hidden, outputs, _WARPS, -(-hidden // (_WARPS * _CHUNK)),
        num_warps=_WARPS, **common,
    )  # fmt: skip
    # A row alone is quicker among eight: 6.1 instead of 8.0 us for both kernels (docs/log.md).
    at_once = 8 if count == 1 else min(8, power_above(count))
    times = max(1, power_below(low) // _TIMES)
    rest = -(-low // _TIMES) - times
    raise_streams[(-(-hidden // 16), eights)](
        state, mixer.norm, mixer.up, parts, sums, mixed, strengths, count, mixer.epsilon, streams, padded, hidden, low,
        outputs, at_once, times, power_above(rest) if rest > 0 else 0, num_warps=padded, **common,
    )  # fmt: skip
    return mixed, strengths


def _mix_many(mixer: DeviceMixer, state: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    from recipes.components.gpu.streams_kernels import gate_low, mix_streams, norm_streams

    count, streams, low = len(state), mixer.streams, mixer.up.shape[1]
    hidden, device = state.shape[1] // streams, state.device
    normed = torch.empty(count, streams * hidden, dtype=dtype, device=device)
    norm_streams[(count, streams)](state, normed, mixer.epsilon, streams, hidden, power_above(hidden))
    lowered = normed @ mixer.down.T
    gated = torch.empty(count, low, dtype=dtype, device=device)
    strengths = torch.empty(count, streams, dtype=torch.float32, device=device)
    gate_low[(count,)](
        lowered, gated, strengths, lowered.shape[1], streams, low, mixer.outputs, power_above(mixer.outputs)
    )
    gates = gated @ mixer.up.T
    mixed, block = torch.empty(count, hidden, dtype=dtype, device=device), min(_BLOCK, power_above(hidden))
    mix_streams[(count, -(-hidden // block))](gates, normed, mixer.norm, mixed, streams, hidden, block)
    return mixed, strengths


def feed(state: Tensor, strengths: Tensor, output: Tensor) -> None:
    """Injects a block's `output` [R, H] into the streams `state` [R, S * H], times `strengths` [R, S]."""
    streams, (count, hidden) = strengths.shape[1], output.shape
    if not runs_triton(state):
        state.view(count, streams, hidden).add_(strengths[..., None] * output.float()[:, None])
        return
    from recipes.components.gpu.streams_kernels import feed_streams

    block = min(_BLOCK, power_above(hidden))
    feed_streams[(count, streams, -(-hidden // block))](state, strengths, output, streams, hidden, block)
