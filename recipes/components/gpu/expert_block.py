"""A block of experts on a device: router, routed experts over NVFP4 weights, and the shared expert, into the streams.

Runs in the worker. Few rows take four kernels that follow one another early: scores; each row's choice, and beside it
the shared expert's inner rows; the routed ones'; and outputs of all, of which the last program adds up what all said.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from recipes.components.gpu.experts import (
    APART,
    PackedExperts,
    inner_rows,
    mixture,
    output_programs,
    output_tile,
    packed_options,
    places,
    route,
)
from recipes.components.gpu.launch import chained, eights, power_above, runs_triton
from recipes.components.gpu.linear import Tile, Weight, linear
from recipes.components.gpu.matrices import Matrix, multiply
from recipes.components.gpu.mxfp8_linear import Mxfp8Weight, eights_of_rows, mxfp8_gated
from recipes.components.gpu.rows import gate_rows
from recipes.components.gpu.streams import Injection

_FEW_ROWS = 32
"""Up to here all of it is kernels of few rows; beyond, thin matrices are left to cuBLAS."""
_ROUTER = Tile(16, 8, 4, 4)
"""Of a plain shared expert, for any number of few rows: there a row's choice does not depend on how many there are."""
_WARPS = 4
_CHUNK = 128
_AHEAD, _OWN_AHEAD = 5, 2
"""Chunks of the shared expert's two matrices that are asked for before the wait for the kernel before."""
_TURNED = 512
"""Inputs that a program puts in order at once."""
_COLUMNS = 64


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


def expert_block(block: ExpertBlock, x: Tensor, into: Injection, live: Tensor | None = None) -> None:
    """What the experts make of block input `x` [R, H] goes into the streams.

    Rows whose `live` int32 [R] is negative choose no routed experts and cost nothing there.
    """
    few = runs_triton(x) and len(x) <= _FEW_ROWS
    if few and isinstance(block.shared_gate_up, Mxfp8Weight) and isinstance(block.shared_down, Mxfp8Weight):
        _few_rows(block, block.shared_gate_up, block.shared_down, x, into, live)
        return
    scores = _scores(block.router, x, few)
    held = block.routed.count
    weights, chosen = route(scores[:, :held], block.routed.top, live)
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
    return gate_rows(x @ matrix.T)


def _few_rows(
    block: ExpertBlock, gate_up: Mxfp8Weight, down: Mxfp8Weight, x: Tensor, into: Injection, live: Tensor | None
) -> None:
    routed = block.routed
    choice = _chosen(block, gate_up, x, _score_parts(block.router, x), live)
    inner = inner_rows(choice.turned, routed, choice.experts, turned=True)
    _add_outputs(routed, down, inner, choice, into)


def _score_parts(router: Tensor, x: Tensor) -> Tensor:
    """float32 [parts, R, lines]: scores of `x` [R, H] and what is behind them are the sum of all parts."""
    from recipes.components.gpu.routing_kernels import score_parts

    (count, hidden), some = x.shape, eights(2)
    chunks, rows = -(-hidden // _CHUNK), eights_of_rows(count)
    warps = min(_WARPS, power_above(chunks))
    tiles = -(-len(router) // (8 * some))
    parts = torch.empty(-(-chunks // warps), count, tiles * 8 * some, dtype=torch.float32, device=x.device)
    score_parts[(tiles * len(parts), -(-count // (8 * rows)))](
        x, router, parts, count, len(router), parts.shape[2], hidden, warps, some, rows, len(parts),
        **packed_options(x, warps),
    )  # fmt: skip
    return parts


@dataclass(frozen=True, slots=True)
class _Choice:
    """Of R rows: `weights` and `experts` [R, top], the rows turned, the shared expert's gates [R] and inner rows.

    `tickets` int32 are zero, one for each program along the outputs.
    """

    weights: Tensor
    experts: Tensor
    turned: Tensor
    gates: Tensor
    shared: Tensor
    tickets: Tensor


def _chosen(block: ExpertBlock, gate_up: Mxfp8Weight, x: Tensor, parts: Tensor, live: Tensor | None) -> _Choice:
    from recipes.components.gpu.routing_kernels import route_and_share

    (count, hidden), routed, some = x.shape, block.routed, eights(2)
    inner, chunks, rows = gate_up.outputs // 2, -(-hidden // _CHUNK), eights_of_rows(count)
    warps = min(_WARPS, power_above(chunks))
    turns, tickets = -(-chunks // warps), power_above(output_programs(routed, count))
    made = _Choice(
        torch.empty(count, routed.top, dtype=torch.float32, device=x.device),
        torch.empty(count, routed.top, dtype=torch.int32, device=x.device),
        torch.empty_like(x),
        torch.empty(count, dtype=torch.float32, device=x.device),
        torch.empty(count, inner, dtype=x.dtype, device=x.device),
        torch.empty(tickets, dtype=torch.int32, device=x.device),
    )
    route_and_share[(2 * count + -(-inner // (4 * some)) * -(-count // (8 * rows)),)](
        x, parts, made.weights, made.experts, made.gates, live, made.turned, made.tickets,
        gate_up.values.view(torch.uint8), gate_up.scales, made.shared, count, parts.shape[2], routed.count,
        power_above(routed.count), routed.top, power_above(routed.top), len(parts), tickets, inner, hidden, _TURNED,
        warps, some, rows, turns, min(_AHEAD, turns), **packed_options(x, warps),
    )  # fmt: skip
    return made


def _add_outputs(routed: PackedExperts, down: Mxfp8Weight, inner: Tensor, choice: _Choice, into: Injection) -> None:
    """Routed and shared experts' outputs, weighted, into the streams; few rows by the kernel that computes them."""
    from recipes.components.gpu.experts_kernels import experts_and_shared, sum_parts

    (count, top, size), (hidden, shared), tile = inner.shape, down.values.shape, output_tile(len(inner))
    parts = torch.empty(count, top + 1, hidden, dtype=torch.float32, device=inner.device)
    turns, own = -(-size // _CHUNK), -(-shared // _CHUNK)
    streams, rows = into.strengths.shape[1], 0 if count > APART else 1 if count == 1 else power_above(APART)
    experts_and_shared[(output_programs(routed, count), -(-count // 8) + count * top)](
        inner, routed.down, routed.down_scales, routed.down_singles, choice.experts, choice.shared,
        down.values.view(torch.uint8), down.scales, choice.gates, parts, choice.weights, into.state, into.strengths,
        choice.tickets, count, top, power_above(top), places(count), hidden, size, shared, _WARPS,
        eights(tile.outputs), turns, min(tile.ahead, turns), own, min(_OWN_AHEAD, own), streams, rows,
        **packed_options(inner, _WARPS), **tile.options(),
    )  # fmt: skip
    if rows == 0:
        early = chained(inner)
        sum_parts[(-(-hidden // _COLUMNS), -(-count // 8))](
            parts, choice.weights, into.state, into.strengths, count, top, hidden, _COLUMNS, streams, early,
            **({"launch_pdl": True} if early else {}),
        )  # fmt: skip
