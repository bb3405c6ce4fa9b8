"""The target computes what transformers computes with the same weights; and how far int8 is from the checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from torch import Tensor

from recipes.components.model import Model
from recipes.smollm2.checkpoint import open_checkpoint
from recipes.smollm2.demo import demo_checkpoint
from recipes.smollm2.recipe import settings_of
from shared.manifest import Manifest
from tests.recipes.llama import core_tensors, distance, load, run, transformers_model

TEXT = (
    "<|im_start|>user\nExplain how a bicycle works, for 10 year old children in 2024.<|im_end|>\n"
    "<|im_start|>assistant\nA bicycle has two wheels. A chain turns the back wheel. def f(x): return x + 1"
)


@pytest.fixture(scope="module")
def tokens(demo: Path) -> Tensor:
    return torch.tensor(Tokenizer.from_file(str(demo / "tokenizer.json")).encode(TEXT).ids)


@pytest.fixture(scope="module")
def model(demo: Path, demo_manifest: Manifest) -> Model:
    return load(demo, demo_manifest)


@pytest.fixture(scope="module")
def logits(model: Model, tokens: Tensor) -> Tensor:
    return model.logits(run(model, tokens, torch.arange(4), [len(tokens)]))


@pytest.fixture(scope="module")
def same_weights(demo: Path, demo_manifest: Manifest, tokens: Tensor) -> Tensor:
    shape = settings_of(demo_manifest).architecture
    with torch.inference_mode():
        found: Tensor = transformers_model(shape, core_tensors(demo, shape))(tokens[None]).logits[0]
    return found


def test_prefill_agrees_with_transformers_on_the_same_weights(logits: Tensor, same_weights: Tensor) -> None:
    found = distance(logits, same_weights)
    # Measured: l2 6.2e-3, KL 2.5e-4, overlap 9.99; what is left is 14-bit activations against float32.
    assert found.l2 < 1.5e-2, found
    assert found.kl < 1e-3, found
    assert found.overlap > 9.8, found


def test_cached_decode_agrees_with_transformers_on_the_same_weights(
    model: Model, tokens: Tensor, same_weights: Tensor
) -> None:
    prompt = len(tokens) - 14
    vectors = run(model, tokens, torch.tensor([9, 3]), [prompt, 1, 1, 4, 8])
    found = distance(model.logits(vectors[prompt:]), same_weights[prompt:])
    assert found.l2 < 1.5e-2, found
    assert found.overlap > 9.8, found


def test_int8_weights_stay_near_the_checkpoint(logits: Tensor, tokens: Tensor) -> None:
    checkpoint = open_checkpoint(demo_checkpoint())
    original = transformers_model(
        checkpoint.architecture, lambda name: checkpoint.tensor("embedding" if name == "head" else name)
    )
    with torch.inference_mode():
        found = distance(logits, original(tokens[None]).logits[0])
    # Measured: l2 7.9e-2, KL 2.1e-2 at the worst row (mean 5e-3), overlap 9.57.
    assert found.l2 < 0.15, found
    assert found.kl < 0.05, found
    assert found.overlap > 9.2, found
