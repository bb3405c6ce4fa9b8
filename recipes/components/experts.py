"""A mixture of experts on the CPU: softmax routing, the best k renormalised, and a gated shared expert.

Runs in the worker, float32. Rows are grouped by expert, so that an expert's weights are read once a batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import silu


@dataclass(frozen=True, slots=True)
class Mixture:
    """`router` [E, H]; `gate_up` [E, 2 * I, H], `down` [E, H, I]; the shared expert's own, and its gate [1, H]."""

    router: Tensor
    gate_up: Tensor
    down: Tensor
    shared_gate_up: Tensor
    shared_down: Tensor
    shared_gate: Tensor
    top: int

    def __call__(self, x: Tensor) -> Tensor:
        """The block's output [R, H]."""
        weights, chosen = self._route(x)
        output = torch.sigmoid(x @ self.shared_gate.t()) * _expert(x, self.shared_gate_up, self.shared_down)
        for expert in sorted(set(chosen.flatten().tolist())):
            rows, ranks = (chosen == expert).nonzero(as_tuple=True)
            part = _expert(x[rows], self.gate_up[expert], self.down[expert])
            output.index_add_(0, rows, part * weights[rows, ranks].unsqueeze(-1))
        return output

    def _route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Weights and experts [R, top]; equal scores go to the lower expert."""
        scores = torch.softmax(x @ self.router.t(), dim=-1)
        ranked = torch.sort(scores, dim=-1, descending=True, stable=True)
        weights, chosen = ranked.values[:, : self.top], ranked.indices[:, : self.top]
        return weights / weights.sum(-1, keepdim=True), chosen


def _expert(x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    gates, ups = (x @ gate_up.t()).chunk(2, dim=-1)
    return (silu(gates) * ups) @ down.t()
