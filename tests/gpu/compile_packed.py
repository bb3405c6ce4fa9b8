"""Layers over packed weights, for `compile_kernels.py`, in the sizes of Qwen3.8-Flash-Next."""

from __future__ import annotations

import torch
from torch import Tensor

import recipes.components.gpu.expert_block as expert_block
import recipes.components.gpu.experts as experts
import recipes.components.gpu.mxfp8_linear as linear
from recipes.components.gpu.streams import Injection


def _bytes(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.uint8)


def _weight(outputs: int, inputs: int) -> linear.Mxfp8Weight:
    return linear.Mxfp8Weight(_bytes(outputs, inputs).view(torch.float8_e4m3fn), _bytes(outputs, inputs // 32))


def packed_layers() -> None:
    """Experts and projections for one row, for few and for more than eight; few experts stand for all."""
    for module in (expert_block, experts, linear):
        module.__dict__["runs_triton"] = lambda tensor: True
        module.__dict__["chained"] = lambda tensor: True
    hidden, inner = 2560, 640
    held = experts.PackedExperts(
        gate_up=_bytes(2, 2 * inner, hidden // 2),
        gate_up_scales=_bytes(2, 2 * inner, hidden // 16),
        gate_up_singles=torch.ones(2, 2),
        down=_bytes(1, hidden, inner // 2).expand(512, -1, -1),
        down_scales=_bytes(2, hidden, inner // 16),
        down_singles=torch.ones(2),
        top=10,
    )
    router = torch.zeros(520, hidden, dtype=torch.bfloat16)
    shared = _weight(2 * inner, hidden), _weight(hidden, inner)
    for count in (1, 32):
        x = torch.zeros(count, hidden, dtype=torch.bfloat16)
        into = Injection(torch.zeros(count, 4 * hidden), torch.zeros(count, 4))
        expert_block.expert_block(expert_block.ExpertBlock(router, held, *shared), x, into)
    linear.mxfp8_linear(torch.zeros(4, 6144, dtype=torch.bfloat16), _weight(hidden, 6144))
    linear.mxfp8_linear(x[:1], _weight(8512, hidden))
    linear.widened(_weight(hidden, 6144), torch.bfloat16)
    # As in the drafter, whose shared expert is plain.
    plain = torch.zeros(2 * inner, hidden, dtype=torch.bfloat16), torch.zeros(hidden, inner, dtype=torch.bfloat16)
    expert_block.expert_block(
        expert_block.ExpertBlock(router, held, *plain), x[:4], Injection(into.state[:4], into.strengths[:4])
    )
