"""A learned drafter whose proposals survive for a given mean length: engine cost apart from drafter quality.

In the worker, inside captured rounds, by `random_recipes.py` alone: requests of the bench say one token only (by their
logit bias), so a draft of that token is always taken, and any other never. No server of `flare run` has this drafter.
"""

from __future__ import annotations

import torch
from torch import Tensor

from recipes.components.device_drafter import DeviceDrafter, DeviceDrafts, DeviceTask

SAID = 198
"""The token that requests of the bench say."""
OTHER = 199


class ForcedDrafter:
    """`inner` with other tokens; `length` is the mean of emitted tokens a round, where the round is wide enough."""

    def __init__(self, inner: DeviceDrafter, length: float) -> None:
        self._inner, self._accepted = inner, length - 1.0
        self.absorb, self.export, self.reset = inner.absorb, inner.export, inner.reset
        self.snapshot, self.restore = inner.snapshot, inner.restore

    def propose(self, task: DeviceTask) -> DeviceDrafts:
        """Its proposals, exchanged. A law gives what was drawn from it a probability, so it is one there."""
        found = self._inner.propose(task)
        tokens = forced(found.tokens, task.draws[:, 0], self._accepted)
        return DeviceDrafts(tokens, found.counts, found.law.scatter(2, tokens[..., None], 1.0))


def forced(tokens: Tensor, draws: Tensor, accepted: float) -> Tensor:
    """int64 [B, K]: first the token that is taken, `accepted` times in the mean over `draws` [B], then the other."""
    whole = int(accepted)
    count = whole + (draws < accepted - whole).to(torch.int64)
    steps = torch.arange(tokens.shape[1], device=tokens.device)
    return torch.where(steps < count[:, None], SAID, OTHER).to(tokens.dtype)
