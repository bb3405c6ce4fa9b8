"""Which graphs a core captures: widths and batches under the token capacity, a family for each way of serving."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from recipes.components.capacity import batch_capacities, catalog, geometry_of, speculative_shapes, speculative_widths
from recipes.declaration import PreparationConfig, Speculation
from shared.errors import ManifestError

LEARNED = Speculation(default_drafts=5, maximum_drafts=7, learned="mtp")
COPIES = Speculation(default_drafts=7, maximum_drafts=7)


def shapes(config: PreparationConfig, speculation: Speculation = LEARNED) -> list[tuple[int, int]]:
    """(B, W) of the speculative graphs."""
    graphs = catalog(config, speculation)
    return [(graph.batch_capacity, graph.token_capacity) for graph in graphs if graph.kind == "speculative"]


def modes(config: PreparationConfig, speculation: Speculation = LEARNED) -> Counter[tuple[str, bool | None]]:
    return Counter((graph.kind, graph.speculation_enabled) for graph in catalog(config, speculation))


def test_concurrency_four_and_five_drafts_give_eighteen_speculative_graphs() -> None:
    """mtp-design.md, "Graph catalog": batches one, two, four with widths one to six."""
    assert sorted(shapes(PreparationConfig())) == [(batch, width) for batch in (1, 2, 4) for width in range(1, 7)]


def test_a_capacity_of_128_rows_admits_wide_shapes_to_small_batches_and_width_one_to_all() -> None:
    found = shapes(PreparationConfig(concurrency=200, draft_tokens=7))
    assert batch_capacities(200)[-1] == 256
    for batch in batch_capacities(200):
        widths = [width for size, width in found if size == batch]
        assert widths == [width for width in range(1, 9) if width == 1 or batch * width <= 128]
    assert (16, 8) in found
    assert (32, 4) in found
    assert (32, 5) not in found
    assert (128, 1) in found
    assert (256, 1) in found


def test_odd_and_missing_widths_are_prepared_as_they_were_chosen() -> None:
    config = PreparationConfig(concurrency=2, speculative_widths=(1, 3, 4, 7))
    assert speculative_widths(config, LEARNED) == (1, 3, 4, 7)
    assert sorted(shapes(config)) == [(batch, width) for batch in (1, 2) for width in (1, 3, 4, 7)]
    assert speculative_shapes(4, (1, 3, 7), 12) == ((1, 1), (1, 3), (1, 7), (2, 1), (2, 3), (4, 1), (4, 3))


@pytest.mark.parametrize("widths", [(), (2, 3), (1, 1, 2), (1, 4, 3), (1, 9), (0, 1)])
def test_widths_that_do_not_ascend_from_one_to_eight_are_refused(widths: tuple[int, ...]) -> None:
    with pytest.raises(ManifestError, match="must ascend from 1 to at most 8"):
        speculative_widths(PreparationConfig(speculative_widths=widths), LEARNED)


def test_a_recipe_with_fewer_drafts_bounds_its_widths() -> None:
    few = Speculation(default_drafts=2, maximum_drafts=3, learned="mtp")
    assert speculative_widths(PreparationConfig(), few) == (1, 2, 3)
    with pytest.raises(ManifestError, match="at most 4"):
        speculative_widths(PreparationConfig(speculative_widths=(1, 5)), few)


def test_drafts_and_widths_that_disagree_are_refused() -> None:
    assert speculative_widths(PreparationConfig(draft_tokens=5, speculative_widths=(1, 6)), LEARNED) == (1, 6)
    with pytest.raises(ManifestError, match="drafts 5 tokens, not 3"):
        speculative_widths(PreparationConfig(draft_tokens=3, speculative_widths=(1, 6)), LEARNED)


def test_both_ways_of_serving_have_prompt_graphs_of_their_own() -> None:
    """Speculative ones absorb into the draft cache, ordinary ones do not; shared operations declare no mode."""
    found = modes(PreparationConfig())
    assert {mode for kind, mode in found if kind in ("init", "resume", "snapshot", "restore")} == {None}
    assert found["prefill", True] == found["prefill", False] == 2
    assert found["mixed", True] == found["mixed", False] == 3
    assert found["decode", False] == 3
    assert found["speculative", True] == 18
    assert not any(mode is None for kind, mode in found if kind in ("prefill", "mixed", "decode", "speculative"))


def test_without_a_learned_drafter_prompts_are_shared() -> None:
    found = modes(PreparationConfig(), COPIES)
    assert found["prefill", None] == 2
    assert not found["prefill", True] + found["prefill", False]
    assert found["speculative", True] == 24


def test_mtp_only_has_no_ordinary_graph() -> None:
    found = modes(PreparationConfig(mtp_only=True))
    assert {mode for kind, mode in found if kind in ("prefill", "mixed", "decode", "speculative")} == {True}
    assert not any(kind == "decode" for kind, _ in found)


def test_no_mtp_has_ordinary_graphs_alone() -> None:
    config = PreparationConfig(mtp=False)
    assert speculative_widths(config, LEARNED) == (1,)
    found = modes(config)
    assert {mode for kind, mode in found if kind in ("prefill", "mixed", "decode")} == {False}
    assert not any(kind == "speculative" for kind, _ in found)


def test_no_draft_tokens_prepare_speculative_rounds_of_width_one() -> None:
    """They keep draft state; the ordinary graphs stand beside them, unless they are not wanted."""
    config = PreparationConfig(draft_tokens=0)
    assert shapes(config) == [(1, 1), (2, 1), (4, 1)]
    assert modes(config)["prefill", True] == 2
    assert modes(config)["decode", False] == 3
    assert not modes(PreparationConfig(draft_tokens=0, mtp_only=True))["decode", False]


@pytest.mark.parametrize(
    "config",
    [
        PreparationConfig(mtp=False, draft_tokens=0),
        PreparationConfig(mtp=False, speculative_widths=(1, 2)),
    ],
)
def test_no_mtp_contradicts_what_only_mtp_has(config: PreparationConfig) -> None:
    with pytest.raises(ManifestError, match="without MTP"):
        catalog(config, LEARNED)


def test_only_mtp_and_no_mtp_exclude_each_other() -> None:
    with pytest.raises(ManifestError, match="--mtp-only and --no-mtp exclude each other"):
        catalog(PreparationConfig(mtp=False, mtp_only=True), LEARNED)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (PreparationConfig(prefill_buckets=(0,)), "prefill buckets must ascend from at least 1 token, not 0"),
        (PreparationConfig(prefill_buckets=(-4, 32)), "not -4, 32"),
        (PreparationConfig(prefill_buckets=(256, 32)), "not 256, 32"),
        (PreparationConfig(prefill_buckets=(32, 32)), "not 32, 32"),
        (PreparationConfig(prefill_buckets=()), "not none"),
        (PreparationConfig(context_length=0), "context length must be at least 1, not 0"),
        (PreparationConfig(context_length=-5), "context length must be at least 1, not -5"),
        (PreparationConfig(concurrency=0), "concurrency must be at least 1, not 0"),
        (PreparationConfig(mixed_chunk=0), "mixed chunk must be at least 1, not 0"),
        (PreparationConfig(snapshot_slots=-1), "snapshot slots must be at least 0, not -1"),
        (PreparationConfig(speculative_token_capacity=-3), "speculative token capacity must be at least 1, not -3"),
        (PreparationConfig(speculative_token_capacity=0, mtp=False), "must be at least 1, not 0"),
        (PreparationConfig(speculative_token_capacity=5), "capacity of 5 rows has no graph of width 6"),
        (PreparationConfig(speculative_token_capacity=3, speculative_widths=(1, 4)), "has no graph of width 4"),
    ],
)
def test_sizes_that_no_graph_can_have_are_refused(config: PreparationConfig, says: str) -> None:
    with pytest.raises(ManifestError, match=says):
        catalog(config, LEARNED)


def test_the_smallest_sizes_are_served() -> None:
    """No snapshot slot at all, and a capacity of just the widest width, which batch one alone then has."""
    config = PreparationConfig(
        concurrency=2, context_length=1, prefill_buckets=(1,), mixed_chunk=1, snapshot_slots=0,
        speculative_token_capacity=6,
    )  # fmt: skip
    assert sorted(shapes(config)) == [(1, 1), (1, 2), (1, 3), (1, 4), (1, 5), (1, 6), (2, 1), (2, 2), (2, 3)]
    geometry = geometry_of(config, 10, 8)
    assert (geometry.pages, geometry.snapshot_slots) == (2, 0)
    assert geometry_of(replace(config, pages=0), 10, 8).pages == 0, "for the manifest's check to refuse"


def test_every_index_is_the_first_of_its_shape_in_the_speculative_mode() -> None:
    """Whoever looks a prompt graph up by shape alone gets the one that keeps draft state."""
    graphs = catalog(PreparationConfig(), LEARNED)
    for kind in ("prefill", "mixed"):
        first: dict[tuple[int, int], bool | None] = {}
        for graph in graphs:
            if graph.kind == kind:
                first.setdefault((graph.batch_capacity, graph.token_capacity), graph.speculation_enabled)
        assert set(first.values()) == {True}
