"""Linear layers over MXFP8 weights against the widened matrices, in every arrangement that a kernel chooses."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu

from recipes.components import mxfp8
from recipes.components.gpu.mxfp8_linear import Mxfp8Weight, mxfp8_gated, mxfp8_inject, mxfp8_linear, stacked, widened
from recipes.components.gpu.streams import Injection
from tests.gpu.places import Place, distance


def drawn(outputs: int, inner: int) -> Mxfp8Weight:
    """Weights over many powers of two, with an empty block."""
    matrix = torch.randn(outputs, inner) * torch.exp2(torch.randint(-14, -2, (outputs, 1)).float())
    matrix[outputs // 2, :32] = 0
    return Mxfp8Weight(*mxfp8.quantize(matrix))


@pytest.mark.parametrize(
    ("count", "outputs", "inner"),
    [
        pytest.param(1, 24, 64, id="one row, half a chunk, an uneven tile"),
        pytest.param(5, 40, 384, id="three chunks for four warps"),
        pytest.param(11, 16, 1024, id="eight warps, more rows than eight"),
        pytest.param(35, 16, 128, id="more rows than a program takes"),
        pytest.param(70, 32, 96, id="many rows"),
    ],
)
def test_rows_go_through_packed_weights(place: Place, count: int, outputs: int, inner: int) -> None:
    weight, x = drawn(outputs, inner), place.rounded(torch.randn(count, inner))
    wanted = x @ weight.wide().T
    assert distance(mxfp8_linear(x, weight), wanted) < 1e-6
    found = place.run(mxfp8_linear, place.typed(x), weight)
    assert found.dtype == place.dtype
    size = weight.wide().norm(dim=1)  # outputs differ by powers of two: each one counts alike
    assert distance(found / size, wanted / size) < place.tolerance


def test_gates_are_applied_to_the_two_halves(place: Place) -> None:
    weight, x = drawn(40, 256), place.rounded(torch.randn(3, 256))
    gate, up = (x @ weight.wide().T).chunk(2, dim=1)
    found = place.run(mxfp8_gated, place.typed(x), weight)
    assert distance(found, silu(gate) * up) < place.tolerance


def test_outputs_go_into_the_streams(place: Place) -> None:
    weight, x = drawn(24, 128), place.rounded(torch.randn(9, 128))
    state, strengths = torch.randn(9, 2 * 24), torch.rand(9, 2)
    wanted = (strengths[:, :, None] * (x @ weight.wide().T)[:, None]).flatten(1)

    def through(x: Tensor, weight: Mxfp8Weight, state: Tensor, strengths: Tensor) -> Tensor:
        mxfp8_inject(x, weight, Injection(state, strengths))
        return state

    found = place.run(through, place.typed(x), weight, state.clone(), strengths)
    assert distance(found - state, wanted) < 1e-3  # nothing is rounded but the sum, which is larger than what is added


def test_a_row_does_not_depend_on_its_neighbours(place: Place) -> None:
    """On the card bit for bit, alone and in company, whatever kernel serves that many; NumPy adds apart."""
    weight, x = drawn(32, 512), place.typed(torch.randn(19, 512))
    alone = torch.cat([place.run(mxfp8_linear, x[row : row + 1], weight) for row in (0, 9, 18)])
    found = place.run(mxfp8_linear, x, weight)[[0, 9, 18]]
    assert distance(found, alone) <= (0 if place.device.type == "cuda" else place.tolerance)


@pytest.mark.parametrize("count", [5, 19])
def test_wide_layers_change_no_bit(place: Place, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """A program walks through two tiles or has a larger one, and the last less; NumPy adds apart."""
    weight, x = drawn(200, 512), place.typed(torch.randn(count, 512))
    narrow, allowed = place.run(mxfp8_linear, x, weight), 0 if place.device.type == "cuda" else place.tolerance
    monkeypatch.setattr("recipes.components.gpu.mxfp8_linear._ONE_WAVE", 0)
    assert distance(place.run(mxfp8_linear, x, weight), narrow) <= allowed


def test_every_value_and_scale_widens_exactly(place: Place) -> None:
    """All finite E4M3 bytes under scales from 2^-40 to 2^7, picked out one by one."""
    bytes = torch.arange(256, dtype=torch.uint8)
    bytes[(bytes & 0x7F) == 0x7F] = 0
    values = bytes.view(torch.float8_e4m3fn).expand(16, 256).contiguous()
    weight = Mxfp8Weight(values, torch.randint(87, 135, (16, 8), dtype=torch.uint8))
    picked = torch.eye(256).view(4, 64, 256)
    found = torch.cat([place.run(mxfp8_linear, place.typed(part), weight, torch.float32) for part in picked])
    assert torch.equal(found, weight.wide().T)
    assert torch.equal(weight.wide(torch.bfloat16).float(), weight.wide())


def test_a_matrix_is_widened_exactly(place: Place) -> None:
    """Every byte that is a number under every scale that the type holds, in a last program that is not full."""
    bytes = torch.arange(256, dtype=torch.uint8)
    bytes[(bytes & 0x7F) == 0x7F] = 0
    exponents = torch.arange(0 if place.dtype == torch.float32 else 8, 244, dtype=torch.uint8)
    weight = Mxfp8Weight(
        bytes.view(torch.float8_e4m3fn).expand(len(exponents), 256).contiguous(),
        exponents[:, None].expand(-1, 8).contiguous(),
    )
    assert torch.equal(place.run(widened, weight, place.dtype).float(), weight.wide())


def test_stacked_layers_are_one() -> None:
    first, second = drawn(16, 64), drawn(32, 64)
    assert torch.equal(stacked(first, second).wide(), torch.cat([first.wide(), second.wide()]))
