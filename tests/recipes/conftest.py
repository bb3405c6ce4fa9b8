"""The demo core, exported once a session, and tiny Hugging Face checkpoints of random weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import BPE
from transformers import LlamaConfig, LlamaForCausalLM

from recipes.smollm2.demo import demo_core
from shared.manifest import Manifest, read
from tests.threads import torch_threads

TINY: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 256,
    "rope_parameters": {"rope_theta": 5000.0, "rope_type": "default"},
    "rms_norm_eps": 1e-4,
    "eos_token_id": 3,
}


def quiet(what: str, done: int, total: int) -> None:
    """A progress that nobody watches."""


@pytest.fixture(scope="package", autouse=True)
def two_threads() -> Iterator[None]:
    """As many threads as a small machine has: splitting work among them is part of what is tested."""
    with torch_threads(2):
        yield


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the demo core."""
    core = tmp_path_factory.mktemp("demo") / "core"
    demo_core(core, quiet)
    return core


@pytest.fixture(scope="session")
def demo_manifest(demo: Path) -> Manifest:
    """Its manifest, as a worker reads it."""
    return read(demo)


def save_tiny(folder: Path, *, shard: str = "1GB", **changes: Any) -> LlamaForCausalLM:
    """Saves a tiny random model with a tokenizer to `folder`; returns it."""
    torch.manual_seed(7)
    model: Any = LlamaForCausalLM(LlamaConfig(**(TINY | changes))).float().eval()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(
                1 + 0.2 * torch.randn_like(parameter) if "norm" in name else 0.2 * torch.randn_like(parameter)
            )
    model.generation_config.temperature = 0.6
    model.generation_config.do_sample = True
    model.generation_config.top_p = 0.8
    model.generation_config.eos_token_id = [3, 5]
    model.save_pretrained(folder, max_shard_size=shard)
    tokenizer = Tokenizer(BPE(vocab={chr(33 + index): index for index in range(90)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "$"}')
    (folder / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    return cast(LlamaForCausalLM, model)
