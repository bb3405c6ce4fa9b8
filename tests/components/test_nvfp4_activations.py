"""Rounded activations: equal to an implementation over ml_dtypes bit for bit, and what the format promises."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recipes.components.nvfp4 import BLOCK
from recipes.components.nvfp4_activations import InputScales, rounded, shared_by
from tests.components.nvfp4_rounding import rounded_by_ml_dtypes

SCALES = (2.0**-9, 4.0 / 2688, 0.0123, 1.0)


def drawn(rows: int, size: int, seed: int) -> torch.Tensor:
    """Rows of widely different magnitudes, some blocks zero, some values far out."""
    generator = torch.Generator().manual_seed(seed)
    found = torch.randn(rows, size, generator=generator) * torch.logspace(-6, 5, rows)[:, None]
    found[0, :BLOCK] = 0.0
    found[:, BLOCK] *= 50.0
    return found


def halfway(scale: float) -> torch.Tensor:
    """Blocks whose values stand exactly between two codes; the last value of each sets the block scale."""
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -0.25, -0.75, -1.25, -1.75, -2.5, -3.5, -5.0, 0.0, 6.0])
    return torch.stack([ties * step * scale for step in (2.0**-6, 1.0, 2.0, 448.0)])


@pytest.mark.parametrize("scale", SCALES)
def test_rounding_is_that_of_the_format_in_another_implementation(scale: float) -> None:
    rows = torch.cat([drawn(96, 320, 1), halfway(scale).repeat(1, 20)])
    assert torch.equal(rounded(rows, torch.tensor(scale)), rounded_by_ml_dtypes(rows, torch.tensor(scale)))


def test_half_way_values_go_to_the_even_code() -> None:
    even = torch.tensor([0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, -0.0, -1.0, -1.0, -2.0, -2.0, -4.0, -4.0, 0.0, 6.0])
    scale = 2.0**-9
    wanted = torch.stack([even * step * scale for step in (2.0**-6, 1.0, 2.0, 448.0)])
    assert torch.equal(rounded(halfway(scale), torch.tensor(scale)), wanted)


def test_a_row_does_not_depend_on_its_batch() -> None:
    rows, scale = drawn(33, 64, 2), torch.tensor(0.0123)
    alone = torch.cat([rounded(row[None], scale) for row in rows])
    for count in range(1, 34):
        assert torch.equal(rounded(rows[:count], scale), alone[:count])


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**31), st.sampled_from(SCALES))
def test_what_is_rounded_stays_near_in_range_and_as_it_is(seed: int, scale: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    unit = torch.tensor(scale)
    rows = torch.randn(8, 48, generator=generator) * torch.logspace(-3, 4, 8)[:, None]
    found = rounded(rows, unit)
    blocks = torch.unflatten(rows, -1, (-1, BLOCK))
    largest = blocks.abs().amax(-1, keepdim=True)
    limit = 6 * 448 * unit
    assert bool((found.abs() <= limit * (1 + 1e-6)).all())
    assert torch.equal(found.sign() * rows.sign(), found.sign().abs())  # no value changes sides
    # Half the widest step, 2 of 6, of a block scale that is off by a sixteenth at most, unless it left E4M3's range.
    inside = (largest <= limit) & (largest >= limit * 2.0**-6 / 448)
    error = (torch.unflatten(found, -1, (-1, BLOCK)) - blocks).abs()
    assert bool((error <= largest / 6 * (1 + 1 / 16) + 1e-6 * largest)[inside.expand_as(error)].all())
    again = rounded(found, unit)
    assert torch.equal(again[inside.expand_as(error).flatten(-2)], found[inside.expand_as(error).flatten(-2)])


def test_blocks_below_the_smallest_scale_are_zero_and_beyond_the_largest_saturate() -> None:
    unit = torch.tensor(2.0**-9)
    tiny = torch.full((1, BLOCK), 6 * 2.0**-9 * 2.0**-10)
    assert torch.equal(rounded(tiny, unit), torch.zeros(1, BLOCK))  # half of 2^-9 is a tie, and zero is even
    assert bool((rounded(tiny * 1.01, unit) > 0).all())
    far = torch.tensor([[1e6, -1e6, torch.inf, *[0.5] * (BLOCK - 3)]])
    most = 6 * 448 * 2.0**-9
    assert rounded(far, unit)[0, :4].tolist() == [most, -most, most, 0.4375]


def test_nan_is_not_hidden() -> None:
    rows = torch.ones(2, 2 * BLOCK)
    rows[1, 3] = torch.nan
    found = rounded(rows, torch.tensor(2.0**-9)).isnan()
    assert found[0].sum() == 0
    assert found[1, :BLOCK].all()
    assert not found[1, BLOCK:].any()


def test_one_rounded_input_serves_gate_and_up() -> None:
    scales = InputScales(shared_by(torch.tensor([1.0, 4.0]), torch.tensor([2.0, 3.0])), torch.ones(2))
    assert scales.gate_up.tolist() == [2.0, 4.0]
