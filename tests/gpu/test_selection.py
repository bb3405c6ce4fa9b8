"""Sparse attention with an indexer on a device, against the CPU's indexer over a plain history of the same lanes.

Lanes begin inside a group, at a page's end, and beyond the budget; one is padding, one has fewer rows than the width.
Group keys, pages and ring places that nobody may read are NaN.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from recipes.components.device_model import DeviceRows
from recipes.components.gpu import selection
from recipes.components.gpu.head_rows import HeadNorms, HeadShape, SparseState, keep_heads, place_heads
from recipes.components.gpu.rows import Placed, open_rows
from recipes.components.gpu.selection import (
    Chosen,
    IndexState,
    attend_chosen,
    compress,
    half_turns,
    keep_ring,
    select,
    store_state,
    turn_heads,
)
from recipes.components.hyperconnection import centred_rms_norm
from recipes.components.indexed_attention import Indexer, attend_selected, ring_capacity, rotate_half
from recipes.components.paged_attention import Heads
from shared.frames import Fault
from tests.gpu.places import Place, distance

INDEXER = Indexer(heads=2, size=16, ratio=4, budget=5, rotary=8, theta=1e4, epsilon=1e-6)
HEADS = Heads(queries=6, keys=2, size=24)
TABLE, SLOTS, WIDTH = 3, 6, 3
CAPACITY = ring_capacity(INDEXER.ratio, 7)
TURNS = half_turns(INDEXER, TABLE * 64)


@dataclass(frozen=True)
class History:
    """Everything about the lanes, position by position, and where it lies."""

    rows: DeviceRows
    placed: Placed
    raw: Tensor
    """[lanes, positions, index size]"""
    weight: Tensor
    pages: Tensor
    state: IndexState

    def lanes(self) -> list[tuple[int, int, int]]:
        """(lane, first position, rows) of lanes that have rows."""
        listed = zip(self.rows.slots.tolist(), self.rows.first.tolist(), self.rows.counts.tolist(), strict=True)
        return [(lane, first, count) for lane, (slot, first, count) in enumerate(listed) if slot >= 0 and count]

    def group_keys(self, place: Place, lane: int, end: int) -> Tensor:
        """Keys of all groups that are complete before position `end`, as they are stored."""
        groups = torch.arange(end // INDEXER.ratio)
        complete = self.raw[lane, : len(groups) * INDEXER.ratio].view(-1, INDEXER.ratio, INDEXER.size)
        return place.rounded(INDEXER.representatives(complete, self.weight, groups))

    def group_places(self, lane: int, groups: int) -> Tensor:
        numbers = torch.arange(groups)
        return self.rows.tables[lane, numbers // 16].long() * 16 + numbers % 16

    def fresh(self) -> Tensor:
        """Raw keys of the round's rows; of masked rows NaN."""
        found = torch.full((len(self.rows.tokens), INDEXER.size), math.nan)
        for lane, first, count in self.lanes():
            found[lane * WIDTH : lane * WIDTH + count] = self.raw[lane, first : first + count]
        return found


def history_of(place: Place) -> History:
    firsts, counts, slots = [2, 9, 62, 101, 7], [3, 3, 3, 2, 0], [4, -1, 0, 2, 1]
    lanes = len(firsts)
    rows = DeviceRows(
        tokens=torch.zeros(lanes * WIDTH, dtype=torch.int64),
        slots=torch.tensor(slots),
        first=torch.tensor(firsts),
        counts=torch.tensor(counts),
        tables=torch.randperm(lanes * TABLE).view(lanes, TABLE).int(),
        width=WIDTH,
    )
    raw = place.rounded(torch.randn(lanes, TABLE * 64, INDEXER.size))
    state = IndexState(
        ring=torch.full((SLOTS, CAPACITY, INDEXER.size), math.nan),
        tags=torch.full((SLOTS, CAPACITY), -1),
        groups=torch.full((lanes * TABLE * 16, INDEXER.size), math.nan),
        missing=torch.zeros(SLOTS, dtype=torch.int32),
    )
    pages = torch.full((lanes * TABLE + 1, 2, HEADS.keys, 64, HEADS.size), math.nan)
    found = History(rows, open_rows(rows, torch.zeros(1, 1))[1], raw, 0.2 * torch.randn(INDEXER.size), pages, state)
    for lane, first, count in found.lanes():
        keys = found.group_keys(place, lane, first)
        state.groups[found.group_places(lane, len(keys))] = keys
        held = torch.arange(max(0, first - CAPACITY), first)
        state.ring[slots[lane], held % CAPACITY] = raw[lane, held]
        state.tags[slots[lane], held % CAPACITY] = held
        for position in range(first + count):
            page = int(rows.tables[lane, position // 64])
            pages[page, :, :, position % 64] = place.rounded(torch.randn(2, HEADS.keys, HEADS.size))
    return found


def typed(place: Place, state: IndexState) -> IndexState:
    """Fresh copies in the place's type, there."""
    return IndexState(
        ring=place.typed(state.ring.clone()).to(place.device),
        tags=state.tags.clone().to(place.device),
        groups=place.typed(state.groups.clone()).to(place.device),
        missing=state.missing.clone().to(place.device),
    )


def test_groups_are_completed_from_ring_and_rows_then_the_ring_is_written(place: Place) -> None:
    history = history_of(place)
    state = typed(place, history.state)
    place.run(
        lambda raw, weight, turns, rows: compress(raw, weight, turns, state, rows, INDEXER),
        place.typed(history.fresh()),
        history.weight,
        TURNS,
        history.rows,
    )
    wanted, tags = history.state.groups.clone(), history.state.tags.clone()
    for lane, first, count in history.lanes():
        keys = history.group_keys(place, lane, first + count)
        wanted[history.group_places(lane, len(keys))] = keys
        newest = torch.arange(first, first + count)
        tags[history.rows.slots[lane], newest % CAPACITY] = newest
        ring = state.ring[history.rows.slots[lane]].cpu().float()
        assert torch.equal(ring[newest % CAPACITY], history.raw[lane, newest])
    groups = state.groups.cpu().float()
    assert torch.equal(groups.isnan(), wanted.isnan())
    assert (~groups.isnan()).sum() > (~history.state.groups.isnan()).sum()
    assert distance(groups.nan_to_num(0.0), wanted.nan_to_num(0.0)) < place.tolerance
    assert torch.equal(state.tags.cpu(), tags)
    assert not state.missing.any()


def test_a_stale_ring_place_is_a_fault_and_never_a_key(place: Place) -> None:
    history = history_of(place)
    history.state.tags[4, 0] = 12  # lane 0 completes group 0 and needs position 0
    state = typed(place, history.state)
    place.run(
        lambda raw, weight, turns, rows: compress(raw, weight, turns, state, rows, INDEXER),
        place.typed(history.fresh()),
        history.weight,
        TURNS,
        history.rows,
    )
    assert state.missing.tolist() == [Fault.MISSING_HISTORY if slot == 4 else 0 for slot in range(SLOTS)]
    assert state.groups[history.group_places(0, 1)].isnan().all()


@pytest.mark.parametrize("targets", [[4, -1, 0, 2, 1], [3, 3, 5, -1, -1]])
def test_rings_forget_rejected_rows_in_place_and_in_copies(place: Place, targets: list[int]) -> None:
    history = history_of(place)
    wanted, kept = replace(history.state, tags=history.state.tags.clone()), torch.tensor([1, 2, 0, 2, 0])
    compress(history.fresh(), history.weight, TURNS, wanted, history.rows, INDEXER)
    before = typed(place, wanted)
    for lane, target in enumerate(targets):
        slot = int(history.rows.slots[lane])
        if slot >= 0 and target >= 0:
            tags = wanted.tags[slot].clone()
            wanted.ring[target] = wanted.ring[slot]
            tags[tags >= int(history.rows.first[lane] + kept[lane])] = -1
            wanted.tags[target] = tags
    place.run(lambda rows, k, t: keep_ring(before, rows, k, t), history.rows, kept, torch.tensor(targets))
    assert torch.equal(before.tags.cpu(), wanted.tags)
    assert torch.equal(before.ring.cpu().float().nan_to_num(9.0), place.rounded(wanted.ring).nan_to_num(9.0))


def selected_by_cpu(place: Place, history: History, queries: Tensor) -> dict[int, Tensor]:
    """Row to its mask of positions."""
    found = {}
    for lane, first, count in history.lanes():
        keys = history.group_keys(place, lane, first + count)
        part = slice(lane * WIDTH, lane * WIDTH + count)
        masks = INDEXER.selected(queries[part], keys, torch.arange(first, first + count))
        for index in range(count):
            found[lane * WIDTH + index] = masks[index, : first + index + 1]
    return found


@pytest.mark.parametrize("part", [2048, 8], ids=["one program", "the best of parts"])
def test_chosen_groups_and_attention_to_them_agree(place: Place, part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "_CHOICE_PART", part)
    history = history_of(place)
    for lane, first, count in history.lanes():
        keys = history.group_keys(place, lane, first + count)
        history.state.groups[history.group_places(lane, len(keys))] = keys
    count = len(history.rows.tokens)
    index_queries = place.rounded(torch.randn(count, INDEXER.heads, INDEXER.size))
    index_queries[9] = 0.0  # all scores are equal: the lowest groups
    queries = place.rounded(torch.randn(count, HEADS.queries, HEADS.size))
    projected = place.rounded(torch.randn(count, HEADS.queries * 2 * HEADS.size))
    masks = selected_by_cpu(place, history, index_queries)
    state = typed(place, history.state)
    kept: list[Chosen] = []

    def attended(
        index_queries: Tensor, queries: Tensor, projected: Tensor, pages: Tensor, placed: Placed, state: IndexState
    ) -> Tensor:
        chosen = select(index_queries, state, placed, INDEXER)
        kept.append(chosen)
        return attend_chosen(queries, projected, pages, placed, chosen, INDEXER, HEADS)

    arguments = (index_queries, queries, projected, history.pages)
    plain = attended(*arguments, history.placed, history.state)
    found = place.run(attended, *(place.typed(part) for part in arguments), history.placed, state)
    gates = projected.view(count, HEADS.queries, 2, HEADS.size)[:, :, 1].flatten(1).sigmoid()
    for row in range(count):
        if row not in masks:
            assert not found[row].any()
            assert kept[1].numbers[row] == 0
            continue
        position = len(masks[row]) - 1
        visible = (position + 1) // INDEXER.ratio
        groups = masks[row][: visible * INDEXER.ratio].view(-1, INDEXER.ratio).all(1).nonzero().flatten()
        for chosen in kept:
            assert chosen.groups[row, : int(chosen.numbers[row])].tolist() == groups.tolist()
        table = history.rows.tables[row // WIDTH]
        seen = torch.arange(position + 1)
        pages = history.pages[table[seen // 64].long(), :, :, seen % 64].permute(1, 2, 0, 3)
        wanted = attend_selected(queries[row : row + 1], pages[0], pages[1], masks[row][None])[0] * gates[row]
        assert distance(found[row], wanted) < place.tolerance
        assert distance(plain[row], wanted) < 1e-5


def test_heads_are_normed_and_turned_and_state_is_stored(place: Place) -> None:
    """Queries with gates between them; keys and values of placed rows only."""
    history = history_of(place)
    count, positions = len(history.rows.tokens), history.placed.positions.clamp_min(0)
    weight = 0.2 * torch.randn(HEADS.size)
    projected = place.rounded(torch.randn(count, HEADS.queries * 2 * HEADS.size))
    split = projected.view(count, HEADS.queries, 2, HEADS.size)[:, :, 0]
    wanted = rotate_half(centred_rms_norm(split, weight, 1e-6), positions, 8, 1e4)
    shape = (HEADS.queries, HEADS.size, 2 * HEADS.size)
    valid = history.placed.positions >= 0
    assert distance(turn_heads(projected, weight, TURNS, history.placed, INDEXER, *shape)[valid], wanted[valid]) < 1e-6
    found = place.run(
        lambda s, w, t, p: turn_heads(s, w, t, p, INDEXER, *shape),
        place.typed(projected),
        weight,
        TURNS,
        history.placed,
    )
    assert distance(found[valid], wanted[valid]) < place.tolerance

    keys, values = place.rounded(torch.randn(2, count, HEADS.keys * HEADS.size)).unbind()
    before = torch.full_like(history.pages, math.nan)
    plain, kept = before.clone(), place.typed(before).to(place.device)
    store_state(keys, values, weight, TURNS, history.placed, INDEXER, HEADS, plain)
    place.run(
        lambda k, v, w, t, p: store_state(k, v, w, t, p, INDEXER, HEADS, kept),
        place.typed(keys),
        place.typed(values),
        weight,
        TURNS,
        history.placed,
    )
    assert torch.equal(kept.cpu().isnan(), plain.isnan())
    assert (~plain.isnan()).sum() == int(valid.sum()) * 2 * HEADS.keys * HEADS.size
    assert distance(kept.cpu().float().nan_to_num(0.0), plain.nan_to_num(0.0)) < place.tolerance


@pytest.mark.parametrize("stale", [False, True])
def test_one_kernel_places_what_several_do(place: Place, stale: bool) -> None:
    """Queries, pages, groups, rings and faults, against the same steps one after the other; NaN stays where it was."""
    history, shape = history_of(place), HeadShape(HEADS, INDEXER)
    if stale:
        history.state.tags[4, 0] = 12
    norms = HeadNorms(*(0.2 * torch.randn(size) for size in (HEADS.size, HEADS.size, INDEXER.size, INDEXER.size)))
    projected = place.rounded(torch.randn(len(history.rows.tokens), sum(shape.sizes)))
    plain = SparseState(history.pages.clone(), typed(replace(place, device=torch.device("cpu")), history.state))
    arguments = (TURNS, plain, history.rows, history.placed, shape)
    wanted = place_heads(place.typed(projected), norms, *arguments)
    valid = history.placed.positions >= 0

    def compared(found: SparseState) -> None:
        assert torch.equal(found.pages.isnan().cpu(), plain.pages.isnan())
        assert distance(found.pages.cpu().float().nan_to_num(0.0), plain.pages.nan_to_num(0.0)) < place.tolerance
        groups, expected = found.index.groups.cpu().float(), plain.index.groups.float()
        assert torch.equal(groups.isnan(), expected.isnan())
        assert distance(groups.nan_to_num(0.0), expected.nan_to_num(0.0)) < place.tolerance
        assert torch.equal(found.index.tags.cpu(), plain.index.tags)
        assert torch.equal(found.index.ring.cpu().float().nan_to_num(9.0), plain.index.ring.float().nan_to_num(9.0))
        assert torch.equal(found.index.missing.cpu(), plain.index.missing)

    def state() -> SparseState:
        return SparseState(place.typed(history.pages.clone()).to(place.device), typed(place, history.state))

    found = state()
    kept: list[Tensor] = []
    place.run(
        lambda p, n, t, r, d: kept.extend(place_heads(p, n, t, found, r, d, shape)),
        place.typed(projected), norms, TURNS, history.rows, history.placed,
    )  # fmt: skip
    for own, other in zip(kept, wanted, strict=True):
        assert distance(own.cpu()[valid], other[valid]) < place.tolerance
    compared(found)
    assert bool(plain.index.missing.any()) == stale
    found = state()
    place.run(
        lambda p, n, t, r, d: keep_heads(p, n, t, found, r, d, shape),
        place.typed(projected[:, shape.kept :].contiguous()), norms, TURNS, history.rows, history.placed,
    )  # fmt: skip
    compared(found)
    found = state()
    place.run(
        lambda p, n, t, r, d: kept.extend(place_heads(p, n, t, found, r, d, shape, chooses=False)),
        place.typed(projected), norms, TURNS, history.rows, history.placed,
    )  # fmt: skip
    assert torch.equal(found.index.tags.cpu(), history.state.tags)
    assert torch.equal(found.pages.isnan().cpu(), plain.pages.isnan())
