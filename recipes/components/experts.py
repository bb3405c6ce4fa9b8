"""A mixture of experts on the CPU: softmax routing, the best k renormalised, and a gated shared expert.

Runs in the worker, float32. Rows are grouped by expert, so that an expert's weights are read once a batch. Activations
of routed experts are rounded to NVFP4 where the core's policy says so (docs/adr/0007); the shared expert's never are.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import silu

from recipes.components.nvfp4_activations import InputScales, rounded


@dataclass(frozen=True, slots=True)
class Mixture:
    """`router` [E, H]; `gate_up` [E, 2 * I, H], `down` [E, H, I]; the shared expert's own, and its gate [1, H].

    With `input_scales` the routed experts compute with rounded activations (W4A4), without them as they come (W4A16).
    """

    router: Tensor
    gate_up: Tensor
    down: Tensor
    shared_gate_up: Tensor
    shared_down: Tensor
    shared_gate: Tensor
    top: int
    input_scales: InputScales | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """The block's output [R, H]."""
        weights, chosen = self._route(x)
        output = torch.sigmoid(x @ self.shared_gate.t()) * _expert(x, self.shared_gate_up, self.shared_down)
        for expert in sorted(set(chosen.flatten().tolist())):
            rows, ranks = (chosen == expert).nonzero(as_tuple=True)
            part = self._routed(x[rows], expert)
            output.index_add_(0, rows, part * weights[rows, ranks].unsqueeze(-1))
        return output

    def _routed(self, x: Tensor, expert: int) -> Tensor:
        """One expert's output [n, H] for the rows that were sent to it."""
        if self.input_scales is None:
            return _expert(x, self.gate_up[expert], self.down[expert])
        gates, ups = (rounded(x, self.input_scales.gate_up[expert]) @ self.gate_up[expert].t()).chunk(2, dim=-1)
        return rounded(silu(gates) * ups, self.input_scales.down[expert]) @ self.down[expert].t()

    def _route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Weights and experts [R, top]; equal scores go to the lower expert."""
        scores = torch.softmax(x @ self.router.t(), dim=-1)
        ranked = torch.sort(scores, dim=-1, descending=True, stable=True)
        weights, chosen = ranked.values[:, : self.top], ranked.indices[:, : self.top]
        return weights / weights.sum(-1, keepdim=True), chosen


def _expert(x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    gates, ups = (x @ gate_up.t()).chunk(2, dim=-1)
    return (silu(gates) * ups) @ down.t()
