"""Operators of `recipes/components/gpu` against their references: in Triton's interpreter here, in bfloat16 on a card.

Tolerances are fixed beforehand (places.py). What may not be read is NaN: pages beyond a lane's length, pages of no
lane, whatever a masked row would bring. What may not be written is compared bit by bit.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from recipes.components.device_model import DeviceRows
from recipes.components.gpu.attention import Split, arrivals, attend_rows
from recipes.components.gpu.linear import Tile, Weight, add_linear, gate_up, linear, project_heads
from recipes.components.gpu.rows import Placed, gate_rows, norm_rows, open_rows, turn_and_store
from recipes.components.int8_linear import quantise_channels
from recipes.components.paged_attention import Heads
from recipes.components.rotary import rotations
from tests.gpu.places import Place, distance

HEADS = Heads(queries=6, keys=2, size=16)
HIDDEN = 96  # 64 + 32: two pieces of the inner dimension
EPSILON = 1e-5
PAGE = 64
TABLE = 4
TURNS = torch.view_as_real(rotations(TABLE * PAGE, HEADS.size, 1e4)).reshape(TABLE * PAGE, HEADS.size).contiguous()
ONE = Tile(1, 16, 1, 4)
MANY = Tile(16, 8, 4, 4)


def lanes_of(width: int, firsts: list[int], counts: list[int], slots: list[int]) -> DeviceRows:
    """Lanes whose pages lie scattered in a pool; tokens of masked rows are nonsense."""
    lanes = len(firsts)
    rows = DeviceRows(
        tokens=torch.randint(0, 50, (lanes * width,)),
        slots=torch.tensor(slots),
        first=torch.tensor(firsts),
        counts=torch.tensor(counts),
        tables=torch.randperm(lanes * TABLE).view(lanes, TABLE).int(),
        width=width,
    )
    masked = torch.arange(width)[None] >= rows.counts[:, None]
    rows.tokens.view(lanes, width)[masked] = -7
    return rows


def placed_of(rows: DeviceRows) -> Placed:
    """Where those rows are, by the reference."""
    return open_rows(rows, torch.zeros(50, 1))[1]


def some_lanes() -> DeviceRows:
    """Across a page boundary; a padding lane; one row of three; a lane without rows."""
    return lanes_of(3, [62, 5, 130, 9], [3, 3, 1, 0], [2, -1, 0, 1])


def pool(lanes: int) -> Tensor:
    """Pages full of NaN, with the one that is in no table."""
    return torch.full((lanes * TABLE + 1, 2, HEADS.keys, PAGE, HEADS.size), math.nan)


def int8_weight(outputs: int, inner: int) -> Weight:
    values, scale = quantise_channels(torch.randn(outputs, inner))
    return Weight(values, scale * inner**-0.5)


def float_weight(place: Place, outputs: int, inner: int) -> tuple[Weight, Weight]:
    """(as the place holds it, as the reference sees it)."""
    values = torch.randn(outputs, inner) * inner**-0.5
    return Weight(place.typed(values)), Weight(place.rounded(values))


def test_rows_are_embedded_and_placed_and_masked_rows_are_nowhere(place: Place) -> None:
    rows, table = some_lanes(), torch.randn(50, HIDDEN)
    wanted, where = open_rows(rows, place.rounded(table))
    found, there = place.run(open_rows, rows, place.typed(table))
    assert torch.equal(found.cpu(), wanted)
    for name in ("positions", "places", "lengths"):
        assert getattr(there, name).tolist() == getattr(where, name).tolist(), name
    page = rows.tables[0]
    across = [page[0] * 64 + 62, page[0] * 64 + 63, page[1] * 64]
    assert where.places.tolist() == [*across, -1, -1, -1, rows.tables[2, 2] * 64 + 2, -1, -1, -1, -1, -1]
    assert where.lengths.tolist() == [65, 0, 131, 0]
    assert not wanted[where.positions < 0].any()


@pytest.mark.parametrize(("tile", "rows"), [(ONE, 1), (ONE, 2), (MANY, 3), (MANY, 17)])
@pytest.mark.parametrize("form", ["int8", "float"])
def test_linear_layers_agree(place: Place, tile: Tile, form: str, rows: int) -> None:
    stream, gain = torch.randn(rows, HIDDEN), torch.rand(HIDDEN) + 0.5
    if form == "int8":
        mine = his = int8_weight(2 * 12, HIDDEN)
    else:
        mine, his = float_weight(place, 2 * 12, HIDDEN)
    gated = place.run(lambda s, g, w: gate_up(s, g, EPSILON, w, place.dtype, tile), stream, gain, mine)
    assert distance(gated, gate_up(stream, gain, EPSILON, his, torch.float32)) < place.tolerance
    headed = place.run(lambda s, w: linear(s, w, place.dtype, tile), stream, mine)
    assert distance(headed, linear(stream, his, torch.float32)) < place.tolerance
    inputs, wanted = torch.randn(rows, HIDDEN), torch.randn(rows, 2 * 12)
    before = wanted.clone()

    def added(inputs: Tensor, weight: Weight, out: Tensor) -> Tensor:
        add_linear(inputs, weight, out, tile)
        return out

    found = place.run(added, place.typed(inputs), mine, before)
    add_linear(place.rounded(inputs), his, wanted)
    assert distance(found, wanted) < place.tolerance


@pytest.mark.parametrize("inner", [64, 48, 112])
def test_any_inner_dimension_is_summed_whole(place: Place, inner: int) -> None:
    """A power of two has one piece, 48 a second one that is exact, 112 a second one that is too wide."""
    rows, (mine, his) = torch.randn(2, inner), float_weight(place, 12, inner)
    for tile in (ONE, MANY):
        found = place.run(lambda s, w, tile=tile: linear(s, w, place.dtype, tile), rows, mine)
        assert distance(found, linear(rows, his, torch.float32)) < place.tolerance


@pytest.mark.parametrize("tile", [ONE, MANY])
def test_projection_turns_heads_and_writes_pages_of_valid_rows_only(place: Place, tile: Tile) -> None:
    rows = some_lanes()
    placed, weight = placed_of(rows), int8_weight((HEADS.queries + 2 * HEADS.keys) * HEADS.size, HIDDEN)
    stream, gain = torch.randn(12, HIDDEN), torch.rand(HIDDEN) + 0.5
    masked = placed.positions < 0
    stream[masked] = math.nan
    wanted, kept = pool(4), {}
    queries = project_heads(stream, gain, EPSILON, weight, TURNS, placed, HEADS, wanted)

    def projected(stream: Tensor, gain: Tensor, weight: Weight, turns: Tensor, placed: Placed, pages: Tensor) -> Tensor:
        kept["pages"] = pages
        return project_heads(stream, gain, EPSILON, weight, turns, placed, HEADS, pages, tile)

    found = place.run(projected, stream, gain, weight, TURNS, placed, place.typed(pool(4)))
    assert distance(found[~masked], queries[~masked]) < place.tolerance
    assert_same_pages(kept["pages"], wanted, place)


def assert_same_pages(found: Tensor, wanted: Tensor, place: Place) -> None:
    """Written where the reference wrote, the last page aside, and nowhere else."""
    found, wanted = found.cpu().float()[:-1], wanted[:-1]
    assert torch.equal(found.isnan(), wanted.isnan())
    written = ~wanted.isnan()
    assert written.any()
    assert distance(found[written], wanted[written]) < place.tolerance


def test_many_rows_are_turned_and_stored_alike(place: Place) -> None:
    rows = some_lanes()
    placed, columns = placed_of(rows), (HEADS.queries + 2 * HEADS.keys) * HEADS.size
    projected, scale = torch.randn(12, columns), torch.rand(columns) + 0.5
    wanted, kept = pool(4), {}
    queries = turn_and_store(place.rounded(projected), TURNS, placed, HEADS, wanted, scale)

    def turned(projected: Tensor, turns: Tensor, placed: Placed, pages: Tensor, scale: Tensor) -> Tensor:
        kept["pages"] = pages
        return turn_and_store(projected, turns, placed, HEADS, pages, scale)

    found = place.run(turned, place.typed(projected), TURNS, placed, place.typed(pool(4)), scale)
    assert distance(found, queries) < place.tolerance
    assert_same_pages(kept["pages"], wanted, place)


def test_norm_adds_the_change_first_and_gates_are_scaled_before(place: Place) -> None:
    stream, change = torch.randn(5, HIDDEN), torch.randn(5, HIDDEN)
    gain, scale = torch.rand(HIDDEN) + 0.5, torch.rand(HIDDEN)
    wanted = norm_rows(his := stream.clone(), gain, EPSILON, place.rounded(change), scale)
    kept = {}

    def normed(stream: Tensor, gain: Tensor, change: Tensor, scale: Tensor) -> Tensor:
        kept["stream"] = stream
        return norm_rows(stream, gain, EPSILON, change, scale, place.dtype)

    found = place.run(normed, stream.clone(), gain, place.typed(change), scale)
    assert distance(found, wanted) < place.tolerance
    assert distance(kept["stream"].cpu(), his) < 1e-6
    found = place.run(gate_rows, place.typed(stream), scale)
    assert distance(found, gate_rows(place.rounded(stream), scale)) < place.tolerance


def poisoned_pages(place: Place, placed: Placed, lanes: int) -> Tensor:
    """Pages with values up to each lane's length, and NaN everywhere else."""
    pages = pool(lanes)
    for lane, length in enumerate(placed.lengths.tolist()):
        for position in range(length):
            page = int(placed.tables[lane, position // PAGE])
            pages[page, :, :, position % PAGE] = torch.randn(2, HEADS.keys, HEADS.size)
    return place.rounded(pages)


@pytest.mark.parametrize("split", [None, Split(16, 1, 4), Split(16, 2, 2), Split(16, 4, 1)])
def test_attention_sees_its_prefix_and_nothing_else(place: Place, split: Split | None) -> None:
    rows = some_lanes()
    placed = placed_of(rows)
    pages, queries = poisoned_pages(place, placed, 4), torch.randn(12, HEADS.queries * HEADS.size)
    wanted = attend_rows(place.rounded(queries), pages, placed, HEADS, torch.zeros(0, dtype=torch.int32))
    arrived = arrivals(4, 12, HEADS, place.device)

    def attended(queries: Tensor, pages: Tensor, placed: Placed) -> Tensor:
        return attend_rows(queries, pages, placed, HEADS, arrived, split)

    for _ in range(2):
        found = place.run(attended, place.typed(queries), place.typed(pages), placed)
        assert distance(found, wanted) < place.tolerance
        assert not found[placed.positions < 0].any()
        assert not arrived.any()


@pytest.mark.parametrize("split", [None, Split(32, 4, 1), Split(16, 1, 4)])
def test_a_chunk_of_a_prompt_attends_to_what_came_before_it(place: Place, split: Split | None) -> None:
    """A bucket of 40 rows of which 33 are valid, after 70 positions: tiles that end in masked rows, and one without."""
    rows = lanes_of(40, [70], [33], [0])
    placed = placed_of(rows)
    pages, queries = poisoned_pages(place, placed, 1), torch.randn(40, HEADS.queries * HEADS.size)
    queries[33:] = math.nan
    wanted = attend_rows(place.rounded(queries), pages, placed, HEADS, torch.zeros(0, dtype=torch.int32))
    arrived = arrivals(1, 40, HEADS, place.device)

    def attended(queries: Tensor, pages: Tensor, placed: Placed) -> Tensor:
        return attend_rows(queries, pages, placed, HEADS, arrived, split)

    found = place.run(attended, place.typed(queries), place.typed(pages), placed)
    assert distance(found[:33], wanted[:33]) < place.tolerance
