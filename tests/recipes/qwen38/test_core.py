"""`ignition tiny` and `ignition export`: a core with the family's graphs, tensors as stored, defaults and alias."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from recipes.cli import main
from recipes.components.safetensors_headers import survey
from recipes.components.tensor_store import TensorStore
from recipes.qwen38.checkpoint import Checkpoint
from recipes.qwen38.recipe import settings_of
from shared.manifest import Manifest, read


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny-core")
    for arguments in (
        ["tiny", "qwen3.8-flash", str(path / "checkpoint")],
        ["export", "qwen3.8-flash", str(path / "checkpoint"), str(path / "core")],
    ):
        shown = CliRunner().invoke(main, arguments)
        assert shown.exit_code == 0, shown.output
    return path


@pytest.fixture(scope="module")
def manifest(folder: Path) -> Manifest:
    return read(folder / "core")


def test_concurrency_four_and_five_drafts_give_eighteen_speculative_graphs(manifest: Manifest) -> None:
    assert sum(graph.kind == "speculative" for graph in manifest.graphs) == 18
    assert manifest.verification_widths == (1, 2, 3, 4, 5, 6)


def test_defaults_and_alias_travel_in_the_core(manifest: Manifest) -> None:
    defaults = manifest.defaults
    assert (defaults.temperature, defaults.top_k, defaults.top_p) == (1.0, 20, 0.95)
    assert settings_of(manifest).alias == ("mtp.layers.4", "mtp.layers.0")


def test_tensors_are_copied_bit_for_bit(folder: Path) -> None:
    stored = Checkpoint(folder / "checkpoint")
    copied = TensorStore(survey((folder / "core").glob("*.safetensors")))
    assert copied.located.keys() == stored.tensors.located.keys()
    for name in stored.tensors.located:
        before, after = stored.tensors.tensor(name), copied.tensor(name)
        assert before.dtype == after.dtype
        assert torch.equal(before.flatten().view(torch.uint8), after.flatten().view(torch.uint8))


def test_an_export_over_something_and_a_tiny_one_into_something_are_refused(folder: Path) -> None:
    for command in (
        ["export", "qwen3.8-flash", str(folder / "checkpoint"), str(folder / "core")],
        ["tiny", "qwen3.8-flash", str(folder / "core")],
        ["tiny", "smollm2", str(folder / "new")],
    ):
        assert CliRunner().invoke(main, command).exit_code != 0
