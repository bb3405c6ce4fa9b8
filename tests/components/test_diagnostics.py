"""Figures of a teacher-forced comparison mean what their names say."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import kl_div

from recipes.components.diagnostics import divergence, relative_l2


def test_relative_l2_divides_by_the_reference() -> None:
    reference, actual = torch.tensor([[3.0, 4.0], [0.0, 0.0]]), torch.tensor([[3.0, 14.0], [0.0, 2.0]])
    assert relative_l2(reference, actual).tolist() == [2.0, 2.0]
    assert relative_l2(actual, reference).tolist() == pytest.approx([10 / (9 + 196) ** 0.5, 1.0])


def test_kl_is_of_the_actual_law_from_the_reference_and_of_the_whole_vocabulary() -> None:
    generator = torch.Generator().manual_seed(1)
    reference = torch.randn(3, 5000, generator=generator) * 3
    actual = reference + torch.randn(3, 5000, generator=generator) * 0.5
    laws = [torch.log_softmax(logits.double(), -1) for logits in (reference, actual)]
    wanted = kl_div(laws[1], laws[0], reduction="none", log_target=True).sum(-1)
    found = divergence(reference, actual)
    torch.testing.assert_close(found.kl.double(), wanted, rtol=1e-4, atol=1e-6)
    assert bool(((divergence(actual, reference).kl.double() - wanted).abs() > 1e-3).any())


def test_overlap_counts_members_and_first_tokens_break_ties_by_id() -> None:
    reference = torch.arange(30.0).flip(0)[None].repeat(2, 1)
    actual = reference.clone()
    actual[0, [0, 20]] = actual[0, [20, 0]]  # one of ten leaves, and the first is another
    actual[1, :10] = actual[1, :10].flip(0)  # the ten stay, in another order
    found = divergence(reference, actual)
    assert found.top_overlap.tolist() == pytest.approx([0.9, 1.0])
    assert found.same_first.tolist() == [0.0, 0.0]
    assert found.largest.tolist() == [20.0, 9.0]
    even = torch.zeros(1, 30)
    assert divergence(even, even).same_first.tolist() == [1.0]


def test_a_summary_is_of_all_rows_that_were_joined() -> None:
    reference = torch.eye(4) * 5
    near, far = divergence(reference, reference), divergence(reference, -reference)
    found = near.joined(far).summary()
    assert (found.rows, found.relative_l2, found.worst_relative_l2) == (8, 1.0, 2.0)
    assert found.kl == pytest.approx(found.worst_kl / 2, rel=1e-4)


def test_rows_of_other_vocabularies_are_refused() -> None:
    with pytest.raises(ValueError, match="differ in shape"):
        divergence(torch.zeros(1, 3), torch.zeros(1, 4))
