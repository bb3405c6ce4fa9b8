"""The execution manifest: eighteen speculative graphs at concurrency four, refused operations, clear errors."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from recipes.components.capacity import batch_capacities, catalog, speculative_shapes, speculative_widths
from recipes.declaration import PreparationConfig, Speculation
from shared.errors import ManifestError
from shared.manifest import ABI, GenerationDefaults, Geometry, Manifest, check, decode, encode, read

SPECULATION = Speculation(default_drafts=5, maximum_drafts=7)


def manifest(**changes: object) -> Manifest:
    config = PreparationConfig()
    made = Manifest(
        abi=ABI,
        recipe="r",
        model_name="m",
        geometry=Geometry(
            vocab_size=10, hidden_size=8, context_length=2048, concurrency=4, pages=132, snapshot_slots=2
        ),
        graphs=catalog(config, SPECULATION),
        verification_widths=speculative_widths(config, SPECULATION),
        speculative_token_capacity=128,
        end_ids=(0,),
        defaults=GenerationDefaults(),
        history_drafts=False,
        activation_policy="exact",
        bill=(),
    )
    return msgspec.structs.replace(made, **changes)


def test_batch_capacities_are_powers_of_two_through_the_padded_limit() -> None:
    assert [batch_capacities(n) for n in (1, 2, 3, 4, 5)] == [(1,), (1, 2), (1, 2, 4), (1, 2, 4), (1, 2, 4, 8)]


def test_concurrency_four_and_five_drafts_give_eighteen_speculative_graphs() -> None:
    graphs = [graph for graph in manifest().graphs if graph.kind == "speculative"]
    assert len(graphs) == 18
    assert {graph.verify_tokens - graph.draft_tokens for graph in graphs} == {1}


def test_a_small_token_capacity_drops_wide_shapes_but_never_width_one() -> None:
    shapes = speculative_shapes(4, (1, 2, 3), 6)
    assert shapes == ((1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3), (4, 1))


@pytest.mark.parametrize("drafts", [-1, 8])
def test_draft_counts_beyond_the_maximum_are_refused(drafts: int) -> None:
    with pytest.raises(ManifestError, match="between 0 and 7"):
        speculative_widths(PreparationConfig(draft_tokens=drafts), SPECULATION)


def test_a_manifest_survives_its_json() -> None:
    assert encode(decode(encode(manifest()))) == encode(manifest())


@pytest.mark.parametrize("operation", [10, 11, 13])
def test_stand_alone_proposal_and_verification_are_refused(operation: int) -> None:
    graphs = (msgspec.structs.replace(manifest().graphs[0], operation=operation),)
    with pytest.raises(ManifestError, match=f"unsupported graph operation {operation}"):
        check(manifest(graphs=graphs))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"abi": 5}, "ABI 5 is not 6"),
        ({"verification_widths": (2, 3)}, "must ascend from one"),
        ({"verification_widths": (1, 9)}, "must ascend from one"),
        (
            {
                "geometry": Geometry(
                    vocab_size=1, hidden_size=1, context_length=2048, concurrency=1, pages=3, snapshot_slots=0
                )
            },
            "page pool",
        ),
    ],
)
def test_inconsistent_manifests_say_what_is_wrong(changes: dict[str, object], says: str) -> None:
    with pytest.raises(ManifestError, match=says):
        check(manifest(**changes))


def test_unreadable_and_missing_manifests_are_clear(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="is not a core"):
        read(tmp_path)
    with pytest.raises(ManifestError, match="unreadable manifest"):
        decode(b'{"abi": "six"}')


def test_a_graph_that_was_not_prepared_is_named() -> None:
    with pytest.raises(ManifestError, match="no speculative graph with batch 3 and 2 tokens"):
        manifest().index_of("speculative", 3, 2)
