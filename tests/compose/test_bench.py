"""The bench's own arithmetic: forced acceptance, cores of random weights, what a floor tells of each graph."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from compose.bench.floor import Floor, Replayed
from compose.bench.forced_drafter import OTHER, SAID, forced
from compose.bench.graph_rows import graph_rows
from compose.bench.random_core import MODULE, random_core
from compose.bench.replay import FULL, replay
from compose.bench.report import graph_table
from recipes.declaration import LoadConfig, PreparationConfig
from recipes.registry import VARIABLE, recipe_named
from services.worker.recording import RecordedRound
from shared.errors import ManifestError
from shared.frames import FRAMES, plan_frame, plan_layout
from shared.manifest import Manifest, largest_chunk, read


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """A tokenizer, as far as a core's writer looks at it."""
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "tokenizer.json").write_text("{}")
    (tmp_path / "text" / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 8}))
    return tmp_path / "text"


@pytest.mark.parametrize("length", [1.0, 2.5, 4.0])
def test_forced_drafts_are_right_for_the_mean_length_asked_for(length: float) -> None:
    draws = torch.rand(20_000, generator=torch.Generator().manual_seed(1))
    found = forced(torch.zeros(len(draws), 7, dtype=torch.int64), draws, length - 1)
    right = (found == SAID).cumprod(1).sum(1)
    assert abs(float(right.double().mean()) - (length - 1)) < 0.02
    assert bool(((found == SAID) | (found == OTHER)).all())
    assert (right.max() - right.min()) <= 1


@pytest.mark.parametrize("family", ["smollm2", "qwen3.8-flash"])
def test_a_core_of_random_weights_has_the_real_geometry_and_no_weights(
    family: str, tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = PreparationConfig(concurrency=4, **FULL[family])  # type: ignore[arg-type]
    core = random_core(tmp_path / "core", text, "smollm2" if family == "smollm2" else "qwen3.8-flash", config)
    assert sum(file.stat().st_size for file in core.iterdir()) < 100_000
    found = read(core)
    with pytest.raises(ManifestError, match="no recipe"):
        recipe_named(found.recipe)  # nobody but the bench knows it
    monkeypatch.setenv(VARIABLE, MODULE)
    recipe = recipe_named(found.recipe)
    load = LoadConfig(False, 4, found.geometry.pages, found.geometry.snapshot_slots, device="cuda")
    billed = sum(item.nbytes for item in recipe.bill(found, load)) / 1e9
    assert (0.3 if family == "smollm2" else 70) < billed < (1 if family == "smollm2" else 100)
    with pytest.raises(ManifestError, match="--device cuda"):
        recipe.load(core, found, load)


def recorded(manifest: Manifest, kind: str, width: int, pages: int) -> RecordedRound:
    """A round of one lane that holds so many pages."""
    layout = plan_layout(manifest.geometry, largest_chunk(manifest))
    buffer = memoryview(bytearray(FRAMES * layout.nbytes))
    frame = plan_frame(layout, buffer, 0)
    frame.lanes[0] = 1
    frame.page_table[0] = -1
    frame.page_table[0, :pages] = range(pages)
    index = next(
        index
        for index, graph in enumerate(manifest.graphs)
        if (graph.kind, graph.batch_capacity, graph.token_capacity) == (kind, 1, width)
    )
    return RecordedRound(index, bytes(buffer[: layout.nbytes]), 0, 0, width)


def test_each_generation_graph_has_its_median_and_what_it_had_to_move(tmp_path: Path, text: Path) -> None:
    config = PreparationConfig(concurrency=1, context_length=1024, draft_tokens=2)
    manifest = read(random_core(tmp_path / "core", text, "smollm2", config))
    shapes = [("decode", 1)] * 4 + [("speculative", 3)] * 3
    rounds = [recorded(manifest, kind, width, 4) for kind, width in shapes]
    times = (Replayed(9_000), *(Replayed(took, 700, 5_000) for took in (500_000, 510_000, 520_000)))
    times += (Replayed(1), Replayed(800_000, 900, 6_000), Replayed(800_000, 900, 6_000))
    floor = Floor(times, tuple(range(len(manifest.graphs))), bandwidth=4_000.0)
    narrow, wide = graph_rows(manifest, rounds, floor)
    assert (narrow.batch, narrow.width, narrow.rounds, narrow.round_us, narrow.gap_us) == (1, 1, 3, 510.0, 0.7)
    assert (wide.width, wide.rounds, wide.round_us, wide.launch_us, wide.emitted) == (3, 2, 800.0, 6.0, 3)
    parameters, cached = 134_515_008, 224 * 2 * 3 * 64 * 30
    assert narrow.megabytes == pytest.approx(2 * (parameters + cached) / 1e6, rel=0.01)
    assert narrow.megabytes is not None
    assert narrow.bound_us == pytest.approx(narrow.megabytes * 1e6 / 4_000 / 1e3)
    assert len(graph_table([narrow, wide]).splitlines()) == 4
    assert graph_rows(manifest, rounds, Floor(times)) == [], "a CPU's floor has no graphs to tell of"


def test_what_cannot_be_measured_is_refused(tmp_path: Path) -> None:
    for arguments, reason in (
        (("--weights", "random"), "go together"),
        (("--weights", "random", "--geometry", "full"), "--device cuda"),
        (("--synthetic-acceptance", "3"), "learned drafter"),
    ):
        found = CliRunner().invoke(replay, [str(tmp_path), *arguments])
        assert found.exit_code == 2
        assert reason in found.output
