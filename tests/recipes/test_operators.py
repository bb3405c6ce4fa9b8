"""Operators against their references, at odd shapes too."""

from __future__ import annotations

import pytest
import torch

from recipes.components.int8_linear import (
    PARTS,
    ZERO,
    int8_linear,
    integer_products_are_exact,
    quantise_channels,
    reference_int8_linear,
    split_rows,
)
from recipes.components.paged_attention import (
    Heads,
    attend_lane,
    causal_mask,
    page_pools,
    reference_attention,
    span_of,
)
from recipes.components.rms_norm import divisor, reference_rms_norm, scaled_weight
from recipes.components.rotary import pair_heads, reference_rotate, rotate, rotations
from tests.recipes.llama import halves


def test_integer_products_are_exact_on_this_machine() -> None:
    assert integer_products_are_exact()


@pytest.mark.parametrize(("outer", "inner"), [(960, 576), (576, 1536), (7, 5), (33, 65), (1, 1)])
def test_a_linear_row_is_exact_and_its_own_at_every_row_count(outer: int, inner: int) -> None:
    generator = torch.Generator().manual_seed(outer)
    weight, scale = quantise_channels(torch.randn(outer, inner, generator=generator))
    layer = int8_linear(weight, scale)
    rows = torch.randn(64, inner, generator=generator) * torch.logspace(-6, 6, 64)[:, None]
    alone = torch.cat([layer(row[None]) for row in rows])
    wanted = reference_int8_linear(rows, weight, scale)
    torch.testing.assert_close(
        alone / wanted.norm(dim=1, keepdim=True), wanted / wanted.norm(dim=1, keepdim=True), rtol=1e-5, atol=1e-6
    )
    for count in range(2, 65):
        assert torch.equal(layer(rows[-count:]), alone[-count:]), count


def test_parts_restore_a_row_to_half_a_low_step() -> None:
    rows = torch.randn(200, 300, generator=torch.Generator().manual_seed(0))
    rows[0] = 0.0
    rows[1, 0], rows[2, 0] = 1e4, 1e-25
    parts, top = split_rows(rows)
    assert int(parts.max()) <= 127  # what keeps 16-bit pair sums from saturating
    high, low = (parts.double() - ZERO).view(2, 200, 300)
    restored = (high + low / PARTS) * top.double() / 63
    assert float(((restored - rows).abs() / top)[1:].max()) <= 0.5 / PARTS / 63 + 1e-6
    weight, scale = quantise_channels(torch.ones(3, 300))
    assert float(int8_linear(weight, scale)(rows[:1]).abs().max()) < 1e-25


def test_not_finite_rows_stay_not_finite() -> None:
    weight, scale = quantise_channels(torch.ones(3, 8))
    rows = torch.ones(3, 8)
    rows[0, 2], rows[1, 3] = torch.nan, torch.inf
    found = int8_linear(weight, scale)(rows).isfinite()
    assert found.all(dim=1).tolist() == [False, False, True]


def test_norm_in_two_halves_agrees_with_its_reference() -> None:
    rows, weight = torch.randn(9, 40) * torch.logspace(-4, 3, 9)[:, None], torch.randn(40)
    found = rows * scaled_weight(weight) / divisor(rows, 1e-5)
    torch.testing.assert_close(found, reference_rms_norm(rows, weight, 1e-5), rtol=1e-5, atol=1e-6)


def test_rotation_agrees_with_its_reference_and_pairing_is_undone() -> None:
    heads = torch.randn(5, 3, 16)
    positions = torch.tensor([0, 1, 7, 1000, 1999])
    wanted = reference_rotate(heads, positions, 1e4)
    rotate(heads, rotations(2000, 16, 1e4)[positions][:, None])
    torch.testing.assert_close(heads, wanted, rtol=1e-4, atol=1e-5)
    weight = torch.randn(48, 7)
    assert torch.equal(halves(pair_heads(weight, 3), 3), weight)


@pytest.mark.parametrize("table", [[2, 3, 4], [5, 0, 3]], ids=["consecutive", "scattered"])
@pytest.mark.parametrize(("first", "count"), [(0, 1), (0, 70), (63, 2), (130, 8)])
def test_paged_attention_agrees_with_its_reference(table: list[int], first: int, count: int) -> None:
    heads = Heads(queries=6, keys=2, size=8)
    generator = torch.Generator().manual_seed(first)
    pages = torch.tensor(table)
    state = torch.randn(heads.planes, first + count, heads.size, generator=generator)
    pools = page_pools(1, 8, heads).fill_(torch.nan)  # what lies outside a span must never be read
    for start, stop in ((0, first), (first, first + count)):
        if start == stop:
            continue
        span = span_of(pages, start, stop - start)
        for view in span.views(pools):
            view.copy_(state[:, start:stop])
        if span.rows is not None:
            span.scatter(pools[0], state[:, start:stop])
    queries = torch.randn(count, 6, 8, generator=generator)
    seen = span_of(pages, 0, first + count)
    context = seen.gather(pools[0]) if seen.rows is not None else seen.views(pools)[0]
    assert torch.equal(context, state)
    found = attend_lane(queries, context, heads, causal_mask(first, count, heads.group))
    wanted = reference_attention(queries, state[:2], state[2:], heads, first)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
