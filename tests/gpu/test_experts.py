"""Experts over NVFP4 weights on a device against the CPU's mixture over the dequantised matrices, and their routing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu

from recipes.components import mxfp8, nvfp4
from recipes.components.experts import Mixture
from recipes.components.gpu.expert_block import ExpertBlock, expert_block
from recipes.components.gpu.experts import PackedExperts, mixture, route
from recipes.components.gpu.mxfp8_linear import Mxfp8Weight
from recipes.components.gpu.streams import Injection
from tests.gpu.places import Place, distance


def test_routing_takes_the_best_and_the_lower_of_equals(place: Place) -> None:
    scores = torch.randn(4, 25)[:, :24]  # rows lie apart
    scores[1, 5:9] = scores[1].max() + 1.0
    scores[2] = 0.25
    weights, chosen = route(scores, 3)
    kept: list[Tensor] = []

    def routed(scores: Tensor) -> Tensor:
        weights, chosen = route(scores[:, :24], 3)
        kept.append(chosen.cpu())
        return weights

    found = place.run(routed, scores)
    assert torch.equal(kept[0], chosen)
    assert chosen[1].tolist() == [5, 6, 7]
    assert chosen[2].tolist() == [0, 1, 2]
    assert distance(found, weights) < 1e-5


def test_masked_rows_choose_nobody(place: Place) -> None:
    scores, live = torch.randn(5, 24), torch.tensor([7, -1, 0, -1, 3], dtype=torch.int32)
    kept: list[Tensor] = []

    def routed(scores: Tensor, live: Tensor) -> Tensor:
        weights, chosen = route(scores, 3, live)
        kept.append(chosen.cpu())
        return weights

    plain, masked = route(scores, 3), live < 0
    for found in (place.run(routed, scores, live), routed(scores, live)):
        assert not found[masked].any()
        assert (kept[-1][masked] == -1).all()
        assert distance(found[~masked], plain[0][~masked]) < 1e-5
        assert torch.equal(kept[-1][~masked], plain[1][~masked])


@pytest.mark.parametrize("junk", [float("inf"), float("nan"), -3.0])
def test_what_has_no_weight_is_not_added_whatever_lies_there(place: Place, junk: float) -> None:
    """Nobody computes it, and memory holds what was there before."""
    parts, state = torch.randn(3, 4, 32), torch.randn(3, 64)
    weights, strengths = torch.tensor([[0.5, 0, 0], [0, 0, 0], [0.25, 0, 0.75]]), torch.rand(3, 2)
    weighted = (parts[:, :3] * weights[:, :, None]).sum(1) + parts[:, 3]
    wanted = state + (weighted[:, None] * strengths[:, :, None]).reshape(3, 64)
    parts[:, :3][weights == 0] = junk

    def added(parts: Tensor, weights: Tensor, state: Tensor, strengths: Tensor) -> Tensor:
        from recipes.components.gpu.experts_kernels import sum_parts

        sum_parts[(1, 1)](parts, weights, state, strengths, 3, 3, 32, 32, 2, False)
        return state

    assert distance(place.run(added, parts, weights, state.clone(), strengths), wanted) < 1e-6


@dataclass(frozen=True)
class Layer:
    """A mixture twice: packed, and over the same matrices dequantised."""

    packed: PackedExperts
    plain: Mixture

    def arguments(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Routing weights and choice, the shared expert's output and its gate for rows `x`."""
        weights, chosen = route(x @ self.plain.router.T, self.packed.top)
        gates, ups = (x @ self.plain.shared_gate_up.T).chunk(2, dim=1)
        return weights, chosen, (silu(gates) * ups) @ self.plain.shared_down.T, (x @ self.plain.shared_gate.T)[:, 0]


def packed(matrices: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Bytes, scales as bytes, global scales, and the matrices that they stand for, of [E, out, in]."""
    singles = torch.stack([nvfp4.global_scale_of(matrix) for matrix in matrices])
    found = [nvfp4.quantize(matrix, single) for matrix, single in zip(matrices, singles, strict=True)]
    wide = [nvfp4.dequantize(*pair, single) for pair, single in zip(found, singles, strict=True)]
    return (
        torch.stack([values for values, _ in found]),
        torch.stack([scales.view(torch.uint8) for _, scales in found]),
        singles,
        torch.stack(wide),
    )


def layer(count: int, top: int, hidden: int, inner: int) -> Layer:
    gate, up = packed(torch.randn(count, inner, hidden)), packed(3 * torch.randn(count, inner, hidden))
    down = packed(torch.randn(count, hidden, inner))
    return Layer(
        PackedExperts(
            gate_up=torch.cat([gate[0], up[0]], dim=1),
            gate_up_scales=torch.cat([gate[1], up[1]], dim=1),
            gate_up_singles=torch.stack([gate[2], up[2]], dim=1),
            down=down[0],
            down_scales=down[1],
            down_singles=down[2],
            top=top,
        ),
        Mixture(
            router=torch.randn(count, hidden),
            gate_up=torch.cat([gate[3], up[3]], dim=1),
            down=down[3],
            shared_gate_up=torch.randn(2 * inner, hidden),
            shared_down=torch.randn(hidden, inner),
            shared_gate=torch.randn(1, hidden),
            top=top,
        ),
    )


@pytest.mark.parametrize(
    ("rows", "count", "top", "hidden", "inner"),
    [
        pytest.param(1, 6, 3, 80, 48, id="one row, scales that start at odd bytes"),
        pytest.param(3, 3, 2, 160, 16, id="rows share experts"),
        pytest.param(10, 2, 1, 96, 16, id="more rows of an expert than eight"),
    ],
)
def test_experts_compute_on_packed_weights(
    place: Place, rows: int, count: int, top: int, hidden: int, inner: int
) -> None:
    own, x = layer(count, top, hidden, inner), place.rounded(torch.randn(rows, hidden))
    arguments, wanted = own.arguments(x), own.plain(x)
    assert distance(mixture(x, own.packed, *arguments), wanted) < 1e-5
    found = place.run(mixture, place.typed(x), own.packed, *arguments)
    assert distance(found, wanted) < place.tolerance


def test_a_row_does_not_depend_on_its_neighbours(place: Place) -> None:
    """On the card bit for bit: alone, among eight, and in a crowd that shares its experts; NumPy adds apart."""
    own, x = layer(2, 1, 128, 16), place.rounded(torch.randn(10, 128))
    arguments = own.arguments(x)

    def outputs(part: slice) -> Tensor:
        found = place.run(mixture, place.typed(x)[part], own.packed, *(argument[part] for argument in arguments))
        assert isinstance(found, Tensor)
        return found

    crowd, allowed = outputs(slice(None)), 0 if place.device.type == "cuda" else place.tolerance
    assert distance(outputs(slice(1)), crowd[:1]) <= allowed
    assert distance(outputs(slice(7, None)), crowd[7:]) <= allowed


@pytest.mark.parametrize("kind", ["mxfp8", "plain"])
@pytest.mark.parametrize("rows", [1, 10])
def test_a_whole_block_goes_into_the_streams(place: Place, rows: int, kind: str) -> None:
    """Router, routed experts and the shared one, which is MXFP8 in the target and plain in the drafter."""
    hidden, inner, streams = 96, 32, 2
    own, x = layer(4, 2, hidden, inner), place.rounded(torch.randn(rows, hidden))
    up_down = [Mxfp8Weight(*mxfp8.quantize(torch.randn(shape))) for shape in ((2 * inner, hidden), (hidden, inner))]
    router = place.rounded(torch.cat([own.plain.router, own.plain.shared_gate]) / hidden**0.5)
    plain = replace(
        own.plain,
        router=router[:-1],
        shared_gate=router[-1:],
        shared_gate_up=up_down[0].wide(),
        shared_down=up_down[1].wide(),
    )
    state, strengths = torch.randn(rows, streams * hidden), torch.rand(rows, streams)
    wanted = state + (strengths[:, :, None] * plain(x)[:, None]).flatten(1)
    shared = up_down if kind == "mxfp8" else [place.typed(weight.wide()) for weight in up_down]
    parts: list[Any] = [place.take(part) for part in (place.typed(router), own.packed, *shared)]

    def through(x: Tensor, state: Tensor, strengths: Tensor) -> Tensor:
        expert_block(ExpertBlock(*parts), x, Injection(state, strengths))
        return state

    found = place.run(through, place.typed(x), state.clone(), strengths)
    assert distance(found - state, wanted - state) < place.tolerance


def block(place: Place, own: Layer, hidden: int, inner: int) -> ExpertBlock:
    """A block over `own`'s router and routed experts with a shared expert of its own, where the test runs."""
    up_down: list[Any] = [
        place.take(Mxfp8Weight(*mxfp8.quantize(torch.randn(shape)))) for shape in ((2 * inner, hidden), (hidden, inner))
    ]
    router = place.typed(torch.cat([own.plain.router, own.plain.shared_gate]) / hidden**0.5)
    return ExpertBlock(place.take(router), place.take(own.packed), *up_down)


def said(place: Place, block: ExpertBlock, x: Tensor, streams: int = 2) -> Tensor:
    """What a block adds to empty streams for rows `x`."""

    def through(x: Tensor, state: Tensor, strengths: Tensor) -> Tensor:
        expert_block(block, x, Injection(state, strengths))
        return state

    found = place.run(through, x, torch.zeros(len(x), streams * x.shape[1]), torch.ones(len(x), streams))
    assert isinstance(found, Tensor)
    return found


def test_a_block_chooses_the_best_and_the_lower_of_equals(place: Place) -> None:
    """Each of four warps has a share: all winners in one of them, and equal ones in three. Sums are exact."""
    hidden, inner = 512, 32
    own, x = layer(32, 3, hidden, inner), torch.randn(2, hidden).sign()
    own.plain.router[4] = (1 + 1 / 64) * x[0]
    for other in (3, 17, 28):
        own.plain.router[other] = x[0]
    for best in (9, 11, 14):
        own.plain.router[best] = (1 + best / 64) * x[1]
    made = block(place, own, hidden, inner)
    chosen = route(x @ made.router.cpu().float()[:-1].T, 3)[1]
    assert chosen.tolist() == [[4, 3, 17], [14, 11, 9]]
    shared = [part.to(torch.device("cpu")) for part in (made.shared_gate_up, made.shared_down)]
    wanted, plain = torch.zeros(2, 2 * hidden), ExpertBlock(made.router.cpu().float(), own.packed, *shared)
    expert_block(plain, x, Injection(wanted, torch.ones(2, 2)))
    assert distance(said(place, made, place.typed(x)), wanted) < 5e-2  # another choice is another answer


def test_a_row_of_a_block_does_not_depend_on_its_neighbours(place: Place) -> None:
    """On the card bit for bit, whichever kernels serve that many rows; NumPy adds apart."""
    hidden, inner = 96, 32
    own, x = layer(4, 2, hidden, inner), place.typed(torch.randn(11, hidden))
    made = block(place, own, hidden, inner)
    crowd, allowed = said(place, made, x), 0 if place.device.type == "cuda" else place.tolerance
    for part in (slice(3, 4), slice(2, 9)):
        assert distance(said(place, made, x[part]), crowd[part]) <= allowed


@pytest.mark.parametrize(
    ("rows", "masked", "kind"), [(3, [1], "mxfp8"), (10, [0, 6, 7, 8, 9], "mxfp8"), (10, [0, 6, 7, 8, 9], "plain")]
)
def test_masked_rows_say_nothing_to_the_others(
    place: Place, monkeypatch: pytest.MonkeyPatch, rows: int, masked: list[int], kind: str
) -> None:
    """Live rows are what they are without the mask, bit for bit; nobody's memory is NaN, and none of it is found."""
    hidden, inner, streams = 96, 32, 2
    own, x = layer(4, 2, hidden, inner), place.typed(torch.randn(rows, hidden))
    shared: list[Any] = [
        Mxfp8Weight(*mxfp8.quantize(torch.randn(shape))) for shape in ((2 * inner, hidden), (hidden, inner))
    ]
    if kind == "plain":
        shared = [place.typed(weight.wide()) for weight in shared]
    router = place.typed(torch.cat([own.plain.router, own.plain.shared_gate]) / hidden**0.5)
    parts: list[Any] = [place.take(part) for part in (router, own.packed, *shared)]
    empty = torch.empty
    nan = [torch.float32, torch.bfloat16]
    monkeypatch.setattr(
        torch, "empty", lambda *a, **k: made.fill_(torch.nan) if (made := empty(*a, **k)).dtype in nan else made
    )

    def through(x: Tensor, live: Tensor | None) -> Tensor:
        state, strengths = torch.zeros(rows, streams * hidden), torch.ones(rows, streams)
        state, strengths = state.to(x.device), strengths.to(x.device)
        expert_block(ExpertBlock(*parts), x, Injection(state, strengths), live)
        return state

    live = torch.arange(rows, dtype=torch.int32)
    live[masked] = -1
    found, wanted = place.run(through, x, live), place.run(through, x, None)
    assert torch.equal(found[live >= 0], wanted[live >= 0])
    assert found.isfinite().all()
    assert (found != wanted).any(1)[live < 0].all()  # of routed experts they have nothing
