"""`echo` with `logprobs` through three services, of a random Llama that transformers reads from the same checkpoint."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from recipes.declaration import PreparationConfig
from recipes.smollm2.recipe import SmolLM2
from tests.fixtures.harness import Server
from tests.recipes.conftest import quiet, save_tiny

LENGTHS = (1, 2, 33, 34, 100)
"""Beside the 32 tokens that a round scores at four requests, and beyond a page of the cache."""
TEXTS = 90
"""Tokens that the checkpoint's tokenizer has a text for."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[LlamaForCausalLM, Path]:
    folder = tmp_path_factory.mktemp("scored")
    model = save_tiny(folder / "llama")
    config = PreparationConfig(context_length=192, prefill_buckets=(16, 64), mixed_chunk=16)
    SmolLM2().with_weights("float32").export(folder / "llama", folder / "core", config, quiet)
    return model, folder / "core"


@pytest.fixture(scope="module")
def server(tiny: tuple[LlamaForCausalLM, Path]) -> Iterator[Server]:
    with Server(tiny[1]) as running:
        running.wait_ready(60)
        yield running


def scored(server: Server, ids: list[int], **fields: Any) -> dict[str, Any]:
    body = {"prompt": ids, "echo": True, "logprobs": 3, "max_tokens": 0, **fields}
    return completed(server, body)


def completed(server: Server, body: dict[str, Any]) -> dict[str, Any]:
    with server.client() as client:
        answer = client.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        return dict(answer.json()["choices"][0])


def text_of(length: int) -> list[int]:
    return [(7 * at * at + 3 * at + length) % TEXTS for at in range(length)]


@torch.no_grad()
def expected(model: LlamaForCausalLM, ids: list[int]) -> tuple[list[float], list[dict[str, float]]]:
    """Of every token but the first: its log probability and the best three, by text where they have any."""
    laws = torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), -1)
    own = [float(laws[at, token]) for at, token in enumerate(ids[1:])]
    best = [zip(row.indices.tolist(), row.values.tolist(), strict=True) for row in map(_best, laws[:-1])]
    return own, [{chr(33 + token): value for token, value in row if token < TEXTS} for row in best]


def _best(law: torch.Tensor) -> torch.return_types.topk:
    return law.topk(3)


@pytest.mark.parametrize("length", LENGTHS)
def test_scores_are_those_of_transformers(server: Server, tiny: tuple[LlamaForCausalLM, Path], length: int) -> None:
    """Twice, since the first time leaves the prompt in the prefix cache; greedy and with penalties, which count not."""
    ids = text_of(length)
    own, best = expected(tiny[0], ids)
    for fields in ({"temperature": 0}, {"repetition_penalty": 1.5, "max_tokens": 2, "ignore_eos": True}):
        found = scored(server, ids, **fields)["logprobs"]
        assert found["token_logprobs"][0] is None
        assert found["token_logprobs"][1:length] == pytest.approx(own, abs=1e-4)
        assert len(found["tokens"]) == length + int(fields.get("max_tokens", 0))
        for mine, wanted in zip(found["top_logprobs"][1:length], best, strict=True):
            assert {text: mine[text] for text in wanted} == pytest.approx(wanted, abs=1e-4)


def test_scoring_goes_on_beside_a_stream_and_the_stream_too(
    server: Server, tiny: tuple[LlamaForCausalLM, Path]
) -> None:
    ids = text_of(100)
    alone = scored(server, ids)["logprobs"]["token_logprobs"]
    body = {"prompt": text_of(9), "max_tokens": 150, "ignore_eos": True, "temperature": 1.0, "seed": 4}
    quiet_answer = completed(server, body)["text"]
    said: list[str] = []
    other = threading.Thread(target=lambda: said.append(completed(server, body)["text"]))
    other.start()
    found = [scored(server, ids)["logprobs"]["token_logprobs"] for _ in range(6)]
    other.join(30)
    for one in found:
        assert one[1:] == pytest.approx(alone[1:], abs=1e-4)
    assert len(said) == 1
    assert len(said[0]) == len(quiet_answer)
