"""Operators of Qwen3.8 on a device against the CPU's: n-gram rows, hyperconnections, experts over NVFP4 weights."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from recipes.components.device_model import DeviceRows
from recipes.components.gpu.ngrams import DeviceHash, gather_rows, ngram_ids
from recipes.components.gpu.streams import FEW_ROWS, DeviceMixer, feed, mix
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


@pytest.mark.parametrize("count", [1, 11, FEW_ROWS + 1])
def test_streams_are_mixed_and_fed_alike(place: Place, count: int) -> None:
    mixer, state, output = mixer_of(place, 4, 40, 24), torch.randn(count, 160), torch.randn(count, 40)
    mixed, normed = mixer.mix(state)
    wanted = mixer.combine(state, normed, place.rounded(output))
    kept: list[Tensor] = []

    def through(state: Tensor, output: Tensor, mixer: DeviceMixer) -> Tensor:
        found, strengths = mix(mixer, state, place.dtype)
        kept.append(found.cpu())
        feed(state, strengths, output)
        return state

    found = place.run(through, state.clone(), place.typed(output), DeviceMixer.of(mixer, place.dtype))
    # Sums over 160 rounded products behind a sigmoid: a little more than one rounding.
    assert distance(kept[0], mixed) < 2 * place.tolerance
    assert distance(found, wanted) < 2 * place.tolerance
