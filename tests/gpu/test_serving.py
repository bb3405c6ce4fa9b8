"""The whole server on a card: `flare run --device cuda` over a tiny Llama and a tiny Qwen3.8, to real HTTP clients."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from recipes.declaration import PreparationConfig
from recipes.qwen38.recipe import Qwen38
from recipes.qwen38.tiny import tiny_architecture, write_tiny
from recipes.smollm2.recipe import SmolLM2
from shared import metrics
from tests.fixtures import imports
from tests.fixtures.harness import Server, wait_until
from tests.system.scrapes import scrape

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
def test_a_gpu_serves_and_comes_back_after_a_kill(core: Path, tmp_path: Path, frames: str) -> None:
    noted = imports.environment(tmp_path)
    with Server(core, ("--device", "cuda", "--frames", frames), environment=noted) as server:
        server.wait_ready(120)
        ready = time.monotonic()
        fields = {"temperature": 1.0, "seed": 5, "max_tokens": 40, "ignore_eos": True}
        first = server.chat("A B C D", **fields)
        again = server.chat("A B C D", **fields)
        assert imports.imported(tmp_path, ready, time.monotonic()) == []
        assert "worker.captured" in server.log
        assert "compiled_while_serving" not in server.log
        assert first["usage"]["completion_tokens"] == 40
        assert first["choices"][0]["message"]["content"] == again["choices"][0]["message"]["content"]
        for service in ("worker", "scheduler"):
            server.signal(service, signal.SIGKILL)
            wait_until(lambda: not server.ready(), 20, f"the loss of the {service}")
            server.wait_ready(120)
            after = server.chat("A B C D", **fields)
            assert after["choices"][0]["message"]["content"] == first["choices"][0]["message"]["content"]
        assert server.stop() == 0


@pytest.fixture(scope="module")
def qwen_core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny core for speculative serving alone and without snapshots: the rounds of equal texts are equal."""
    folder = tmp_path_factory.mktemp("tiny-qwen")
    write_tiny(folder / "checkpoint", tiny_architecture(), seed=2)
    config = PreparationConfig(
        context_length=256,
        concurrency=2,
        speculative_widths=(1, 4),
        mtp_only=True,
        prefill_buckets=(32,),
        mixed_chunk=16,
        snapshot_slots=0,
    )
    Qwen38().export(folder / "checkpoint", folder / "core", config, lambda what, done, total: None)
    return folder / "core"


def learned(server: Server) -> tuple[float, float]:
    """Drafts of the drafter that were verified, and those of them that were accepted, by the scheduler's counters."""
    counted = scrape(server, "scheduler")
    offered, accepted = (
        counted.total(name, source="learned") for name in (metrics.OFFERED_BY_SOURCE, metrics.ACCEPTED_BY_SOURCE)
    )
    return offered, accepted


@pytest.mark.timeout(240)
@pytest.mark.parametrize("frames", ["ipc", "host"])
def test_a_gpu_serves_qwen_with_its_drafter_and_comes_back_after_a_kill(qwen_core: Path, frames: str) -> None:
    options = ("--device", "cuda", "--frames", frames, "--speculative-fixed-width", "4")
    with Server(qwen_core, options) as server:
        server.wait_ready(120)
        # A hot law is flat, so that two random models often agree.
        fields = {"temperature": 2.0, "top_k": -1, "top_p": 1.0, "seed": 5, "max_tokens": 60}
        fields |= {"ignore_eos": True, "logprobs": True}

        def said() -> list[object]:
            choice = server.chat("why is the sky blue?", **fields)["choices"][0]
            return [entry["bytes"] for entry in choice["logprobs"]["content"]]

        first = said()
        assert len(first) == 60
        offered, accepted = learned(server)
        assert offered > 30, "three drafts a round, and not all of them accepted"
        assert 0 < accepted < offered
        assert said() == first
        for service in ("worker", "scheduler"):
            server.signal(service, signal.SIGKILL)
            wait_until(lambda: not server.ready(), 20, f"the loss of the {service}")
            server.wait_ready(120)
            before = learned(server)[0]
            assert said() == first
            assert learned(server)[0] > before
        assert server.stop() == 0
