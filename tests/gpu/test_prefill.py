"""Operators for prompt chunks of Qwen3.8: the gated delta rule in pieces, experts by sorted rows, sparse attention.

Edges: pieces that a chunk ends inside, masked rows, experts without rows and with all of them, rows on both sides of
the budget. What nobody may read is NaN. Tolerances on the card are those of the place: inputs are rounded there.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from recipes.components.device_model import DeviceRows
from recipes.components.gated_delta import Corrections, DeltaRows, delta_rows
from recipes.components.gdn_recovery import recover
from recipes.components.gpu import chunk_attention
from recipes.components.gpu.delta_prefill import delta_prefill
from recipes.components.gpu.experts import PackedExperts, mixture
from recipes.components.gpu.grouped_experts import ExpertTile, grouped_mixture, sort_picks
from recipes.components.gpu.recurrence import DeltaGates, DeltaShape
from recipes.components.gpu.rows import Placed, open_rows
from recipes.components.gpu.selection import Chosen, IndexState, attend_chosen, select
from recipes.components.indexed_attention import Indexer
from recipes.components.paged_attention import Heads
from tests.gpu.places import Place, distance

SHAPE = DeltaShape(key_heads=2, value_heads=4, key=16, value=16)
LINE = 2 * 2 * 16 + 4 * 16
SLOTS = 4


def rows_of(width: int, slots: list[int], counts: list[int], first: list[int] | None = None) -> DeviceRows:
    pages = -(-(max(first or [0]) + width + 1) // 64)
    return DeviceRows(
        tokens=torch.zeros(len(slots) * width, dtype=torch.int64),
        slots=torch.tensor(slots),
        first=torch.tensor(first or [0] * len(slots)),
        counts=torch.tensor(counts),
        tables=torch.randperm(len(slots) * pages).view(len(slots), pages).int(),
        width=width,
    )


def unit_heads(x: Tensor) -> Tensor:
    split = x.view(-1, SHAPE.key_heads, SHAPE.key)
    return (split * torch.rsqrt(split.square().sum(-1, keepdim=True) + 1e-6)).repeat_interleave(2, 1)


def rule_of(mixed: Tensor, rates: Tensor, strengths: Tensor, gates: DeltaGates) -> DeltaRows:
    """What one row after the other goes through."""
    queries, keys, values = torch.tensor_split(mixed, (32, 64), dim=1)
    decays = torch.exp(-gates.log.exp() * torch.nn.functional.softplus(rates + gates.bias))
    return DeltaRows(
        unit_heads(queries) * 16**-0.5, unit_heads(keys), values.view(-1, 4, 16), decays, strengths.sigmoid()
    )


@pytest.mark.parametrize(
    ("width", "slots", "counts"), [(150, [2], [150]), (150, [0], [67]), (70, [1, -1, 3], [64, 70, 0])]
)
def test_the_delta_rule_in_pieces_is_the_delta_rule_row_by_row(
    place: Place, width: int, slots: list[int], counts: list[int]
) -> None:
    rows = rows_of(width, slots, counts)
    states = torch.full((SLOTS, 4, 16, 16), math.nan)
    for slot in slots:
        if slot >= 0:
            states[slot] = torch.randn(4, 16, 16)
    count = len(rows.tokens)
    mixed, rates, strengths = place.rounded(torch.randn(count, LINE)), torch.randn(count, 4), torch.randn(count, 4)
    mixed += place.rounded(torch.linspace(-1, 1, LINE))  # keys that resemble one another
    mixed = place.rounded(mixed)
    rates[5, 0] = 30.0
    gates = DeltaGates(torch.tensor([-4.0, -2.0, 0.0, 1.0]), torch.randn(4))
    for lane, own in enumerate(counts):
        mixed[lane * width + own : (lane + 1) * width] = math.nan
    kept: list[Tensor] = []

    def ran(states: Tensor, mixed: Tensor, rates: Tensor, strengths: Tensor, g: DeltaGates, r: DeviceRows) -> Tensor:
        found, final = delta_prefill(states, mixed, rates, strengths, g, r, SHAPE)
        kept.append(final.cpu())
        return found

    found = place.run(ran, states, place.typed(mixed), rates, strengths, gates, rows).float()
    live = torch.zeros(count, dtype=torch.bool)
    for lane, (slot, own) in enumerate(zip(slots, counts, strict=True)):
        if slot < 0:
            continue
        part = slice(lane * width, lane * width + own)
        if own:
            live[part] = True
            outputs, corrections = delta_rows(states[slot], rule_of(mixed[part], rates[part], strengths[part], gates))
            assert distance(found[part], outputs) < place.tolerance
            after = recover(states[slot], Corrections(*corrections_of(corrections)), own)
        else:
            after = states[slot]
        assert distance(kept[0][lane], after) < place.tolerance
    assert not found[~live].any()


def corrections_of(found: Corrections) -> tuple[Tensor, Tensor, Tensor]:
    return found.keys, found.values, found.decays


@pytest.mark.parametrize("kind", ["drawn", "one", "none_of_the_last", "no_numbers", "nobody", "nobody_at_all"])
def test_picks_are_sorted_by_expert_and_cut_into_tiles(place: Place, kind: str) -> None:
    experts, top, tall = 11, 3, 16
    chosen = torch.stack([torch.randperm(experts)[:top] for _ in range(90)]).int()
    if kind == "one":
        chosen = torch.full((90, 1), 4, dtype=torch.int32)
    if kind == "none_of_the_last":
        chosen = chosen.remainder(2)
    if kind == "no_numbers":
        chosen[7] = 16  # what routing may say of scores that are NaN
    if kind.startswith("nobody"):
        chosen[4 if kind == "nobody" else 0 :: 5 if kind == "nobody" else 1] = -1  # of rows that are masked
    wanted = sort_picks(chosen, experts, tall)
    found = place.run(lambda c: sort_picks(c, experts, tall), chosen)
    used, live = int(wanted.starts[-1]), int((chosen >= 0).sum())
    assert torch.equal(found.order[:live].cpu(), wanted.order[:live])
    assert torch.equal(found.places.cpu(), wanted.places)
    assert torch.equal(found.starts.cpu(), wanted.starts)
    assert torch.equal(found.tiles[:used].cpu(), wanted.tiles[:used])
    known = chosen.flatten().clamp_max(experts - 1)
    assert torch.equal(known[wanted.order[:live].long()], known[known >= 0].sort(stable=True).values)
    covered = torch.zeros(live, dtype=torch.int64)
    for expert, start in wanted.tiles[:used].tolist():
        stop = min(start + tall, int(wanted.starts[expert + 1]))
        assert stop > start
        assert (known[wanted.order[start:stop].long()] == expert).all()
        covered[start:stop] += 1
    assert (covered == 1).all()


def experts_of(count: int, hidden: int, inner: int, top: int) -> PackedExperts:
    """Any byte is two values; scales of nearly all exponents, the subnormal ones too."""

    def packed(outputs: int, inputs: int) -> tuple[Tensor, Tensor]:
        scales = torch.randint(40, 72, (count, outputs, inputs // 16), dtype=torch.uint8)
        scales[:, 0] = torch.randint(0, 0x70, (count, inputs // 16), dtype=torch.uint8)
        scales[:, 1, 0] = torch.arange(count) % 8
        return torch.randint(0, 256, (count, outputs, inputs // 2), dtype=torch.uint8), scales

    return PackedExperts(
        *packed(2 * inner, hidden), torch.rand(count, 2) * 0.02, *packed(hidden, inner), torch.rand(count) * 0.1, top
    )


@pytest.mark.parametrize(
    ("kind", "tile", "hidden", "inner"),
    [
        ("drawn", ExpertTile(32, 16, 4, 2, 2), 144, 48),
        ("one", ExpertTile(16, 0, 4, 4, 2), 128, 64),
        ("one", ExpertTile(64, 32, 8, 2, 3), 128, 128),
        ("masked", ExpertTile(16, 8, 4, 2, 2), 64, 128),
    ],
)
def test_experts_by_tiles_are_experts_by_rows(
    place: Place, kind: str, tile: ExpertTile, hidden: int, inner: int
) -> None:
    """144 inputs are a little more than a step, 48 and 64 less than one; expert 5 gets nothing, or everything."""
    top, count = 2, 66
    experts = experts_of(6, hidden, inner, top)
    chosen = torch.stack([torch.randperm(5)[:top] for _ in range(count)]).int()
    if kind == "one":
        chosen = torch.tensor([[5, 2]], dtype=torch.int32).repeat(count, 1)
    x, shared = place.rounded(torch.randn(count, hidden)), place.rounded(torch.randn(count, hidden))
    weights, gate = torch.rand(count, top), torch.randn(count, 3)
    masked = [0, *range(12, count)] if kind == "masked" else []
    chosen[masked], weights[masked] = -1, 0.0
    wanted = mixture(x, experts, weights, chosen, shared, gate[:, 1])
    x[masked] = math.nan
    found = place.run(
        lambda x, e, w, c, s, g: grouped_mixture(x, e, w, c, s, g[:, 1], (tile, tile)),
        place.typed(x),
        experts,
        weights,
        chosen,
        place.typed(shared),
        gate,
    )
    assert distance(found, wanted) < place.tolerance


INDEXER = Indexer(heads=2, size=16, ratio=4, budget=18, rotary=8, theta=1e4, epsilon=1e-6)
HEADS = Heads(queries=6, keys=2, size=24)


@pytest.mark.parametrize(
    ("shift", "slots", "first", "held"),
    [(1, [1], [67], 16384), (0, [0, -1, 1], [120, 10, 70], 16384), (0, [1], [126], 32)],
)
def test_rows_near_and_far_choose_and_attend(
    place: Place, monkeypatch: pytest.MonkeyPatch, shift: int, slots: list[int], first: list[int], held: int
) -> None:
    """With a budget of 18 groups rows from position 75 on choose; from 127 on they are far. Some rows are masked."""
    monkeypatch.setattr(chunk_attention, "_NEAR_GROUPS", 32)
    monkeypatch.setattr(chunk_attention, "_HELD_GROUPS", held)
    width, lanes = 12, len(slots)
    rows = rows_of(width, slots, [12, 12, 9][:lanes], first)
    placed = open_rows(rows, torch.zeros(1, 1))[1]
    count, pool = lanes * width, rows.tables.numel()
    groups = torch.full((pool * 16, INDEXER.size), math.nan)
    pages = torch.full((pool + 1, 2, HEADS.keys, 64, HEADS.size), math.nan)
    for lane, slot in enumerate(slots):
        if slot < 0:
            continue
        end = int(rows.first[lane] + rows.counts[lane])
        for position in range(shift, end + shift):
            pages[rows.tables[lane, position // 64], :, :, position % 64] = torch.randn(2, HEADS.keys, HEADS.size)
        for group in range(shift, end // 4 + shift):
            groups[rows.tables[lane, group // 16] * 16 + group % 16] = torch.randn(INDEXER.size)
    pages, groups = place.rounded(pages), place.rounded(groups)
    index_queries = place.rounded(torch.randn(count, INDEXER.heads, INDEXER.size))
    index_queries[11] = 0.0  # all scores are equal: the lowest groups
    queries = place.rounded(torch.randn(count, HEADS.queries, HEADS.size))
    line = HEADS.queries * 2 * HEADS.size
    projected = place.rounded(torch.randn(count, line + 8))
    nothing = torch.zeros(0)

    def state_of(groups: Tensor) -> IndexState:
        return IndexState(nothing, nothing, groups, nothing, shift)

    plain = select(index_queries, state_of(groups), placed, INDEXER)
    wanted = attend_chosen(queries, projected[:, :line], pages, placed, plain, INDEXER, HEADS, shift)
    kept: list[Chosen] = []

    def ran(index_queries: Tensor, queries: Tensor, projected: Tensor, pages: Tensor, g: Tensor, p: Placed) -> Tensor:
        kept.append(select(index_queries, state_of(g), p, INDEXER))
        return attend_chosen(queries, projected[:, :line], pages, p, kept[0], INDEXER, HEADS, shift)

    parts = (index_queries, queries, projected, pages, groups)
    found = place.run(ran, *(place.typed(part) for part in parts), placed)
    for row, position in enumerate(placed.positions.tolist()):
        number = int(plain.numbers[row])
        assert int(kept[0].numbers[row]) == number
        assert torch.equal(kept[0].groups[row, :number].cpu(), plain.groups[row, :number])
        if position < 0:
            assert not found[row].any()
        else:
            assert distance(found[row], wanted[row]) < place.tolerance
