"""Recurrent state of lanes against the CPU's operators: what a round computes, and what commit and export make of it.

The CPU takes one lane after the other (short_convolution.py, gated_delta.py, gdn_recovery.py). Lanes here are of
different lengths, one is padding; rows of the pools that nobody names are NaN and have to stay as they are.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

from recipes.components import short_convolution
from recipes.components.device_model import DeviceRows
from recipes.components.gated_delta import Corrections, DeltaRows, delta_rows
from recipes.components.gdn_recovery import recover as recovered
from recipes.components.gpu.recurrence import DeltaGates, DeltaShape, Records, advance, convolve, delta, finish, recover
from tests.gpu.places import Place, distance

SHAPE = DeltaShape(key_heads=2, value_heads=4, key=16, value=8)
CHANNELS = 2 * 2 * 16 + 4 * 8
POOL = 7


def lanes_of(width: int, slots: list[int], counts: list[int]) -> DeviceRows:
    lanes, nothing = len(slots), torch.zeros(len(slots), dtype=torch.int64)
    tables = torch.zeros(lanes, 1, dtype=torch.int32)
    tokens = torch.arange(lanes * width)
    return DeviceRows(tokens, torch.tensor(slots), nothing, torch.tensor(counts), tables, width)


ROWS = lanes_of(4, [2, -1, 5, 0], [4, 4, 1, 0])


def pool(*shape: int) -> Tensor:
    """Committed state of the slots in use; NaN in all other rows."""
    found = torch.full((POOL, *shape), math.nan)
    for slot in (0, 2, 5):
        found[slot] = torch.randn(shape)
    return found


def valid(rows: DeviceRows) -> list[tuple[int, slice, int]]:
    """(slot, its rows, how many) of every lane that has some."""
    found = []
    for lane, (slot, count) in enumerate(zip(rows.slots.tolist(), rows.counts.tolist(), strict=True)):
        if slot >= 0 and count > 0:
            found.append((slot, slice(lane * rows.width, lane * rows.width + count), count))
    return found


@pytest.mark.parametrize(("taps", "dilation"), [(4, 1), (4, 3)])
def test_convolution_reads_history_and_leaves_it(place: Place, taps: int, dilation: int) -> None:
    history, weight = pool((taps - 1) * dilation, 40), torch.randn(40, taps)
    inputs = torch.randn(16, 40)
    found = place.run(lambda h, i, w, r: convolve(h, i, w, r, dilation), history, place.typed(inputs), weight, ROWS)
    for slot, part, _ in valid(ROWS):
        wanted = silu(short_convolution.convolve(history[slot], place.rounded(inputs)[part], weight, dilation))
        assert distance(found[part], wanted) < place.tolerance
    assert found.isfinite().all()


@pytest.mark.parametrize("targets", [[2, -1, 5, 0], [1, 3, -1, 4]])
def test_histories_advance_by_what_was_kept(place: Place, targets: list[int]) -> None:
    """In place for commit, into other rows for export; exact, since nothing is computed."""
    history, inputs, kept = pool(3, 40), torch.randn(16, 40), [3, 2, 0, 0]
    wanted = history.clone()
    for slot, target, lane in ((2, targets[0], 0), (5, targets[2], 2), (0, targets[3], 3)):
        if target >= 0:
            own = inputs[lane * 4 : lane * 4 + kept[lane]]
            wanted[target] = short_convolution.advanced(history[slot], own, kept[lane])

    def advanced(history: Tensor, inputs: Tensor, rows: DeviceRows, kept: Tensor, targets: Tensor) -> Tensor:
        advance(history, inputs, rows, kept, targets)
        return history

    found = place.run(advanced, history.clone(), inputs, ROWS, torch.tensor(kept), torch.tensor(targets))
    assert torch.equal(found.nan_to_num(7e7), wanted.nan_to_num(7e7))


def test_histories_of_tokens_advance_too(place: Place) -> None:
    tokens = torch.arange(POOL * 2).view(POOL, 2, 1)

    def advanced(pool: Tensor, inputs: Tensor, rows: DeviceRows, kept: Tensor) -> Tensor:
        advance(pool, inputs, rows, kept, rows.slots)
        return pool

    found = place.run(advanced, tokens.clone(), 1000 + ROWS.tokens[:, None], ROWS, torch.tensor([3, 2, 1, 0]))
    tokens[2, :, 0], tokens[5, :, 0] = torch.tensor([1001, 1002]), torch.tensor([11, 1008])
    assert torch.equal(found, tokens)


def delta_inputs(place: Place, rows: DeviceRows) -> tuple[Tensor, Tensor, Tensor, DeltaGates]:
    count = len(rows.tokens)
    mixed, rates, strengths = torch.randn(count, CHANNELS), torch.randn(count, 4), torch.randn(count, 4)
    rates[0, 0] = 30.0  # where softplus is the identity
    return place.rounded(mixed), rates, strengths, DeltaGates(0.3 * torch.randn(4), torch.randn(4))


def wanted_rows(mixed: Tensor, rates: Tensor, strengths: Tensor, gates: DeltaGates) -> DeltaRows:
    """The recurrence's inputs as the CPU's block makes them."""
    query, key, value = torch.tensor_split(mixed, (32, 64), dim=1)

    def unit(x: Tensor) -> Tensor:
        split = x.view(-1, 2, 16)
        return (split * torch.rsqrt(split.square().sum(-1, keepdim=True) + 1e-6)).repeat_interleave(2, 1)

    decays = torch.exp(-gates.log.exp() * softplus(rates + gates.bias))
    return DeltaRows(unit(query) * 16**-0.5, unit(key), value.view(-1, 4, 8), decays, strengths.sigmoid())


@pytest.mark.parametrize("rows", [ROWS, lanes_of(11, [5, 2], [11, 9])], ids=["verified", "chunk"])
def test_delta_rule_and_commit_of_any_prefix_agree(place: Place, rows: DeviceRows) -> None:
    states, (mixed, rates, strengths, gates) = pool(4, 16, 8), delta_inputs(place, rows)
    whole = rows.width > 8
    kept_back: list[tuple[Records, Tensor]] = []

    def ran(states: Tensor, mixed: Tensor, rates: Tensor, strengths: Tensor, g: DeltaGates, r: DeviceRows) -> Tensor:
        found, records = delta(states, mixed, rates, strengths, g, r, SHAPE)
        kept_back.append((records, states))
        return found

    found = place.run(ran, states.clone(), place.typed(mixed), rates, strengths, gates, rows)
    records, untouched = kept_back[0]
    assert torch.equal(untouched.cpu().nan_to_num(7e7), states.nan_to_num(7e7))
    after: dict[int, Corrections] = {}
    for slot, part, _ in valid(rows):
        own = wanted_rows(mixed[part], rates[part], strengths[part], gates)
        outputs, corrections = delta_rows(states[slot], own)
        assert distance(found[part], outputs) < place.tolerance
        after[slot] = corrections
    masked = torch.ones(len(found), dtype=torch.bool)
    for _, part, _ in valid(rows):
        masked[part] = False
    assert not found[masked].any()

    def kept_rows(states: Tensor, kept: Tensor, targets: Tensor, r: DeviceRows) -> Tensor:
        recover(states, records, r, kept, targets, SHAPE)
        return states

    lanes = len(rows.slots)
    choices = (
        [[int(count) for count in rows.counts], [0] * lanes] if whole else [[4, 2, 1, 0], [1, 0, 0, 0], [2, 3, 1, 0]]
    )
    for kept in choices:
        for targets in (rows.slots.tolist(), [1, 3, 4, 6][:lanes]):
            wanted = states.clone()
            for lane, (slot, target) in enumerate(zip(rows.slots.tolist(), targets, strict=True)):
                if slot >= 0:
                    wanted[target] = recover_one(states[slot], after.get(slot), kept[lane])
            got = place.run(kept_rows, states.clone(), torch.tensor(kept), torch.tensor(targets), rows)
            assert torch.equal(got.isnan(), wanted.isnan())
            # A chunk's state comes from products of the inputs' own type, a verified prefix's from float32 records.
            assert distance(got.nan_to_num(0.0), wanted.nan_to_num(0.0)) < (place.tolerance if whole else 2e-5)


def recover_one(state: Tensor, corrections: Corrections | None, kept: int) -> Tensor:
    return state if corrections is None else recovered(state, corrections, kept)


def test_outputs_are_normed_and_gated_by_head(place: Place) -> None:
    outputs, gates, norm = torch.randn(5, 4, 8), torch.randn(5, 32), torch.rand(8) + 0.5
    found = place.run(lambda o, g, n: finish(o, g, n, 1e-6), place.typed(outputs), place.typed(gates), norm)
    assert distance(found, finish(place.rounded(outputs), place.rounded(gates), norm, 1e-6)) < place.tolerance


def test_the_references_commit_what_the_operators_of_the_cpu_commit() -> None:
    torch.manual_seed(20261130)
    plain = Place(torch.device("cpu"), torch.float32, 1e-6)
    states, (mixed, rates, strengths, gates) = pool(4, 16, 8), delta_inputs(plain, ROWS)
    _, records = delta(states, mixed, rates, strengths, gates, ROWS, SHAPE)
    wanted = states.clone()
    recover(wanted, records, ROWS, torch.tensor([3, 0, 1, 0]), ROWS.slots, SHAPE)
    for slot, part, kept in ((2, slice(0, 4), 3), (5, slice(8, 9), 1)):
        own = wanted_rows(mixed[part], rates[part], strengths[part], gates)
        _, corrections = delta_rows(states[slot], own)
        assert distance(wanted[slot], recovered(states[slot], corrections, kept)) < 1e-6
