"""The selector: groups of four, the open tail, ties, and rings that never hand out what they do not hold."""

from __future__ import annotations

import pytest
import torch

from recipes.components.indexed_attention import Indexer, RawKeyRings, attend_selected, ring_capacity
from shared.errors import ContractBreach

INDEXER = Indexer(heads=4, size=16, ratio=4, budget=2, rotary=8, theta=1e7, epsilon=1e-6)


def chosen(mask: torch.Tensor) -> list[int]:
    return [int(place) for place in mask.nonzero()]


def test_up_to_the_budget_everything_is_seen() -> None:
    positions = torch.arange(11)
    mask = INDEXER.selected(torch.randn(11, 4, 16), torch.randn(2, 16), positions)
    assert torch.equal(mask, torch.ones(11, 11).tril().bool())


@pytest.mark.parametrize("position", range(12, 24))
def test_beyond_it_the_best_groups_and_the_open_tail(position: int) -> None:
    keys = torch.zeros(position // 4 + 1, 16)
    keys[0, 0], keys[2, 0] = 1.0, 2.0
    queries = torch.zeros(1, 4, 16)
    queries[..., 0] = 1.0
    mask = INDEXER.selected(queries, keys, torch.tensor([position]))[0]
    tail = range((position + 1) // 4 * 4, position + 1)
    assert chosen(mask) == [0, 1, 2, 3, 8, 9, 10, 11, *tail]


def test_ties_go_to_the_lower_group() -> None:
    mask = INDEXER.selected(torch.zeros(1, 4, 16), torch.randn(5, 16), torch.tensor([19]))[0]
    assert chosen(mask) == list(range(8))


def test_negative_scores_of_a_head_do_not_count_against_another() -> None:
    queries = torch.zeros(1, 4, 16)
    queries[0, 0, 0], queries[0, 1, 0] = 1.0, -50.0
    keys = torch.zeros(4, 16)
    keys[3, 0], keys[2, 0] = 1.0, 0.5
    mask = INDEXER.selected(queries, keys, torch.tensor([15]))[0]
    assert chosen(mask) == list(range(8, 16))


def test_attention_over_a_mask_is_softmax_over_what_it_lets_through() -> None:
    generator = torch.Generator().manual_seed(2)
    queries = torch.randn(3, 4, 8, generator=generator)
    keys, values = torch.randn(2, 9, 8, generator=generator), torch.randn(2, 9, 8, generator=generator)
    mask = torch.rand(3, 9, generator=generator) > 0.5
    mask[:, 0] = True
    found = attend_selected(queries, keys, values, mask).view(3, 4, 8)
    for row in range(3):
        for head in range(4):
            seen = mask[row]
            weights = torch.softmax(keys[head // 2, seen] @ queries[row, head] * 8**-0.5, 0)
            torch.testing.assert_close(found[row, head], weights @ values[head // 2, seen])


def test_the_ring_keeps_an_open_group_beside_seven_drafts() -> None:
    assert ring_capacity(4, 7) == 12
    rings = RawKeyRings(2, 12, 3)
    rings.write(0, 0, torch.arange(30.0).view(10, 3))
    rings.write(0, 11 - 1, torch.full((8, 3), -1.0))
    assert torch.equal(rings.read(0, torch.tensor([8, 9])), torch.arange(24.0, 30.0).view(2, 3))


def test_a_position_that_is_not_held_is_missing_history() -> None:
    rings = RawKeyRings(2, 12, 3)
    rings.write(0, 0, torch.ones(20, 3))
    with pytest.raises(ContractBreach):
        rings.read(0, torch.tensor([7]))
    with pytest.raises(ContractBreach):
        rings.read(1, torch.tensor([19]))
    rings.clear(0)
    with pytest.raises(ContractBreach):
        rings.read(0, torch.tensor([19]))


def test_a_copy_takes_only_what_the_prefix_has() -> None:
    rings = RawKeyRings(2, 12, 3)
    rings.write(0, 0, torch.ones(10, 3))
    rings.copy(0, 1, 9)
    assert rings.read(1, torch.tensor([8])).sum() == 3
    with pytest.raises(ContractBreach):
        rings.read(1, torch.tensor([9]))
