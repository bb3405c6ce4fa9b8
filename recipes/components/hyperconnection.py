"""Gated hyperconnections: several residual streams a token, mixed into a block's input and fed by its output.

Runs in the worker on the CPU, float32. Norms are zero-centred: the stored weight counts from one (design/models.md,
1.3).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import silu


def centred_rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Root-mean-square norm over the last dimension, times one plus `weight`."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon) * (1.0 + weight)


@dataclass(frozen=True, slots=True)
class Mixer:
    """Weights over S streams of H: `norm` [S*H], `down` [L, S*H], `up` [S*H, L], `inject` [S, S*H].

    A model's last mixer injects nothing: there `inject` is None.
    """

    norm: Tensor
    down: Tensor
    up: Tensor
    inject: Tensor | None
    streams: int
    epsilon: float

    def mix(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """A block's input [R, H] from the streams [R, S*H], and what `combine` needs."""
        grouped = torch.unflatten(state, -1, (self.streams, -1))
        weight = self.norm.view(self.streams, -1)
        normed = centred_rms_norm(grouped, weight, self.epsilon)
        flat = normed.flatten(-2)
        gates = torch.sigmoid(silu(flat @ self.down.t() / self.streams) @ self.up.t())
        return (gates.view_as(normed) * normed).mean(-2), flat

    def combine(self, state: Tensor, normed: Tensor, output: Tensor) -> Tensor:
        """The streams [R, S*H] after the block's `output` [R, H] was injected into each."""
        if self.inject is None:
            return state
        strengths = 2.0 * torch.sigmoid(normed @ self.inject.t() / self.streams)
        return state + (strengths.unsqueeze(-1) * output.unsqueeze(-2)).flatten(-2)
