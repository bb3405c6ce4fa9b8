"""Row-invariant evaluation calls with one row at a time, and puts results of any form together again."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from recipes.components.row_by_row import Rowwise

X = torch.arange(12.0).view(4, 3)
Y = torch.arange(8).view(2, 4).t()  # rows that are not side by side


@dataclass(frozen=True, slots=True)
class Both:
    sums: Tensor
    rows: Tensor


def summed(x: Tensor, y: Tensor) -> Tensor:
    return x.sum(1, keepdim=True) + y


def paired(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return summed(x, y), x


def both(x: Tensor, y: Tensor) -> Both:
    return Both(*paired(x, y))


@pytest.mark.parametrize("deterministic", [True, False])
def test_results_of_every_form_are_those_of_all_rows_at_once(deterministic: bool) -> None:
    rowwise = Rowwise(deterministic)
    assert torch.equal(rowwise(summed, X, Y), summed(X, Y))
    first, second = rowwise(paired, X, Y)
    assert torch.equal(first, summed(X, Y))
    assert torch.equal(second, X)
    found = rowwise(both, X, Y)
    assert torch.equal(found.sums, first)
    assert torch.equal(found.rows, X)


def test_each_call_sees_one_row_in_storage_of_its_own() -> None:
    seen: list[tuple[int, bool, int]] = []

    def look(x: Tensor, y: Tensor) -> Tensor:
        seen.extend((len(part), part.is_contiguous(), int(part.storage_offset())) for part in (x, y))
        return x

    Rowwise(True)(look, X, Y)
    assert seen == [(1, True, 0)] * 8
    seen.clear()
    Rowwise(True)(look, X[:1], Y[:1])
    assert seen == [(1, True, 0)] * 2
