"""The demo core, exported once a session, for every test that needs the real model; and what a run leaves out."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.gpu.cards import interpret_without_a_card

pytest_plugins = ("tests.without_gpu",)

# A shell has its background jobs ignore Ctrl-C, and whatever they start; tests send it to what they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Before anything else imports torch, parts of which import Triton.
interpret_without_a_card()


@pytest.fixture(scope="session")
def demo_core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2-135M-Instruct as `flare run` without a core would prepare it."""
    # Here, because a machine that runs only the tests of the card need not have what an export needs.
    from recipes.smollm2.demo import demo_core as export_demo

    core = tmp_path_factory.mktemp("demo") / "core"
    export_demo(core, lambda what, done, total: None)
    return core
