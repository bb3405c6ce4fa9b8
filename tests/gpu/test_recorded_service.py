"""What a server on the card said over HTTP, and what its recorded rounds say when they are replayed directly: the same.

Log probabilities go into frames as float32 and come out of JSON as such, so they are compared bit for bit: one wrong
row anywhere would change them. The server is `--deterministic`, whose promise is looked at besides.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from recipes.declaration import PreparationConfig
from recipes.smollm2.recipe import SmolLM2
from services.worker.config import WorkerConfig
from services.worker.devices.catalog import DeviceCatalog
from services.worker.devices.preparation import CudaPreparation
from services.worker.preparation import create_frames
from services.worker.recording import rounds_of
from services.worker.rows import Tables
from shared.frames import FRAMES, Meta, completion_frame
from shared.manifest import read
from tests.fixtures.harness import Server

pytestmark = pytest.mark.gpu

Said = tuple[np.float32, ...]
PROMPTS = ("A B C D", "q w e r t y u i o p " * 4, "Z", "1 2 3 4 5 6 7 8 9 " * 5)
BUDGET = 40


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny core of random weights, with copies from the prompt."""
    # transformers brings Triton in, which other tests of this folder must do in their own way first.
    from tests.recipes.conftest import quiet, save_tiny

    folder = tmp_path_factory.mktemp("recorded")
    save_tiny(folder / "llama")
    config = PreparationConfig(context_length=192, concurrency=4, prefill_buckets=(32,), mixed_chunk=16)
    SmolLM2().with_weights("int8").export(folder / "llama", folder / "core", config, quiet)
    return folder / "core"


def asked(server: Server, index: int) -> Said:
    """Log probabilities of one answer."""
    answer: dict[str, Any] = server.chat(
        PROMPTS[index], temperature=1.0, seed=40 + index, max_tokens=BUDGET, ignore_eos=True, logprobs=True
    )
    content = answer["choices"][0]["logprobs"]["content"]
    assert len(content) == BUDGET
    return tuple(np.float32(token["logprob"]) for token in content)


@contextmanager
def prepared(core: Path) -> Iterator[tuple[DeviceCatalog, memoryview, CudaPreparation]]:
    """A catalog as the worker prepares it, the plan frames that it reads, and who prepared it."""
    manifest = read(core)
    frames = create_frames(manifest, 0x5E1F)
    config = WorkerConfig(core=core, run_dir=core, device="cuda", deterministic=True)
    tables = Tables(config, manifest, 0x5E1F, servers=False)
    preparation = CudaPreparation(config, manifest, frames, tables)
    try:
        with torch.no_grad():
            yield preparation.prepare(), frames.plan.payload, preparation
    finally:
        preparation.close()
        frames.close()


def replayed(core: Path, recording: Path) -> tuple[list[Said], set[int]]:
    """What each request of a recording says when its rounds are replayed alone; and which graphs those were."""
    said: dict[int, list[np.float32]] = defaultdict(list)
    graphs = set()
    with prepared(core) as (catalog, plans, preparation):
        made = preparation.frames
        assert made is not None
        layout = preparation._shared.completion_layout
        for one in rounds_of(recording):
            start = catalog.counter % FRAMES * len(one.plan)
            plans[start : start + len(one.plan)] = one.plan
            sequence = catalog.replay(one.graph)
            made.stream.synchronize()
            graphs.add(one.graph)
            frame = completion_frame(layout, made.read_completions(0, FRAMES * layout.nbytes), sequence % FRAMES)
            for row in frame.records:
                slot, emitted = int(row[Meta.SLOT]), int(row[Meta.EMITTED])
                assert not row[Meta.FAULTS]
                if slot >= 0:
                    said[int(row[Meta.REQUEST])] += list(frame.logprobs[slot, :emitted])
    return [tuple(values) for values in said.values() if values], graphs


@pytest.mark.timeout(240)
def test_direct_replay_says_what_clients_heard_and_company_changes_nothing(
    core: Path, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    recording = tmp_path / "rounds"
    arguments = ("--device", "cuda", "--deterministic", "--record", str(recording))
    with Server(core, arguments) as server:
        server.wait_ready(120)
        alone = [asked(server, index) for index in range(len(PROMPTS))]
        with ThreadPoolExecutor(len(PROMPTS)) as pool:
            together = list(pool.map(lambda index: asked(server, index), range(len(PROMPTS))))
        assert server.stop() == 0
        figure(next(line for line in server.log.splitlines() if "worker.captured" in line))
    assert together == alone, "a request's bits depend on its company"
    assert len(set(alone)) == len(PROMPTS)
    found, graphs = replayed(core, recording)
    assert sorted(found) == sorted(alone + together)
    kinds = {read(core).graphs[index].kind for index in graphs}
    assert {"init", "prefill"} < kinds, kinds
