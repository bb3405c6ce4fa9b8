"""The whole server on a card: `flare run --device cuda` over a tiny random Llama, to real HTTP clients."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from recipes.declaration import PreparationConfig
from recipes.smollm2.recipe import SmolLM2
from tests.fixtures.harness import Server, wait_until

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny core of random weights."""
    # transformers brings Triton in, which other tests of this folder must do in their own way first.
    from tests.recipes.conftest import quiet, save_tiny

    folder = tmp_path_factory.mktemp("tiny")
    save_tiny(folder / "llama")
    config = PreparationConfig(context_length=128, concurrency=4, prefill_buckets=(32,), mixed_chunk=16)
    SmolLM2().with_weights("int8").export(folder / "llama", folder / "core", config, quiet)
    return folder / "core"


@pytest.mark.timeout(240)
@pytest.mark.parametrize("frames", ["ipc", "host"])
def test_a_gpu_serves_and_comes_back_after_a_kill(core: Path, frames: str) -> None:
    with Server(core, ("--device", "cuda", "--frames", frames)) as server:
        server.wait_ready(120)
        fields = {"temperature": 1.0, "seed": 5, "max_tokens": 40, "ignore_eos": True}
        first = server.chat("A B C D", **fields)
        again = server.chat("A B C D", **fields)
        assert first["usage"]["completion_tokens"] == 40
        assert first["choices"][0]["message"]["content"] == again["choices"][0]["message"]["content"]
        server.signal("worker", signal.SIGKILL)
        wait_until(lambda: not server.ready(), 20, "the loss of the worker")
        server.wait_ready(120)
        after = server.chat("A B C D", **fields)
        assert after["choices"][0]["message"]["content"] == first["choices"][0]["message"]["content"]
        assert server.stop() == 0
