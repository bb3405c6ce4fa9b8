"""The demo core, exported once a session, for every test that needs the real model."""

from __future__ import annotations

from pathlib import Path

import pytest

from recipes.smollm2.demo import demo_core as export_demo


@pytest.fixture(scope="session")
def demo_core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2-135M-Instruct as `flare run` without a core would prepare it."""
    core = tmp_path_factory.mktemp("demo") / "core"
    export_demo(core, lambda what, done, total: None)
    return core
