"""Pairs of streams and tokens: kernels against their references, on lanes of every kind."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from recipes.components.device_drafter import DeviceTask
from recipes.components.device_model import DeviceRows
from recipes.components.device_state import DeviceState
from recipes.components.gpu.pairs import PairNorms, Pairs, Proposed, committed_pairs, export_prefix, proposed_pairs
from recipes.components.gpu.selection import IndexState
from tests.gpu.places import Place, distance

STREAMS, HIDDEN, VOCABULARY, ROWS = 3, 20, 11, 5
WIDTH = 4
NOBODY = -1
LANES = DeviceRows(
    tokens=torch.tensor([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 10, 8, 9, 7, 9, 3, 2, 3, 8, 4]),
    slots=torch.tensor([2, 0, 1, NOBODY, 4]),
    # A prompt's begin, the end of a page, a lane that keeps nothing, nobody, and the end of the table.
    first=torch.tensor([0, 62, 7, 9, 125]),
    counts=torch.tensor([4, 4, 4, 4, 4]),
    tables=torch.tensor([[3, 0], [1, 6], [2, 5], [0, 0], [4, 7]], dtype=torch.int32),
    width=WIDTH,
)
KEPT = torch.tensor([3, 4, 0, 2, 3])


def norms(place: Place) -> PairNorms:
    """Seeded weights, an embedding table in the place's type."""
    return PairNorms(
        place.typed(torch.randn(VOCABULARY, HIDDEN)), torch.randn(HIDDEN), torch.randn(STREAMS * HIDDEN), STREAMS, 1e-6
    )


def check(place: Place, found: Pairs, wanted: Pairs) -> None:
    """Lanes and places are equal, and the inputs of every row that has a position to within rounding."""
    for name in ("slots", "counts"):
        assert torch.equal(getattr(found.rows, name).cpu(), getattr(wanted.rows, name)), name
    live = wanted.rows.slots >= 0
    assert torch.equal(found.rows.first.cpu()[live], wanted.rows.first[live])
    assert torch.equal(found.placed.positions.cpu(), wanted.placed.positions)
    assert torch.equal(found.placed.places.cpu(), wanted.placed.places)
    rows = wanted.placed.positions >= 0
    assert rows.any()
    assert distance(found.inputs.cpu()[rows], wanted.inputs[rows]) < place.tolerance
    assert not found.inputs.isnan().any()


def test_committed_pairs_take_the_streams_before_their_tokens(place: Place) -> None:
    weights, vectors = norms(place), torch.randn(len(KEPT) * WIDTH, STREAMS * HIDDEN)
    tails = place.typed(torch.randn(ROWS, STREAMS * HIDDEN))
    mine, theirs = tails.clone(), place.take(tails.clone())
    wanted = committed_pairs(weights, mine, LANES, vectors, KEPT)
    moved = place.take(weights)
    pairs: list[Pairs] = []
    place.run(
        lambda rows, vectors, kept: pairs.append(committed_pairs(moved, theirs, rows, vectors, kept)),
        LANES, vectors, KEPT,
    )  # fmt: skip
    check(place, pairs[0], wanted)
    assert wanted.rows.counts.tolist() == [2, 4, 0, 0, 3]
    # Position 62 lies at place 63 of its page, position 63 begins the next one.
    assert wanted.placed.places[4:8].tolist() == [1 * 64 + 62, 1 * 64 + 63, 6 * 64, 6 * 64 + 1]
    assert torch.equal(theirs.cpu(), mine), "tails are those of the last kept rows"
    assert torch.equal(mine[1], tails[1])
    assert torch.equal(mine[3], tails[3])
    assert torch.equal(mine[0], place.typed(vectors[7]))


@pytest.mark.parametrize("depth", [0, 2])
def test_proposed_pairs_go_on_behind_the_tail(place: Place, depth: int) -> None:
    weights, tails = norms(place), place.typed(torch.randn(ROWS, STREAMS * HIDDEN))
    streams, tokens = torch.randn(5, STREAMS * HIDDEN), torch.tensor([3, 10, 0, 5, 7])
    task = DeviceTask(
        slots=LANES.slots,
        rows=LANES.slots,
        consumed=torch.tensor([1, 62, 30, 8, 126]),
        pending=tokens,
        limits=torch.tensor([3, 3, 2, 3, 1]),
        tables=LANES.tables,
        draws=torch.rand(5, 3),
        state=DeviceState(1, 1, 1, torch.device("cpu")),
    )
    wanted = proposed_pairs(weights, tails, task, depth, (streams, tokens))
    moved = place.take(weights)
    pairs: list[Proposed] = []

    def run(tails: Tensor, streams: Tensor, tokens: Tensor) -> None:
        parts = {name: place.take(getattr(task, name)) for name in ("slots", "consumed", "limits", "tables", "draws")}
        pairs.append(proposed_pairs(moved, tails, replace(task, **parts), depth, (streams, tokens)))

    place.run(run, tails, streams, tokens)
    check(place, pairs[0].pairs, wanted.pairs)
    assert torch.equal(pairs[0].live.cpu(), wanted.live)
    assert torch.equal(pairs[0].draws.cpu(), task.draws[:, depth])
    assert (
        wanted.pairs.rows.counts.tolist()
        == wanted.live.tolist()
        == ([1, 1, 1, 0, 1] if depth == 0 else [1, 1, 0, 0, 0])
    )


def test_a_prefix_is_exported_to_the_row_that_is_named(place: Place) -> None:
    """Tail and ring of the prefix; what lies behind it in the ring is forgotten, in the copy alone."""
    vectors, first_row = torch.randn(len(KEPT) * WIDTH, STREAMS * HIDDEN), 5
    tails = place.typed(torch.randn(first_row + 5, STREAMS * HIDDEN))
    ring, tags = place.typed(torch.randn(first_row + 5, 8, 6)), torch.full((first_row + 5, 8), NOBODY)
    tags[2, :3] = torch.arange(3)
    tags[0, torch.arange(58, 66) % 8] = torch.arange(58, 66)
    targets = torch.tensor([4, 1, 2, NOBODY, NOBODY])
    kept = torch.tensor([3, 2, 0, 2, 3])

    def run(
        tails: Tensor, ring: Tensor, tags: Tensor, rows: DeviceRows, vectors: Tensor, kept: Tensor, targets: Tensor
    ) -> tuple[Tensor, ...]:
        export_prefix(tails, IndexState(ring, tags, ring, tags), rows, vectors, kept, targets, first_row)
        return tails, ring, tags

    wanted = run(tails.clone(), ring.clone(), tags.clone(), LANES, vectors, kept, targets)
    found = place.run(run, tails.clone(), ring.clone(), tags.clone(), LANES, vectors, kept, targets)
    for mine, theirs, before in zip(wanted, found, (tails, ring, tags), strict=True):
        assert torch.equal(theirs.cpu(), mine)
        assert [row for row in range(len(mine)) if not torch.equal(mine[row], before[row])] == [6, 9]
    assert torch.equal(wanted[0][6], place.typed(vectors[WIDTH + 1]))
    assert wanted[2][9].tolist() == [0, 1] + [NOBODY] * 6, "three tokens have two pairs"
    assert sorted(wanted[2][6].tolist()) == [NOBODY] * 3 + list(range(58, 63)), "sixty-four tokens have pairs 0 to 62"
