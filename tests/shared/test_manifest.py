"""The execution manifest: eighteen speculative graphs at concurrency four, refused operations, clear errors."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from recipes.components.capacity import batch_capacities, catalog, speculative_shapes, speculative_widths
from recipes.declaration import PreparationConfig, Speculation
from shared.errors import ManifestError, ProcessError
from shared.manifest import (
    ABI,
    EmbeddingTable,
    GenerationDefaults,
    Geometry,
    Kind,
    Manifest,
    check,
    decode,
    encode,
    read,
    storages,
)

SPECULATION = Speculation(default_drafts=5, maximum_drafts=7)


def sizes(**changes: int) -> Geometry:
    made = Geometry(vocab_size=10, hidden_size=8, context_length=2048, concurrency=4, pages=132, snapshot_slots=2)
    return msgspec.structs.replace(made, **changes)


def manifest(**changes: object) -> Manifest:
    config = PreparationConfig()
    made = Manifest(
        abi=ABI,
        recipe="r",
        model_name="m",
        geometry=sizes(),
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


@pytest.mark.parametrize(
    ("tables", "fault"),
    [
        ((EmbeddingTable("../x", 1, 1, 1),), "must have names"),
        ((EmbeddingTable("a", 1, 1, 1), EmbeddingTable("a", 1, 1, 1)), "must have names"),
        ((EmbeddingTable("a", 0, 1, 1),), "needs rows"),
        ((EmbeddingTable("a", 1, 1, 0),), "needs rows"),
    ],
)
def test_embedding_tables_that_nobody_could_serve_are_refused(tables: tuple[EmbeddingTable, ...], fault: str) -> None:
    """A name is part of the name of a file and of a shared-memory region."""
    check(manifest(embedding_tables=(EmbeddingTable("engram.14", 9, 272, 4), EmbeddingTable("ngrams", 9, 96, 4))))
    with pytest.raises(ManifestError, match=fault):
        check(manifest(embedding_tables=tables))


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
        ({"verification_widths": (1, 2, 3)}, r"\(1, 2, 3\) are not those of the graphs, \(1, 2, 3, 4, 5, 6\)"),
        ({"verification_widths": (1, 2, 3, 4, 5, 6, 7)}, "are not those of the graphs"),
        ({"speculative_token_capacity": -3}, "speculative token capacity must be at least 1, not -3"),
        ({"geometry": sizes(pages=32)}, "context \\(2048 tokens\\) needs 33 pages: .* at least so many, not 32"),
        ({"geometry": sizes(pages=0)}, "needs 33 pages: .*not 0"),
        ({"geometry": sizes(pages=-3)}, "needs 33 pages: .*not -3"),
        ({"geometry": sizes(context_length=0)}, "context length must be at least 1, not 0"),
        ({"geometry": sizes(context_length=-5)}, "context length must be at least 1, not -5"),
        ({"geometry": sizes(concurrency=0)}, "concurrency must be at least 1, not 0"),
        ({"geometry": sizes(snapshot_slots=-1)}, "snapshot slots must be at least 0, not -1"),
        ({"geometry": sizes(vocab_size=0)}, "vocabulary size must be at least 1, not 0"),
        ({"geometry": sizes(page_tokens=16)}, "pages of 16 tokens are not of 64"),
    ],
)
def test_inconsistent_manifests_say_what_is_wrong(changes: dict[str, object], says: str) -> None:
    with pytest.raises(ManifestError, match=says):
        check(manifest(**changes))


@pytest.mark.parametrize(
    ("kind", "changes", "says"),
    [
        ("prefill", {"token_capacity": 0}, "token capacity must be at least 1, not 0"),
        ("prefill", {"token_capacity": -4}, "token capacity must be at least 1, not -4"),
        ("prefill", {"token_capacity": 256}, "the prefill graph of this shape is there already"),
        ("mixed", {"batch_capacity": 0}, "batch capacity must be at least 1, not 0"),
        ("speculative", {"token_capacity": 2}, "is not of 1 verified rows"),
        ("speculative", {"batch_capacity": 2}, "the speculative graph of this shape is there already"),
        ("init", {"token_capacity": -1}, "token capacity must be at least 0, not -1"),
    ],
)
def test_a_graph_that_cannot_be_captured_or_chosen_is_named(kind: Kind, changes: dict[str, int], says: str) -> None:
    """The first graph of a kind, changed."""
    graphs = list(manifest().graphs)
    index = next(index for index, graph in enumerate(graphs) if graph.kind == kind)
    graphs[index] = msgspec.structs.replace(graphs[index], **changes)
    with pytest.raises(ManifestError, match=rf"graph \d+: .*{says}"):
        check(manifest(graphs=tuple(graphs)))


def test_an_operator_chooses_where_tables_lie_if_there_are_any() -> None:
    """One rule for the server's start, the worker and the bill."""
    tables = (EmbeddingTable("a", 1, 1, 1, "ram"), EmbeddingTable("b", 1, 1, 1))
    assert storages(manifest(embedding_tables=tables), None) == {"a": "ram", "b": "gpu"}
    assert storages(manifest(embedding_tables=tables), "disk") == {"a": "disk", "b": "disk"}
    assert storages(manifest(), None) == {}
    with pytest.raises(ProcessError, match="no embedding table"):
        storages(manifest(), "disk")


def test_unreadable_and_missing_manifests_are_clear(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="is not a core"):
        read(tmp_path)
    with pytest.raises(ManifestError, match="unreadable manifest"):
        decode(b'{"abi": "six"}')


def test_a_graph_that_was_not_prepared_is_named() -> None:
    with pytest.raises(ManifestError, match="no speculative graph with batch 3 and 2 tokens"):
        manifest().index_of("speculative", 3, 2)
