"""Row ids of n-gram embeddings: a hash of each token with those before it, per order and head.

Runs in the worker on the CPU. Integer arithmetic wraps at 64 bits, as the tables were trained (design/models.md,
1.3). A proposed token affects only the rows behind it: the window of row i is committed history and the candidates
before it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class NgramHash:
    """`multipliers` int64 [N]; `primes`, `offsets` int64 [(N - 1) * heads], orders ascending; `boundary` an end."""

    multipliers: Tensor
    primes: Tensor
    offsets: Tensor
    boundary: int

    @property
    def history_length(self) -> int:
        """Tokens before a row that its ids depend on."""
        return len(self.multipliers) - 1

    def ids(self, history: Tensor, tokens: Tensor) -> Tensor:
        """Table rows int64 [R, (N - 1) * heads] of `tokens` int64 [R] after `history` int64 [N - 1], oldest first.

        Where a text begins, `history` holds the boundary token. A boundary hides all that lies before it.
        """
        series = torch.cat([history, tokens])
        depth, count = self.history_length, len(tokens)
        # window[j] is the token j places before the row; behind a boundary everything is the boundary.
        window = [series[depth - j : depth - j + count] for j in range(depth + 1)]
        hidden = torch.zeros(count, dtype=torch.bool)
        mixed = window[0] * self.multipliers[0]
        found = []
        heads = len(self.primes) // depth
        for order in range(1, depth + 1):
            hidden = hidden | (window[order] == self.boundary)
            past = torch.where(hidden, self.boundary, window[order])
            mixed = mixed ^ (past * self.multipliers[order])
            part = slice((order - 1) * heads, order * heads)
            found.append(torch.remainder(mixed.unsqueeze(-1), self.primes[part]) + self.offsets[part])
        return torch.cat(found, dim=-1)
