"""Matrices of both kinds as one layer: outputs, views of some of them, and what a block adds to its streams."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from recipes.components import mxfp8
from recipes.components.gpu.matrices import Matrix, before, behind, inject, joined, multiply
from recipes.components.gpu.mxfp8_linear import Mxfp8Weight
from recipes.components.gpu.ngrams import GateNorms, gate_values
from recipes.components.gpu.streams import Injection
from tests.gpu.places import Place, distance

INNER = 96


def matrix(place: Place, kind: str, outputs: int) -> Matrix:
    drawn = torch.randn(outputs, INNER)
    return Mxfp8Weight(*mxfp8.quantize(drawn)) if kind == "mxfp8" else place.typed(drawn)


def wide(weight: Matrix) -> Tensor:
    return weight.wide() if isinstance(weight, Mxfp8Weight) else weight.float()


@pytest.mark.parametrize("kind", ["plain", "mxfp8"])
def test_a_block_goes_through_one_matrix_into_its_streams(place: Place, kind: str) -> None:
    parts = [matrix(place, kind, outputs) for outputs in (24, 16)]
    whole, x = joined(parts), place.rounded(torch.randn(3, INNER))
    wanted = torch.cat([x @ wide(part).T for part in parts], 1)
    assert distance(place.run(multiply, place.typed(x), whole), wanted) < place.tolerance
    assert distance(place.run(multiply, place.typed(x), behind(whole, 16)), wanted[:, 16:]) < place.tolerance
    assert distance(place.run(multiply, place.typed(x), before(whole, 16)), wanted[:, :16]) < place.tolerance
    room = torch.full((2, 3, 40), 7.0)
    found = place.run(lambda x, w, out: multiply(x, w, out=out[1]), place.typed(x), whole, place.typed(room))
    assert distance(found, wanted) < place.tolerance
    state, strengths = torch.randn(3, 4 * 40), torch.rand(3, 4)

    def fed(x: Tensor, weight: Matrix, into: Injection) -> Tensor:
        inject(x, weight, into)
        return into.state

    found = place.run(fed, place.typed(x), whole, Injection(state.clone(), strengths))
    expected = state + (strengths[..., None] * wanted[:, None]).flatten(1)
    assert distance(found, expected) < place.tolerance


def test_kinds_are_joined_as_plain_ones(place: Place) -> None:
    parts = [matrix(place, "mxfp8", 16), matrix(place, "plain", 8)]
    found = joined(parts)
    assert isinstance(found, Tensor)
    assert torch.equal(found.float(), place.rounded(torch.cat([wide(part) for part in parts])))


def test_values_are_gated_into_the_streams(place: Place) -> None:
    """A score of zero opens a gate half way; the square root of the others keeps their sign."""
    streams, hidden, count = 4, 40, 5
    key, query, own = 0.3 * torch.randn(3, streams * hidden)
    norms = GateNorms(key, query, own, streams, 1e-6)
    projected = place.rounded(torch.randn(count, (streams + 1) * hidden))
    projected[2, :hidden] = 0.0
    state = torch.randn(count, streams * hidden)
    kept: list[Tensor] = []

    def gated(norms: GateNorms, projected: Tensor, state: Tensor) -> Tensor:
        kept.append(gate_values(norms, projected, state).cpu())
        return state

    wanted = gated(norms, projected, state.clone())
    found = place.run(gated, norms, place.typed(projected), state.clone())
    value = projected[2, -hidden:]
    assert distance(wanted[2, :hidden] - state[2, :hidden], value / 2) < 1e-5
    assert distance(found, wanted) < place.tolerance
    assert distance(kept[1], kept[0]) < place.tolerance
