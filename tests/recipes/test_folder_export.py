"""Hugging Face folders: honoured, or refused with the reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from recipes.declaration import PreparationConfig
from recipes.smollm2.recipe import SmolLM2
from shared import manifest
from shared.errors import CheckpointError, ManifestError
from shared.manifest import GenerationDefaults
from tests.recipes.conftest import quiet, save_tiny
from tests.recipes.llama import distance, load, run

CONFIG = PreparationConfig(context_length=128, concurrency=2)


@pytest.mark.parametrize(("weights", "bound"), [("float32", 1e-5), ("int8", 0.2)])
@pytest.mark.parametrize(
    ("shard", "changes"),
    [
        ("1GB", {"tie_word_embeddings": False}),
        (
            "60KB",
            {
                "tie_word_embeddings": True,
                "head_dim": 32,
                "rope_parameters": {"rope_theta": 300.0, "rope_type": "default"},
            },
        ),
    ],
    ids=["untied", "tied-sharded-wide-heads"],
)
def test_a_folder_gives_the_logits_of_its_model(
    tmp_path: Path, shard: str, changes: dict[str, Any], weights: str, bound: float
) -> None:
    judge = save_tiny(tmp_path / "Tiny-Llama", shard=shard, **changes)
    SmolLM2().with_weights(weights).export(tmp_path / "Tiny-Llama", tmp_path / "core", CONFIG, quiet)
    prepared = manifest.read(tmp_path / "core")
    assert prepared.model_name == "Tiny-Llama"
    assert prepared.end_ids == (3, 5)
    assert prepared.defaults == GenerationDefaults(temperature=0.6, top_p=0.8, top_k=prepared.defaults.top_k)
    assert json.loads((tmp_path / "core/tokenizer_config.json").read_text())["chat_template"].startswith("{{ messages")
    tokens = torch.randint(96, (100,), generator=torch.Generator().manual_seed(1))
    model = load(tmp_path / "core", prepared)
    with torch.inference_mode():
        wanted = judge(tokens[None]).logits[0]
    assert distance(model.logits(run(model, tokens, torch.tensor([3, 1]), [40, 1, 8, 51])), wanted).l2 < bound


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"rope_parameters": {"rope_theta": 1e4, "rope_type": "linear", "factor": 2.0}}, "rope scaling"),
        ({"attention_bias": True}, "attention_bias = True"),
        ({"mlp_bias": True}, "mlp_bias = True"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"model_type": "mistral"}, "model_type 'mistral'"),
        ({"vocab_size": "many"}, "vocab_size is 'many'"),
    ],
)
def test_what_the_target_does_not_compute_is_refused(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    save_tiny(tmp_path / "tiny")
    config = json.loads((tmp_path / "tiny/config.json").read_text()) | changes
    (tmp_path / "tiny/config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=reason):
        SmolLM2().export(tmp_path / "tiny", tmp_path / "core", CONFIG, quiet)
    assert not (tmp_path / "core").exists()


def test_missing_surplus_and_misshapen_tensors_are_named_in_one_error(tmp_path: Path) -> None:
    save_tiny(tmp_path / "tiny")
    file = tmp_path / "tiny/model.safetensors"
    tensors = load_file(file)
    del tensors["model.norm.weight"]
    tensors["model.extra.bias"] = torch.zeros(3)
    tensors["model.layers.1.mlp.up_proj.weight"] = torch.zeros(96, 63)
    save_file(tensors, file)
    with pytest.raises(CheckpointError) as caught:
        SmolLM2().export(tmp_path / "tiny", tmp_path / "core", CONFIG, quiet)
    assert str(caught.value) == (
        "missing: model.norm.weight; surplus: model.extra.bias; "
        "wrong shape: model.layers.1.mlp.up_proj.weight is [96, 63], not [96, 64]"
    )


def test_an_unreadable_dtype_is_refused(tmp_path: Path) -> None:
    save_tiny(tmp_path / "tiny")
    file = tmp_path / "tiny/model.safetensors"
    save_file(load_file(file) | {"model.norm.weight": torch.zeros(64, dtype=torch.int8)}, file)
    with pytest.raises(CheckpointError, match=r"model.norm.weight is I8"):
        SmolLM2().export(tmp_path / "tiny", tmp_path / "core", CONFIG, quiet)


def test_an_interrupted_export_leaves_nothing_that_looks_like_a_core(tmp_path: Path) -> None:
    save_tiny(tmp_path / "tiny")

    def interrupt(what: str, done: int, total: int) -> None:
        if done == total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        SmolLM2().export(tmp_path / "tiny", tmp_path / "core", CONFIG, interrupt)
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


def test_an_existing_folder_is_not_overwritten(tmp_path: Path) -> None:
    save_tiny(tmp_path / "tiny")
    (tmp_path / "core").mkdir()
    (tmp_path / "core/precious").touch()
    with pytest.raises(CheckpointError, match="exists already"):
        SmolLM2().export(tmp_path / "tiny", tmp_path / "core", CONFIG, quiet)


def test_a_context_beyond_the_model_is_refused(tmp_path: Path) -> None:
    save_tiny(tmp_path / "tiny")
    with pytest.raises(ManifestError, match="context length 512 is beyond the model's 256"):
        SmolLM2().export(tmp_path / "tiny", tmp_path / "core", PreparationConfig(context_length=512), quiet)


def test_a_file_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUFnot really" * 10)
    with pytest.raises(CheckpointError, match="not a readable GGUF"):
        SmolLM2().export(tmp_path / "model.gguf", tmp_path / "core", CONFIG, quiet)
    with pytest.raises(CheckpointError, match="neither a GGUF file nor a folder"):
        SmolLM2().export(tmp_path / "nothing", tmp_path / "core", CONFIG, quiet)
