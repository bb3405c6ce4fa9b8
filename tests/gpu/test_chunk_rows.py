"""What surrounds the gated delta rule of a prompt chunk, and what its rows choose: against the operators of few rows.

Chunks end inside a run of rows, lanes are padding, inputs are columns of something wider; what nobody may read is NaN.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from recipes.components.device_model import DeviceRows
from recipes.components.gpu import chunk_attention
from recipes.components.gpu.chunk_attention import choose
from recipes.components.gpu.chunk_recurrence import convolve_chunk
from recipes.components.gpu.recurrence import advance, convolve, finish
from recipes.components.gpu.rows import Placed, open_rows
from recipes.components.gpu.selection import Chosen, IndexState, attend_chosen, select
from recipes.components.indexed_attention import Indexer
from recipes.components.paged_attention import Heads
from tests.gpu.places import Place, distance


def lanes_of(width: int, slots: list[int], counts: list[int]) -> DeviceRows:
    lanes, nothing = len(slots), torch.zeros(len(slots), dtype=torch.int64)
    tables = torch.zeros(lanes, 1, dtype=torch.int32)
    return DeviceRows(torch.arange(lanes * width), torch.tensor(slots), nothing, torch.tensor(counts), tables, width)


@pytest.mark.parametrize("taps", [4, 3])
def test_a_chunk_is_convolved_in_runs_and_leaves_its_newest_rows(place: Place, taps: int) -> None:
    rows, channels = lanes_of(37, [2, -1, 5, 0, 1], [37, 37, 16, 1, 0]), 40
    pool, weight = torch.full((7, taps - 1, channels), math.nan), torch.randn(channels, taps)
    for slot in (0, 1, 2, 5):
        pool[slot] = place.rounded(torch.randn(taps - 1, channels))
    wide = place.rounded(torch.randn(len(rows.tokens), channels + 24))
    for lane, count in enumerate(rows.counts.tolist()):
        wide[lane * 37 + count : (lane + 1) * 37] = math.nan
    wide[37:74] = math.nan
    inputs = wide[:, 8 : channels + 8]
    wanted = convolve(pool, inputs, weight, rows)
    after = pool.clone()
    advance(after, inputs.contiguous(), rows, rows.counts, rows.slots)
    kept: list[Tensor] = []

    def ran(pool: Tensor, wide: Tensor, weight: Tensor, rows: DeviceRows) -> Tensor:
        kept.append(pool.new_empty(len(rows.slots) * (taps - 1), channels))
        return convolve_chunk(pool, wide[:, 8 : channels + 8], weight, rows, kept[-1])

    found = place.run(ran, pool, place.typed(wide), weight, rows)
    assert distance(found, wanted) < place.tolerance
    assert not found[wanted == 0].any()
    kept.append(pool.new_empty(len(rows.slots) * (taps - 1), channels))
    assert torch.equal(convolve_chunk(pool, inputs, weight, rows, kept[1]), wanted)
    for tails in kept:
        for lane, slot in enumerate(rows.slots.tolist()):
            if slot >= 0:
                assert torch.equal(tails.cpu().view(-1, taps - 1, channels)[lane], after[slot])


def test_gates_are_read_where_they_lie(place: Place) -> None:
    outputs, wide, norm = torch.randn(13, 3, 20), torch.randn(13, 80), torch.rand(20) + 0.5
    found = place.run(lambda o, g, n: finish(o, g[:, 8:68], n, 1e-6), place.typed(outputs), place.typed(wide), norm)
    wanted = finish(place.rounded(outputs), place.rounded(wide)[:, 8:68], norm, 1e-6)
    assert distance(found, wanted) < place.tolerance


INDEXER = Indexer(heads=2, size=16, ratio=4, budget=18, rotary=8, theta=1e4, epsilon=1e-6)
SCORED = 256


def scores_of(kind: str) -> Tensor:
    """float32 [9, SCORED], none negative."""
    drawn = torch.randn(3, 9, SCORED).relu().sum(0)
    tied = {
        "drawn": drawn,
        "equal": torch.ones_like(drawn),
        "nothing": torch.where(drawn > 2.0, drawn, 0.0),  # fewer than the budget are not zero
        "steps": (drawn * 2).round(),
        "far_apart": drawn.pow(40.0),
        "one": torch.where(torch.arange(SCORED) == 5, 3e38, drawn * 1e-30),
        "no_numbers": torch.where(drawn > 1.5, math.nan, drawn),
    }
    return tied[kind]


@pytest.mark.parametrize("kind", ["drawn", "equal", "nothing", "steps", "far_apart", "one", "no_numbers"])
def test_the_best_groups_are_chosen_whatever_their_scores_are(
    place: Place, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Rows that choose nothing, everything, among near groups, and in each of the three ways of far rows."""
    monkeypatch.setattr(chunk_attention, "_SOME_GROUPS", 64)
    near, held, scores = 32, 128, scores_of(kind)
    positions = torch.tensor([-1, 3, 71, 75, 126, 127, 255, 511, 1023]).int()

    def ran(scores: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        groups = torch.full((9, 18), -1, dtype=torch.int32, device=scores.device)
        numbers, masks = (torch.full((9, n), -1, dtype=torch.int32, device=scores.device) for n in (1, 2))
        choose(scores, Chosen(groups, numbers[:, 0], positions), masks, INDEXER, near, held)
        return groups.cpu(), numbers[:, 0].cpu(), masks.cpu()

    groups, numbers, masks = place.run(ran, scores, positions)
    for row, position in enumerate(positions.tolist()):
        visible = (position + 1) // 4
        # A score that is no number counts as the largest, as its bits say.
        ranked = torch.sort(scores[row, :visible].nan_to_num(math.inf), descending=True, stable=True).indices[:18]
        assert int(numbers[row]) == len(ranked)
        assert torch.equal(groups[row, : len(ranked)], ranked.sort().values.int())
        assert (groups[row, len(ranked) :] == -1).all()
        if visible < near:
            marked = [group for group in range(32) if int(masks[row, group // 16]) >> group % 16 & 1]
            assert marked == sorted([*ranked.tolist(), visible])


def test_rows_choose_where_one_page_is_all_that_there_is(place: Place) -> None:
    """Fewer groups than a line of the scan has."""
    indexer, scores = replace(INDEXER, budget=3), torch.randn(4, 16).relu()
    positions = torch.tensor([-1, 14, 30, 55]).int()

    def ran(scores: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        groups = torch.full((4, 3), -1, dtype=torch.int32, device=scores.device)
        numbers, masks = (torch.zeros(4, 1, dtype=torch.int32, device=scores.device) for _ in range(2))
        choose(scores, Chosen(groups, numbers[:, 0], positions), masks, indexer, 16, 16)
        return groups.cpu(), masks[:, 0].cpu()

    groups, masks = place.run(ran, scores, positions)
    for row, position in enumerate(positions.tolist()):
        visible = (position + 1) // 4
        ranked = torch.sort(scores[row, :visible], descending=True, stable=True).indices[:3].sort().values
        assert groups[row, : len(ranked)].tolist() == ranked.tolist()
        assert int(masks[row]) == sum(1 << group for group in {*ranked.tolist(), visible})


def test_programs_share_the_way_of_few_rows(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows near and far, and masked ones; many programs have nothing to do, one lane's rows stand in all splits."""
    monkeypatch.setattr(chunk_attention, "_NEAR_GROUPS", 64)
    width, heads, nothing = 9, Heads(queries=4, keys=2, size=16), torch.zeros(0)
    rows = replace(lanes_of(width, [1, 0], [9, 5]), first=torch.tensor([250, 70]))
    rows = replace(rows, tables=torch.randperm(10).view(2, 5).int())
    placed = open_rows(rows, torch.zeros(1, 1))[1]
    pages, groups = (place.rounded(torch.randn(10, *own)) for own in ((2, 2, 64, 16), (16, 16)))
    index_queries, queries = place.rounded(torch.randn(18, 2, 16)), place.rounded(torch.randn(18, 4, 16))
    projected = place.rounded(torch.randn(18, 4 * 2 * 16))

    def ran(index: Tensor, queries: Tensor, projected: Tensor, pages: Tensor, groups: Tensor, placed: Placed) -> Tensor:
        chosen = select(index, IndexState(nothing, nothing, groups.flatten(0, 1), nothing), placed, INDEXER)
        return attend_chosen(queries, projected, pages, placed, chosen, INDEXER, heads)

    found = []
    for splits in (((18, 8, 4),), ((17, 8, 4),)):
        monkeypatch.setattr(chunk_attention, "_SPLITS", splits)
        found.append(place.run(ran, *map(place.typed, (index_queries, queries, projected, pages, groups)), placed))
    assert distance(found[0], found[1]) < place.tolerance
    masked = placed.positions < 0
    for each in found:
        assert not each[masked].any()
        assert each[~masked].any(1).all()
