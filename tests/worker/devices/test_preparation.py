"""What a worker on a GPU refuses before it reads a weight."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from services.worker.devices.preparation import served_recipe
from shared.errors import ManifestError
from shared.manifest import Manifest, read
from tests.fixtures.scripted.recipe import COPIES, make_core


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    return read(make_core(tmp_path, COPIES))


def of(manifest: Manifest, recipe: str) -> Manifest:
    """The manifest as if of another recipe: nothing else of it is looked at."""
    return msgspec.structs.replace(manifest, recipe=recipe)


def test_a_recipe_without_a_model_for_a_gpu_is_refused(manifest: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLARE_RECIPE_MODULES", "tests.fixtures.scripted")
    with pytest.raises(ManifestError, match="scripted-copies has no model for a GPU yet: serve it with --device cpu"):
        served_recipe(manifest, False)


def test_deterministic_serving_is_refused_where_rows_are_not_invariant(manifest: Manifest) -> None:
    assert served_recipe(of(manifest, "qwen3.8-flash"), False)
    with pytest.raises(ManifestError, match="leave out --deterministic"):
        served_recipe(of(manifest, "qwen3.8-flash"), True)
    assert served_recipe(of(manifest, "smollm2"), True)
