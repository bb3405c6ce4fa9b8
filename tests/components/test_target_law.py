"""The target law of a row: filters by their definition, penalties at the conditional prefix, extreme temperatures."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recipes.components.target_law import NotFinite, adjusted, raw_logprobs, target_law
from tests.components import laws


def dense(logits: torch.Tensor, **named: float) -> list[float]:
    law = target_law(logits, laws.values(**named))  # type: ignore[arg-type]
    full = [0.0] * len(logits)
    for token, p in zip(law.ids.tolist(), law.probs.tolist(), strict=True):
        full[token] = p
    return full


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([0.2, 0.7, 1.0, 2.0]), st.integers(0, 8), st.floats(0.05, 1.0))
def test_temperature_top_k_and_top_p_follow_the_definition(seed: int, t: float, top_k: int, top_p: float) -> None:
    logits = torch.randn(laws.VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 2
    expected = laws.exact_filtered(logits, t, top_k, top_p)
    assert dense(logits, temperature=t, top_k=top_k, top_p=top_p) == pytest.approx(expected, abs=1e-6)


def test_min_p_keeps_what_is_likely_enough_beside_the_best() -> None:
    logits = torch.tensor([0.5, 0.3, 0.14, 0.06]).log()
    assert dense(logits, min_p=0.3) == pytest.approx([0.625, 0.375, 0.0, 0.0], abs=1e-6)


def test_ties_at_a_border_are_kept() -> None:
    logits = torch.tensor([1.0, 1.0, 1.0, 0.0])
    assert dense(logits, top_k=2)[:3] == pytest.approx([1 / 3] * 3)


def test_a_wide_vocabulary_sorts_only_candidates_but_finds_the_same_nucleus() -> None:
    logits = torch.randn(49_152, generator=torch.Generator().manual_seed(3)) * 3
    law = target_law(logits, laws.values(top_p=0.9))
    probs = torch.softmax(logits.double(), 0).sort(descending=True).values
    count = int(torch.searchsorted(probs.cumsum(0), 0.9)) + 1
    assert len(law.ids) == count
    assert torch.equal(law.ids, law.ids.sort().values)


@pytest.mark.parametrize("temperature", [1e-6, 1e-4])
def test_tiny_temperatures_stay_finite_and_pick_the_best(temperature: float) -> None:
    logits = torch.tensor([1.0, 50.0, -3.0, 49.0])
    assert dense(logits, temperature=temperature) == pytest.approx([0, 1, 0, 0])


def test_temperature_zero_is_a_point_mass_at_the_lowest_best_id() -> None:
    assert dense(torch.tensor([0.0, 2.0, 2.0]), temperature=0.0) == [0.0, 1.0, 0.0]


def test_not_a_number_is_an_error_of_the_lane() -> None:
    with pytest.raises(NotFinite):
        target_law(torch.tensor([0.0, float("nan")]), laws.values())


def test_penalties_bias_and_minimum_length_change_the_row_and_not_the_raw_logits() -> None:
    logits = torch.tensor([2.0, -1.0, 0.5, 1.0])
    raw = logits.clone()
    seen = torch.tensor([True, True, False, False])
    counts = torch.tensor([2, 0, 0, 0], dtype=torch.int32)
    law = laws.values(repetition=2.0, frequency=0.25, presence=0.5, min_tokens=3, end_ids=(3,), bias={2: 4.0})
    assert adjusted(logits, law, seen, counts, 2).tolist() == pytest.approx([1.0 - 0.5 - 0.5, -2.0, 4.5, -torch.inf])
    assert adjusted(logits, law, seen, counts, 3)[3] == 1.0
    assert torch.equal(logits, raw)


def test_log_probabilities_are_of_the_raw_distribution() -> None:
    logits = torch.tensor([0.1, 0.2, 0.7]).log() + 5
    chosen, ids, best = raw_logprobs(logits, 0, 2)
    assert chosen == pytest.approx(torch.tensor(0.1).log().item(), abs=1e-6)
    assert ids.tolist() == [2, 1]
    assert best.tolist() == pytest.approx([torch.tensor(0.7).log().item(), torch.tensor(0.2).log().item()], abs=1e-6)
    assert raw_logprobs(logits, 2, 0)[1].tolist() == []


def test_a_draw_at_either_end_of_the_interval_hits_a_possible_token() -> None:
    law = target_law(torch.tensor([-torch.inf, 0.0, -torch.inf, 1.0, -torch.inf]), laws.values())
    assert law.draw(2.0**-33) == 1
    assert law.draw(1.0) == 3
