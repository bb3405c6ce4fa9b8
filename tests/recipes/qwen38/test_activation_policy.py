"""The activation policy: declared by a core, obeyed by its target's experts alone, and right when it rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from safetensors.torch import load_file, save_file

from recipes.cli import main
from recipes.components.diagnostics import relative_l2
from recipes.components.nvfp4_activations import ActivationPolicy
from recipes.declaration import LoadConfig, Loaded
from recipes.qwen38.checkpoint import Checkpoint
from recipes.qwen38.inventory import TARGET
from recipes.qwen38.recipe import Qwen38, settings_of
from recipes.qwen38.weights import WeightReader
from shared.errors import CheckpointError
from shared.manifest import read
from tests.recipes.qwen38.oracle import TargetOracle
from tests.recipes.qwen38.teacher_forced import Ours

EXPERTS = f"{TARGET}layers.1.mlp"


def exported(folder: Path, core: Path, *options: str) -> Result:
    return CliRunner().invoke(main, ["export", "qwen3.8-flash", str(folder), str(core), *options])


@pytest.fixture(scope="module")
def cores(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[ActivationPolicy | None, Path]:
    """A core of each policy, and one for which none was named."""
    path = tmp_path_factory.mktemp("policies")
    for name, options in (("w4a16", ["w4a16"]), ("w4a4", ["w4a4"]), ("unnamed", [])):
        shown = exported(folder, path / name, *(part for option in options for part in ("--activations", option)))
        assert shown.exit_code == 0, shown.output
    return {None: path / "unnamed", **{policy: path / policy for policy in ActivationPolicy}}


def loaded(core: Path) -> Loaded:
    return Qwen38().load(core, read(core), LoadConfig(False, slots=1, pages=2, snapshots=0))


def test_a_core_declares_its_policy_to_programs_and_to_people(cores: dict[ActivationPolicy | None, Path]) -> None:
    for policy in ActivationPolicy:
        manifest = read(cores[policy])
        assert settings_of(manifest).activations is policy
        assert f"target experts {policy.name}" in manifest.activation_policy
        assert "drafter experts W4A16" in manifest.activation_policy
        shown = CliRunner().invoke(main, ["inspect", str(cores[policy])])
        assert policy.name in shown.output
    assert settings_of(read(cores[None])).activations is ActivationPolicy.W4A16


def test_what_is_no_choice_is_refused(folder: Path, tmp_path: Path) -> None:
    shown = exported(folder, tmp_path / "core", "--activations", "w8a8")
    assert shown.exit_code == 1
    assert "'w8a8' is not one of w4a16, w4a4" in shown.output
    arguments = ["export", "smollm2", str(folder), str(tmp_path / "core"), "--activations", "w4a4"]
    shown = CliRunner().invoke(main, arguments)
    assert shown.exit_code == 2
    assert "one activation policy only" in shown.output
    assert not (tmp_path / "core").exists()


@pytest.mark.parametrize("policy", list(ActivationPolicy))
def test_the_targets_experts_obey_and_the_drafters_stay_w4a16(
    cores: dict[ActivationPolicy | None, Path], policy: ActivationPolicy
) -> None:
    parts: Any = loaded(cores[policy])
    layers = parts.model._weights.layers
    assert {layer.experts.input_scales is not None for layer in layers} == {policy is ActivationPolicy.W4A4}
    assert parts.drafter._layer._weights.experts.input_scales is None


def test_a_rounding_model_is_transformers_over_rounding_experts(checkpoint: Checkpoint, text: torch.Tensor) -> None:
    """W4A4 as a whole: most rows agree as closely as without rounding.

    A sum that another order moves over the edge between two codes moves a row, and what follows it, by a step; such
    rows stay far below what leaving the rounding out does to half of them.
    """
    tokens = text[:48]
    wanted, _ = TargetOracle(checkpoint, ActivationPolicy.W4A4).run(tokens)
    plain = Ours(checkpoint, ActivationPolicy.W4A16, len(tokens)).logits(tokens, len(tokens))[0]
    left_out = float(relative_l2(wanted, plain).median())
    ours = Ours(checkpoint, ActivationPolicy.W4A4, len(tokens))
    for width in (48, 5, 1):
        apart = relative_l2(wanted, ours.logits(tokens, width)[0])
        assert float(apart.median()) < 1e-5
        assert float(apart.max()) < 4 * left_out
        assert float(apart.mean()) < left_out / 4
    assert left_out > 0.02


def test_gate_and_up_share_the_larger_scale_of_their_expert(checkpoint: Checkpoint) -> None:
    scales = WeightReader(checkpoint.architecture, checkpoint.tensors).input_scales(EXPERTS)
    for expert in range(checkpoint.architecture.num_experts):
        stored = {
            part: float(checkpoint.tensors.tensor(f"{EXPERTS}.experts.{expert}.{part}_proj.input_scale"))
            for part in ("gate", "up", "down")
        }
        assert len(set(stored.values())) == 3
        assert float(scales.gate_up[expert]) == max(stored["gate"], stored["up"])
        assert float(scales.down[expert]) == stored["down"]


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_scales_that_scale_nothing_are_named_when_they_are_needed(folder: Path, tmp_path: Path, value: float) -> None:
    name = f"{EXPERTS}.experts.3.down_proj.input_scale"
    for file in folder.iterdir():
        if file.suffix == ".safetensors":
            tensors = load_file(file)
            if name in tensors:
                tensors[name] = torch.tensor(value)
            save_file(tensors, tmp_path / file.name)
        else:
            (tmp_path / file.name).write_bytes(file.read_bytes())
    stored = Checkpoint(tmp_path)
    reader = WeightReader(stored.architecture, stored.tensors)
    with pytest.raises(CheckpointError, match=r"layers\.1\.mlp: input_scale of down_proj .* experts \[3\]"):
        reader.mixture(EXPERTS, target=True, policy=ActivationPolicy.W4A4)
    assert reader.mixture(EXPERTS, target=True).input_scales is None
