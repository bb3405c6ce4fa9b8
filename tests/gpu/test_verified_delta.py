"""The gated delta net of a verified round in one kernel, against its parts one after the other, and through commit."""

from __future__ import annotations

import math
from typing import cast

import pytest
import torch
from torch import Tensor

from recipes.components.device_model import DeviceRows
from recipes.components.gpu.recurrence import DeltaGates, DeltaShape, Records, recover
from recipes.components.gpu.verified_delta import DeltaNet, DeltaState, verified_delta
from tests.gpu.places import Place, distance

SHAPE = DeltaShape(key_heads=2, value_heads=6, key=16, value=8)
CHANNELS = 2 * 2 * 16 + 6 * 8
LINE = CHANNELS + 6 * 8 + 2 * 6
POOL = 6


def lanes_of(width: int, slots: list[int], counts: list[int]) -> DeviceRows:
    lanes = len(slots)
    nothing = torch.zeros(lanes, dtype=torch.int64)
    tables, tokens = torch.zeros(lanes, 1, dtype=torch.int32), torch.arange(lanes * width)
    return DeviceRows(tokens, torch.tensor(slots), nothing, torch.tensor(counts), tables, width)


def pool(used: list[int], *shape: int) -> Tensor:
    """Rows in use; NaN in all others."""
    found = torch.full((POOL, *shape), math.nan)
    for slot in used:
        found[slot] = torch.randn(shape)
    return found


def empty_records(count: int) -> Records:
    shape = SHAPE
    return Records(
        torch.full((count, shape.key_heads, shape.key), 7e7),
        torch.full((count, shape.value_heads, shape.value), 7e7),
        torch.full((count, shape.value_heads), 7e7),
        torch.empty(0),
    )


@pytest.mark.parametrize(
    ("width", "slots", "counts"),
    [(1, [4, -1], [1, 1]), (3, [2, -1, 5], [3, 3, 1]), (8, [1, 0], [8, 0])],
    ids=["one row", "three rows and fewer", "eight rows and none"],
)
def test_a_round_agrees_with_its_parts(place: Place, width: int, slots: list[int], counts: list[int]) -> None:
    rows, used = lanes_of(width, slots, counts), [slot for slot in slots if slot >= 0]
    net = DeltaNet(
        torch.randn(CHANNELS, 4), DeltaGates(0.3 * torch.randn(6), torch.randn(6)), 1.0 + 0.1 * torch.randn(8), 1e-6
    )
    matrices, history = pool(used, 6, 16, 8), place.rounded(pool(used, 3, CHANNELS))
    projected = place.rounded(torch.randn(len(rows.tokens), LINE))
    projected[0, -12] = 30.0  # where softplus is the identity
    wanted_records = empty_records(len(projected))
    wanted = verified_delta(net, DeltaState(matrices, history), projected, rows, SHAPE, wanted_records)
    state = DeltaState(matrices.clone(), place.typed(history))
    kept_back: list[Records] = []

    def ran(
        net: DeltaNet, gates: DeltaGates, state: DeltaState, projected: Tensor, rows: DeviceRows, records: Records
    ) -> Tensor:
        moved = DeltaNet(net.convolution, gates, net.norm, net.epsilon)
        found = verified_delta(moved, state, projected, rows, SHAPE, records)
        kept_back.append(records)
        assert torch.equal(state.matrices.cpu().nan_to_num(7e7), matrices.nan_to_num(7e7))
        return found

    found = place.run(ran, net, net.gates, state, place.typed(projected), rows, empty_records(len(projected)))
    live = (torch.arange(width) < rows.counts[:, None]) & (rows.slots >= 0)[:, None]
    assert not found[~live.flatten()].any()
    assert distance(found[live.flatten()], wanted[live.flatten()]) < place.tolerance
    [records] = kept_back

    def committed(matrices: Tensor, records: Records, rows: DeviceRows, kept: Tensor) -> Tensor:
        recover(matrices, records, rows, kept, rows.slots, SHAPE)
        return matrices

    for kept in (rows.counts, (rows.counts - 1).clamp_min(0)):
        after = committed(matrices.clone(), wanted_records, rows, kept)
        assert distance(place.run(committed, matrices.clone(), records, rows, kept)[used], after[used]) < 1e-4


def test_a_row_keeps_its_bits_whatever_follows_it(place: Place) -> None:
    net = DeltaNet(torch.randn(CHANNELS, 4), DeltaGates(torch.randn(6), torch.randn(6)), torch.ones(8), 1e-6)
    state = DeltaState(pool([1], 6, 16, 8), place.typed(pool([1], 3, CHANNELS)))
    projected = place.typed(torch.randn(3, LINE))

    def ran(
        net: DeltaNet, gates: DeltaGates, state: DeltaState, projected: Tensor, rows: DeviceRows, records: Records
    ) -> Tensor:
        moved = DeltaNet(net.convolution, gates, net.norm, net.epsilon)
        found = verified_delta(moved, state, projected, rows, SHAPE, records)
        parts = (found.float(), records.keys.flatten(1), records.values.flatten(1), records.decays)
        return torch.cat(parts, 1)

    def of(width: int) -> Tensor:
        rows = lanes_of(width, [1], [width])
        return cast(Tensor, place.run(ran, net, net.gates, state, projected[:width], rows, empty_records(width)))

    whole = of(3)
    for width in (1, 2):
        assert torch.equal(of(width), whole[:width])
