"""Deterministic serving: a row's result is bitwise its own, whatever shares its batch, chunk or pool."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from recipes.components.model import Lane, Model, rows_of
from shared.manifest import Manifest
from tests.recipes.llama import load, run

LENGTH = 74
FIRST = 50
PAGES = torch.tensor([0, 1])


@pytest.fixture(scope="module")
def model(demo: Path, demo_manifest: Manifest) -> Model:
    return load(demo, demo_manifest, deterministic=True)


@pytest.fixture(scope="module")
def tokens() -> Tensor:
    return torch.randint(20, 49000, (LENGTH,), generator=torch.Generator().manual_seed(5))


@pytest.fixture(scope="module")
def alone(model: Model, tokens: Tensor) -> Tensor:
    """A first chunk, then every row by itself, over the border of a page."""
    return run(model, tokens, PAGES, [FIRST] + [1] * (LENGTH - FIRST))


@pytest.mark.parametrize("width", range(2, 9))
def test_width_does_not_change_a_row(model: Model, tokens: Tensor, alone: Tensor, width: int) -> None:
    run(model, tokens[:60], PAGES, [60])
    vectors = run(model, tokens[60 : 60 + width], PAGES, [width], first=60)
    assert torch.equal(vectors, alone[60 : 60 + width])
    single = torch.cat([model.logits(row[None]) for row in vectors])
    assert torch.equal(model.logits(vectors), single)


@pytest.mark.parametrize("chunks", [[74], [32, 42], [7, 50, 17], [63, 2, 9]])
def test_chunking_does_not_change_a_row(model: Model, tokens: Tensor, alone: Tensor, chunks: list[int]) -> None:
    assert torch.equal(run(model, tokens, PAGES, chunks), alone)


@pytest.mark.parametrize("pages", [[7, 8], [12, 3]])
def test_page_placement_does_not_change_a_row(model: Model, tokens: Tensor, alone: Tensor, pages: list[int]) -> None:
    assert torch.equal(run(model, tokens, torch.tensor(pages), [LENGTH]), alone)


def test_batch_mates_do_not_change_a_row(model: Model, tokens: Tensor, alone: Tensor) -> None:
    run(model, tokens[:62], PAGES, [62])
    run(model, tokens.flip(0), torch.tensor([20, 21]), [LENGTH])
    others = torch.randint(20, 49000, (33,), generator=torch.Generator().manual_seed(6))
    lanes = (
        Lane(slot=1, start=0, count=5, first=69, pages=torch.tensor([20, 21])),
        Lane(slot=0, start=5, count=6, first=62, pages=PAGES),
        Lane(slot=2, start=11, count=28, first=0, pages=torch.tensor([30, 31])),
    )
    packed = torch.cat([others[:5], tokens[62:68], others[5:]])
    assert torch.equal(model.forward(rows_of(packed, lanes))[5:11], alone[62:68])


def test_stale_rows_beyond_the_consumed_count_are_not_seen(model: Model, tokens: Tensor, alone: Tensor) -> None:
    run(model, tokens[:60], PAGES, [60])
    run(model, tokens[:8], PAGES, [8], first=60)  # eight rejected drafts
    assert torch.equal(run(model, tokens[60:64], PAGES, [4], first=60), alone[60:64])
