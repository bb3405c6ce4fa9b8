"""A core becomes a target and a drafter on a device, or says why it cannot."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from recipes.declaration import LoadConfig, PreparationConfig
from recipes.qwen38.device_core import load_core
from recipes.qwen38.device_drafter import DeviceMtp
from recipes.qwen38.recipe import Qwen38
from recipes.qwen38.tiny import tiny_architecture, write_tiny
from shared.errors import ManifestError
from shared.manifest import Manifest, read
from tests.recipes.conftest import quiet

CPU = torch.device("cpu")
ARCHITECTURE = tiny_architecture(
    num_hidden_layers=2, layer_types=("linear_attention", "full_attention"), ple_layer_ids=(1,)
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("device-core") / "checkpoint"
    write_tiny(path, ARCHITECTURE, seed=4)
    return path


def exported(checkpoint: Path, core: Path, activations: str = "w4a16", mtp: bool = True) -> tuple[Manifest, LoadConfig]:
    config = PreparationConfig(context_length=128, concurrency=2, mtp=mtp, snapshot_slots=1)
    Qwen38().with_activations(activations).export(checkpoint, core, config, quiet)
    manifest = read(core)
    geometry = manifest.geometry
    load = LoadConfig(False, geometry.concurrency, geometry.pages, geometry.snapshot_slots, device="cuda")
    return manifest, load


@pytest.mark.parametrize("mtp", [True, False])
def test_a_core_has_a_drafter_on_a_device_if_it_was_prepared_with_one(
    checkpoint: Path, tmp_path: Path, mtp: bool
) -> None:
    manifest, load = exported(checkpoint, tmp_path / "core", mtp=mtp)
    found = load_core(tmp_path / "core", manifest, load, CPU, torch.bfloat16)
    assert found.model.vocab_size == manifest.geometry.vocab_size
    assert found.model.hidden_size == manifest.geometry.hidden_size
    assert isinstance(found.drafter, DeviceMtp) == mtp


def test_experts_of_rounded_activations_are_refused_with_the_remedy(checkpoint: Path, tmp_path: Path) -> None:
    manifest, load = exported(checkpoint, tmp_path / "core", activations="w4a4")
    with pytest.raises(ManifestError, match=r"w4a4.*--activations w4a16.*--device cpu"):
        load_core(tmp_path / "core", manifest, load, CPU, torch.bfloat16)
