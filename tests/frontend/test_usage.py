"""Acceptance in vLLM's shape, whose parts must not contradict one another."""

from __future__ import annotations

import pytest

from services.frontend.usage import acceptance, usage
from shared.messages.common import DraftCounts


def test_acceptance_agrees_with_itself() -> None:
    counts = DraftCounts(
        rounds=10, offered_learned=30, accepted_learned=9, offered_prompt=5, accepted_prompt=3,
        accepted_by_depth=(6, 4, 2, 0, 0, 0, 0),
    )  # fmt: skip
    found = acceptance(counts, 3)
    assert found.acceptance_histogram == [4, 2, 2, 2]
    assert sum(found.acceptance_histogram) == found.num_spec_steps == 10
    assert sum(j * n for j, n in enumerate(found.acceptance_histogram)) == found.num_accepted_draft_tokens == 12
    assert found.mean_acceptance_length == pytest.approx(2.2)
    assert found.draft_acceptance_rate == pytest.approx(12 / 35)
    assert found.by_source["prompt"].num_draft_tokens == 5


def test_a_request_that_drafted_nothing() -> None:
    found = acceptance(DraftCounts(), 7)
    assert found.acceptance_histogram == [0] * 8
    assert (found.mean_acceptance_length, found.draft_acceptance_rate) == (1.0, 0.0)


def test_cached_tokens_are_part_of_the_prompt() -> None:
    assert usage(5, 3, 64).prompt_tokens_details.cached_tokens == 5
    assert usage(5, 3, 4).total_tokens == 8
