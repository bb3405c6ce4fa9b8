"""Operators of Qwen3.8 on a device against the CPU's: n-gram rows, hyperconnections, experts over NVFP4 weights."""

from __future__ import annotations

import torch
from torch import Tensor

from recipes.components import nvfp4
from recipes.components.device_model import DeviceRows
from recipes.components.experts import Mixture
from recipes.components.gpu.experts import PackedExperts, mixture, route
from recipes.components.gpu.ngrams import DeviceHash, gather_rows, ngram_ids
from recipes.components.gpu.streams import feed, mix
from recipes.components.hyperconnection import Mixer
from recipes.components.ngram_hash import NgramHash
from tests.gpu.places import Place, distance


def test_ngram_ids_follow_drafted_tokens_and_stop_at_boundaries(place: Place) -> None:
    boundary, width = 3, 5
    hashed = DeviceHash(
        torch.tensor([0x9E3779B97F4A7C15 - (1 << 64), 0x3C6EF372FE94F82B, 0x2545F4914F6CDD1D]),
        torch.tensor([101, 103, 107, 109]),
        torch.tensor([0, 101, 204, 311]),
        boundary,
    )
    rows = DeviceRows(
        tokens=torch.tensor([7, boundary, 9, 40, 41] + [5] * 5 + [8, 9, 1, 1, 1]),
        slots=torch.tensor([1, -1, 0]),
        first=torch.zeros(3, dtype=torch.int64),
        counts=torch.tensor([5, 5, 2]),
        tables=torch.zeros(3, 1, dtype=torch.int32),
        width=width,
    )
    history = torch.tensor([[boundary, boundary], [17, 18], [-9, -9]])
    plain = NgramHash(hashed.multipliers, hashed.primes, hashed.offsets, boundary)
    wanted = torch.zeros(15, 4, dtype=torch.int64)
    for lane, count in ((0, 5), (2, 2)):
        part = slice(lane * width, lane * width + count)
        wanted[part] = plain.ids(history[rows.slots[lane]], rows.tokens[part])
    assert torch.equal(ngram_ids(history, hashed, rows), wanted)
    found = place.run(
        lambda h, m, p, o, r: ngram_ids(h, DeviceHash(m, p, o, boundary), r),
        history,
        hashed.multipliers,
        hashed.primes,
        hashed.offsets,
        rows,
    )
    assert torch.equal(found, wanted)


def test_table_rows_are_gathered_and_dequantised(place: Place) -> None:
    """Any byte is a pair of values; scales of all exponents, the subnormal ones too. Rows are padded."""
    size, ids = 96, torch.tensor([[4, 0], [6, 4], [1, 2]])
    table = torch.randint(0, 256, (7, 64), dtype=torch.uint8)
    table[:, 48:54] = torch.randint(0, 0x7F, (7, 6), dtype=torch.uint8)
    table[4, 48:51] = torch.tensor([0, 1, 7], dtype=torch.uint8)
    single = torch.tensor([0.37])
    wanted = gather_rows(table, single, ids, size, torch.float32)
    found = place.run(lambda t, s, i: gather_rows(t, s, i, size, place.dtype), table, single, ids)
    assert found.shape == (3, 192)
    assert distance(found, wanted) < place.tolerance


def mixer_of(place: Place, streams: int, hidden: int, low: int) -> Mixer:
    """Weights that the place's type holds exactly."""

    def drawn(*shape: int) -> Tensor:
        return place.rounded(torch.randn(shape) * 0.3)

    wide = streams * hidden
    return Mixer(drawn(wide), drawn(low, wide), drawn(wide, low), drawn(streams, wide), streams, 1e-6)


def test_streams_are_mixed_and_fed_alike(place: Place) -> None:
    mixer, state, output = mixer_of(place, 4, 40, 24), torch.randn(5, 160), torch.randn(5, 40)
    mixed, normed = mixer.mix(state)
    wanted = mixer.combine(state, normed, place.rounded(output))
    kept: list[Tensor] = []

    def through(state: Tensor, output: Tensor, mixer: Mixer) -> Tensor:
        found, normed = mix(mixer, state, place.dtype)
        kept.append(found.cpu())
        feed(mixer, state, normed, output)
        return state

    found = place.run(through, state.clone(), place.typed(output), mixer)
    # Sums over 160 rounded products behind a sigmoid: a little more than one rounding.
    assert distance(kept[0], mixed) < 2 * place.tolerance
    assert distance(found, wanted) < 2 * place.tolerance


def test_routing_takes_the_best_and_the_lower_of_equals(place: Place) -> None:
    scores = torch.randn(4, 24)
    scores[1, 5:9] = scores[1].max() + 1.0
    scores[2] = 0.25
    weights, chosen = route(scores, 3)
    kept: list[Tensor] = []

    def routed(scores: Tensor) -> Tensor:
        weights, chosen = route(scores, 3)
        kept.append(chosen.cpu())
        return weights

    found = place.run(routed, scores)
    assert torch.equal(kept[0], chosen)
    assert chosen[1].tolist() == [5, 6, 7]
    assert chosen[2].tolist() == [0, 1, 2]
    assert distance(found, weights) < 1e-5


def test_experts_compute_on_packed_weights(place: Place) -> None:
    """Against the CPU's mixture over the dequantised matrices. 80 inputs are five blocks, 48 are three."""
    hidden, inner, count, top = 80, 48, 6, 3
    router, shared = torch.randn(count, hidden), torch.randn(1, 2 * inner, hidden)
    matrices = torch.randn(count, 2 * inner, hidden), torch.randn(count, hidden, inner)
    gate_up = [
        [nvfp4.quantize(half, nvfp4.global_scale_of(half)) for half in matrix.chunk(2)] for matrix in matrices[0]
    ]
    singles = torch.stack([torch.stack([nvfp4.global_scale_of(half) for half in m.chunk(2)]) for m in matrices[0]])
    down = [nvfp4.quantize(matrix, nvfp4.global_scale_of(matrix)) for matrix in matrices[1]]
    experts = PackedExperts(
        gate_up=torch.stack([torch.cat([half[0] for half in pair]) for pair in gate_up]),
        gate_up_scales=torch.stack([torch.cat([half[1].view(torch.uint8) for half in pair]) for pair in gate_up]),
        gate_up_singles=singles,
        down=torch.stack([part[0] for part in down]),
        down_scales=torch.stack([part[1].view(torch.uint8) for part in down]),
        down_singles=torch.stack([nvfp4.global_scale_of(matrix) for matrix in matrices[1]]),
        top=top,
    )
    wide = torch.stack(
        [
            torch.cat([nvfp4.dequantize(*half, single) for half, single in zip(pair, own, strict=True)])
            for pair, own in zip(gate_up, singles, strict=True)
        ]
    )
    wide_down = torch.stack(
        [nvfp4.dequantize(*part, single) for part, single in zip(down, experts.down_singles, strict=True)]
    )
    x = place.rounded(torch.randn(5, hidden))
    shared_down, shared_gate = torch.randn(hidden, inner), torch.randn(1, hidden)
    wanted = Mixture(router, wide, wide_down, shared[0], shared_down, shared_gate, top)(x)
    gates, ups = (x @ shared[0].T).chunk(2, dim=1)
    own = (torch.nn.functional.silu(gates) * ups) @ shared_down.T
    weights, chosen = route(x @ router.T, top)
    arguments = (experts, weights, chosen, own, (x @ shared_gate.T)[:, 0])
    assert distance(mixture(x, *arguments), wanted) < 1e-5
    found = place.run(mixture, place.typed(x), *arguments)
    assert distance(found, wanted) < place.tolerance
