"""Acceptance in vLLM's shape, whose parts must not contradict one another."""

from __future__ import annotations

import pytest

from services.frontend.usage import Lengths, acceptance, note_round, total, total_lengths, usage
from shared.errors import ContractBreach
from shared.messages.common import DraftCounts


def test_acceptance_agrees_with_itself() -> None:
    counts = DraftCounts(
        rounds=10, offered_learned=30, accepted_learned=9, offered_prompt=5, accepted_prompt=3,
        accepted_by_depth=(6, 4, 2, 0, 0, 0, 0),
    )  # fmt: skip
    found = acceptance(counts, {3: [4, 2, 0, 2], 2: [0, 0, 2]}, 3)
    assert found.acceptance_histogram == [4, 2, 2, 2]
    assert sum(found.acceptance_histogram) == found.num_spec_steps == 10
    assert sum(j * n for j, n in enumerate(found.acceptance_histogram)) == found.num_accepted_draft_tokens == 12
    assert found.mean_acceptance_length == pytest.approx(2.2)
    assert found.draft_acceptance_rate == pytest.approx(12 / 35)
    assert found.by_source["prompt"].num_draft_tokens == 5
    assert found.acceptance_histogram_by_draft_length == {"2": [0, 0, 2], "3": [4, 2, 0, 2]}


def test_a_request_that_drafted_nothing() -> None:
    found = acceptance(DraftCounts(), {}, 7)
    assert found.acceptance_histogram == [0] * 8
    assert found.acceptance_histogram_by_draft_length == {}
    assert (found.mean_acceptance_length, found.draft_acceptance_rate) == (1.0, 0.0)


def test_cached_tokens_are_part_of_the_prompt() -> None:
    assert usage(5, 3, 64).prompt_tokens_details.cached_tokens == 5
    assert usage(5, 3, 4).total_tokens == 8


def test_rounds_are_counted_by_how_much_they_drafted() -> None:
    lengths: Lengths = {}
    counts = DraftCounts()
    for offered, accepted in ((3, 0), (3, 3), (1, 1), (3, 0)):
        after = DraftCounts(
            rounds=counts.rounds + 1,
            offered_learned=counts.offered_learned + offered,
            accepted_learned=counts.accepted_learned + accepted,
        )
        note_round(lengths, counts, after)
        note_round(lengths, after, after)  # a round without drafts
        counts = after
    assert lengths == {3: [2, 0, 0, 1], 1: [0, 1]}
    assert total_lengths([lengths, {}, {1: [5, 0], 2: [1, 0, 0]}]) == {3: [2, 0, 0, 1], 1: [5, 1], 2: [1, 0, 0]}


@pytest.mark.parametrize(("offered", "accepted"), [(1, 2), (8, 0), (-1, 0), (3, -1)])
def test_counts_that_cannot_be_are_a_breach(offered: int, accepted: int) -> None:
    with pytest.raises(ContractBreach):
        note_round({}, DraftCounts(), DraftCounts(rounds=1, offered_history=offered, accepted_history=accepted))


def test_counts_of_several_requests() -> None:
    one = DraftCounts(
        rounds=1, offered_learned=2, accepted_learned=3, offered_history=4, accepted_history=5, offered_prompt=6,
        accepted_prompt=7, accepted_by_depth=(1, 2, 3, 4, 5, 6, 7),
    )  # fmt: skip
    both = total([one, one])
    assert both.accepted_by_depth == (2, 4, 6, 8, 10, 12, 14)
    assert [getattr(both, name) for name in DraftCounts.__struct_fields__[:7]] == [2, 4, 6, 8, 10, 12, 14]
    assert total([]) == DraftCounts()
