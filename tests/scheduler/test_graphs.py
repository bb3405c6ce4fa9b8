"""Which graphs a server chooses among: its mode, its draft cap, a fixed width, and widths that are not contiguous."""

from __future__ import annotations

import msgspec
import pytest

from recipes.components.capacity import catalog, speculative_widths
from recipes.declaration import PreparationConfig, Speculation
from services.scheduler.config import SchedulerConfig
from services.scheduler.controller import AdaptiveWidth, LaneOffer, LaneSpend
from services.scheduler.graphs import GraphTable
from services.scheduler.survival import Kind
from shared.errors import ManifestError, ProcessError
from shared.manifest import Manifest
from tests.scheduler.cores import manifest

LEARNED = Speculation(default_drafts=5, maximum_drafts=7, learned="mtp")


def core(config: PreparationConfig | None = None, **changes: object) -> Manifest:
    """A core with the catalog of a preparation."""
    chosen = msgspec.structs.replace(manifest(), adaptive_verification=True)
    config = config or PreparationConfig(**changes)  # type: ignore[arg-type]  # fields by name
    geometry = msgspec.structs.replace(chosen.geometry, concurrency=config.concurrency)
    return msgspec.structs.replace(
        chosen,
        geometry=geometry,
        graphs=catalog(config, LEARNED),
        verification_widths=speculative_widths(config, LEARNED),
        speculative_token_capacity=config.speculative_token_capacity,
    )


def modes(made: Manifest, table: GraphTable) -> set[bool | None]:
    """`speculation_enabled` of every graph that the table can choose."""
    lanes = range(1, made.geometry.concurrency + 1)
    mixed = [graph for count in lanes if (graph := table.mixed(count)) is not None]
    chosen = [*table.rounds, *mixed, *(table.prefill(length) for length in (1, 32, 33, 10_000))]
    return {made.graphs[graph.index].speculation_enabled for graph in chosen}


def test_a_server_uses_the_speculative_graphs_by_default_and_the_ordinary_ones_without_drafts() -> None:
    made = core()
    default, ordinary = GraphTable(made, None), GraphTable(made, 0)
    assert (default.speculative, default.learned, default.draft_cap) == (True, True, 5)
    assert modes(made, default) == {True}
    assert (ordinary.speculative, ordinary.learned, ordinary.draft_cap) == (False, False, 0)
    assert modes(made, ordinary) == {False}
    assert {graph.kind for graph in ordinary.rounds} == {"decode"}


def test_a_core_of_width_one_rounds_speculates_without_drafts_unless_it_is_told_not_to() -> None:
    made = core(draft_tokens=0)
    table = GraphTable(made, None)
    assert (table.speculative, table.draft_cap) == (True, 0)
    assert modes(made, table) == {True}
    assert {graph.tokens for graph in table.rounds} == {1}
    assert modes(made, GraphTable(made, 0)) == {False}


def test_a_core_without_mtp_serves_ordinarily_and_drafts_nothing() -> None:
    made = core(mtp=False)
    for cap in (None, 0):
        assert modes(made, GraphTable(made, cap)) == {False}
    with pytest.raises(ProcessError, match="prepared for 0 draft tokens, not 2"):
        GraphTable(made, 2)


def test_a_core_of_mtp_only_cannot_serve_ordinarily() -> None:
    made = core(mtp_only=True)
    assert modes(made, GraphTable(made, None)) == {True}
    with pytest.raises(ManifestError, match="exported with --mtp-only"):
        GraphTable(made, 0)


@pytest.mark.parametrize(("cap", "widths"), [(None, (1, 3, 4, 7)), (6, (1, 3, 4, 7)), (5, (1, 3, 4)), (2, (1, 3))])
def test_a_cap_takes_the_prepared_widths_within_it(cap: int | None, widths: tuple[int, ...]) -> None:
    table = GraphTable(core(speculative_widths=(1, 3, 4, 7)), cap)
    assert [table.widths(lanes) for lanes in (1, 2, 3, 4)] == [widths] * 4
    assert table.draft_cap == widths[-1] - 1


def test_a_cap_below_every_prepared_width_is_refused_rather_than_ignored() -> None:
    with pytest.raises(ProcessError, match="none drafts 1 tokens or fewer"):
        GraphTable(core(speculative_widths=(1, 3)), 1)


def test_the_smallest_prepared_width_that_covers_a_ceiling_is_taken() -> None:
    table = GraphTable(core(speculative_widths=(1, 3, 4, 7)), None)
    assert [table.generation(2, ceiling).tokens for ceiling in range(1, 8)] == [1, 3, 3, 4, 7, 7, 7]


def test_fixed_width_four_selects_three_graphs_at_concurrency_four() -> None:
    """mtp-design.md, "Graph catalog": one for each batch capacity, three drafts and the pending input."""
    table = GraphTable(core(), None, fixed_width=4)
    assert [(graph.batch, graph.tokens) for graph in table.rounds] == [(1, 4), (2, 4), (4, 4)]
    assert table.generation(3, 1).tokens == 4


def test_fixed_drafting_is_of_width_one_where_the_capacity_did_not_admit_the_shape() -> None:
    made = core(concurrency=64, draft_tokens=7)
    assert [(graph.batch, graph.tokens) for graph in GraphTable(made, None, fixed_width=4).rounds] == [
        *((batch, 4) for batch in (1, 2, 4, 8, 16, 32)),
        (64, 1),
    ]
    widest = GraphTable(made, None, fixed=True).rounds
    assert [(graph.batch, graph.tokens) for graph in widest][-3:] == [(16, 8), (32, 1), (64, 1)]


@pytest.mark.parametrize(("cap", "width"), [(None, 2), (None, 8), (3, 7), (0, 1), (0, 4)])
def test_a_fixed_width_must_be_a_prepared_one_within_the_cap(cap: int | None, width: int) -> None:
    with pytest.raises(ProcessError, match=f"fixed width of {width} is not among"):
        GraphTable(core(speculative_widths=(1, 3, 4, 7)), cap, fixed_width=width)


@pytest.mark.parametrize(
    ("options", "of_core", "fixed"),
    [
        ({}, True, False),
        ({}, False, True),
        ({"adaptive": True}, False, False),
        ({"adaptive": False}, True, True),
        ({"fixed_width": 4}, True, True),
        ({"deterministic": True}, True, True),
    ],
)
def test_an_operators_policy_wins_over_the_cores(
    tmp_path_factory: pytest.TempPathFactory, options: dict[str, bool | int], of_core: bool, fixed: bool
) -> None:
    folder = tmp_path_factory.getbasetemp()
    config = SchedulerConfig(core=folder, run_dir=folder, **options)  # type: ignore[arg-type]  # fields by name
    assert config.fixed(of_core) is fixed


def test_a_fixed_width_is_not_adaptive(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.getbasetemp()
    with pytest.raises(ProcessError, match="either adaptive or of a fixed width"):
        SchedulerConfig(core=folder, run_dir=folder, adaptive=True, fixed_width=4)


def test_the_controller_explores_a_width_that_is_wider_than_the_drafts() -> None:
    """Two drafts fit only the width of four; they must be tried although no width is exactly theirs."""
    policy, widths = AdaptiveWidth(), (1, 4, 7)
    drafting = policy.opened()
    drafting.balance = 100.0
    policy.completed(1, 1, [LaneSpend(drafting, 1, 1, 1)], 1_000_000)
    chosen = set()
    for _ in range(40):
        for drafts in (2, 5):
            (ceiling,) = policy.choose(1, widths, [LaneOffer(drafting, Kind.LEARNED, drafts)])
            assert ceiling <= drafts + 1
            chosen.add(ceiling)
            width = next(width for width in widths if width >= ceiling)
            policy.completed(1, width, [LaneSpend(drafting, ceiling, ceiling, 1)], 1_000_000)
    assert {3} <= chosen
    assert chosen & {4, 6}
