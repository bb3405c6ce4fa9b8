"""A block of experts on a device: router, routed experts over NVFP4 weights, and the shared expert, into the streams.

Runs in the worker. Few rows take six kernels that follow one another early: scores, choice, the shared expert's inner
rows, the routed ones' (whose weights are asked for meanwhile), their outputs, and one that adds it all up.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import silu

from recipes.components.gpu.experts import (
    PackedExperts,
    inner_rows,
    mixture,
    output_rows,
    packed_options,
    route,
    route_turned,
)
from recipes.components.gpu.launch import eights, power_above, runs_triton
from recipes.components.gpu.linear import Tile, Weight, linear
from recipes.components.gpu.matrices import Matrix, multiply
from recipes.components.gpu.mxfp8_linear import Mxfp8Weight, mxfp8_gated
from recipes.components.gpu.rows import gate_rows
from recipes.components.gpu.streams import Injection

_FEW_ROWS = 32
"""Up to here all of it is kernels of few rows; beyond, thin matrices are left to cuBLAS."""
_ROUTER = Tile(16, 8, 4, 4)
"""For any number of rows: a row's choice does not depend on how many there are."""
_WARPS = 4
_CHUNK = 128


@dataclass(frozen=True, slots=True)
class ExpertBlock:
    """A layer's experts. `router` [E + 1 or more, H] in the device's type: the shared expert's gate is behind the
    experts' scores, then lines that fill up.

    Router weights are bfloat16 in a checkpoint and scores are float32, since routing decides between near ones.
    `shared_gate_up` [2 * J, H] holds gate first, then up; `shared_down` [H, J].
    """

    router: Tensor
    routed: PackedExperts
    shared_gate_up: Matrix
    shared_down: Matrix


def expert_block(block: ExpertBlock, x: Tensor, into: Injection) -> None:
    """What the experts make of block input `x` [R, H] goes into the streams."""
    few = runs_triton(x) and len(x) <= _FEW_ROWS
    if few and isinstance(block.shared_gate_up, Mxfp8Weight) and isinstance(block.shared_down, Mxfp8Weight):
        _few_rows(block, block.shared_gate_up, block.shared_down, x, into)
        return
    scores = _scores(block.router, x, few)
    held = block.routed.count
    weights, chosen = route(scores[:, :held], block.routed.top)
    shared = multiply(_shared_inner(block.shared_gate_up, x), block.shared_down)
    into.add(mixture(x, block.routed, weights, chosen, shared, scores[:, held]))


def _scores(router: Tensor, x: Tensor, few: bool) -> Tensor:
    """float32 [R, E + 1 or more]."""
    if few:
        return linear(x, Weight(router), x.dtype, _ROUTER)
    if x.is_cuda and x.dtype != torch.float32:
        return torch.mm(x, router.T, out_dtype=torch.float32)
    return x.float() @ router.float().T


def _shared_inner(matrix: Matrix, x: Tensor) -> Tensor:
    if isinstance(matrix, Mxfp8Weight):
        return mxfp8_gated(x, matrix)
    both = x @ matrix.T
    if runs_triton(x):
        return gate_rows(both)
    gates, ups = both.chunk(2, dim=-1)
    return silu(gates) * ups


def _few_rows(block: ExpertBlock, gate_up: Mxfp8Weight, down: Mxfp8Weight, x: Tensor, into: Injection) -> None:
    from recipes.components.gpu.experts_kernels import finish_experts

    scores, routed, count = _scores(block.router, x, few=True), block.routed, len(x)
    gate = scores[:, routed.count]
    weights, chosen, turned = route_turned(scores[:, : routed.count], routed.top, x)
    shared = mxfp8_gated(x, gate_up)
    parts = output_rows(inner_rows(turned, routed, chosen, turned=True, early=True), routed, chosen)
    (hidden, size), streams = down.values.shape, into.strengths.shape[1]
    some, warps = eights(2), min(_WARPS, power_above(-(-size // _CHUNK)))
    finish_experts[(-(-hidden // (8 * some)), -(-count // 8))](
        parts, weights, shared, down.values.view(torch.uint8), down.scales, gate, into.state, into.strengths, count,
        gate.stride(0), routed.top, hidden, size, streams, warps, some, -(-size // (warps * _CHUNK)),
        **packed_options(x, warps),
    )  # fmt: skip
