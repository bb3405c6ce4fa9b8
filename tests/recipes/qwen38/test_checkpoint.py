"""Checkpoints are validated from their headers: published counts, faults by name, full geometry in seconds."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from recipes.components.safetensors_headers import BITS, Entry, encode_header
from recipes.components.tensor_store import nbytes
from recipes.qwen38.architecture import Architecture
from recipes.qwen38.checkpoint import Checkpoint
from recipes.qwen38.inventory import ANY, Spec, mtp_tensors, target_tensors
from recipes.qwen38.quantization import expected_layers
from recipes.qwen38.tiny import tiny_architecture, write_tiny
from shared.errors import CheckpointError

MTP_TENSORS, MTP_BYTES = 4637, 1_596_720_640
"""mtp-design.md, "Qwen checkpoint model and reference"."""
FILES = 33


def full_architecture() -> Architecture:
    """The published config (design/models.md, section 1.2)."""
    return tiny_architecture(
        vocab_size=248320,
        hidden_size=2560,
        num_hidden_layers=48,
        layer_types=tuple("full_attention" if layer % 4 == 3 else "linear_attention" for layer in range(48)),
        num_attention_heads=24,
        head_dim=256,
        max_position_embeddings=262144,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        linear_num_key_heads=16,
        linear_num_value_heads=48,
        moe_intermediate_size=640,
        shared_expert_intermediate_size=640,
        num_experts=512,
        num_experts_per_tok=10,
        hc_lowrank=320,
        ple_embed_dim=2560,
        heads_per_ngram=8,
        ngram_vocab_size_base=20_000_000,
        make_ngram_vocab_size_divisible_by=128,
        split_ngram_parts=128,
        indexer_head_dim=128,
        indexer_budget=2048,
        eos_token_id=248044,
    )


def entries_of(specs: list[tuple[str, Spec]]) -> tuple[dict[str, Entry], int]:
    found, end = {}, 0
    for name, spec in specs:
        shape = tuple(0 if size == ANY else size for size in spec.shape)
        size = BITS[spec.dtypes[0]] // 8 * prod(shape)
        found[name] = Entry(spec.dtypes[0], shape, (end, end + size))
        end += size
    return found, end


def write_sparse(folder: Path, architecture: Architecture) -> None:
    """Real headers over holes: a checkpoint of a hundred gigabytes that takes as much disk as its headers."""
    specs = list((target_tensors(architecture) | mtp_tensors(architecture)).items())
    for part in range(FILES):
        entries, payload = entries_of(specs[part::FILES])
        header, path = encode_header(entries), folder / f"model-{part + 1:05d}-of-{FILES:05d}.safetensors"
        path.write_bytes(header)
        with path.open("r+b") as opened:
            opened.truncate(len(header) + payload)
    layers = expected_layers(architecture)
    quantization = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    config = {"text_config": architecture, "quantization_config": quantization}
    (folder / "config.json").write_bytes(msgspec.json.encode(config))


def test_full_geometry_validates_and_the_drafter_is_exactly_the_published_one(tmp_path: Path) -> None:
    write_sparse(tmp_path, full_architecture())
    checkpoint = Checkpoint(tmp_path)
    assert (len(checkpoint.mtp), nbytes(checkpoint.mtp)) == (MTP_TENSORS, MTP_BYTES)
    # 102.611 GB with vision in BF16 (897,899,504 bytes) and without exceptions: design/models.md, section 1.5
    assert round((nbytes(checkpoint.target) + MTP_BYTES + 897_899_504) / 1e9, 3) == 102.611


def test_a_tiny_checkpoint_has_the_same_names_but_for_its_counts(checkpoint: Checkpoint) -> None:
    def kinds(specs: dict[str, Spec]) -> set[str]:
        return {".".join("N" if part.isdigit() else part for part in name.split(".")) for name in specs}

    full = full_architecture()
    shards = {f"shard_{n}" for n in range(128)}

    def unsharded(names: set[str]) -> set[str]:
        return {".".join("shard" if part in shards else part for part in name.split(".")) for name in names}

    tiny = checkpoint.architecture
    assert unsharded(kinds(target_tensors(full))) == unsharded(kinds(target_tensors(tiny)))
    assert kinds(mtp_tensors(full)) == kinds(mtp_tensors(tiny))


def test_equal_seeds_write_equal_checkpoints(tmp_path: Path, folder: Path) -> None:
    write_tiny(tmp_path, tiny_architecture(), seed=1)
    for file in folder.iterdir():
        assert (tmp_path / file.name).read_bytes() == file.read_bytes()


def damaged(folder: Path, tmp_path: Path, damage: Callable[[dict[str, torch.Tensor]], None]) -> Path:
    for file in folder.iterdir():
        target = tmp_path / file.name
        if file.suffix == ".safetensors":
            tensors = load_file(file)
            damage(tensors)
            save_file(tensors, target)
        else:
            target.write_bytes(file.read_bytes())
    return tmp_path


def test_missing_surplus_and_wrong_tensors_are_named_in_one_error(folder: Path, tmp_path: Path) -> None:
    missing = "mtp.layers.0.mlp.experts.3.up_proj.weight_scale"
    shape = "model.language_model.layers.0.mlp.experts.2.down_proj.weight_scale.nvfp4_csf_fixed"
    dtype = "model.language_model.layers.3.self_attn.q_proj.weight"

    def damage(tensors: dict[str, torch.Tensor]) -> None:
        if tensors.pop(missing, None) is not None:
            tensors["mtp.layers.0.mlp.experts.3.up_proj.input_scale"] = torch.ones(())
        if shape in tensors:
            tensors[shape] = tensors[shape][:-1].contiguous()
        if dtype in tensors:
            tensors[dtype] = tensors[dtype].to(torch.bfloat16)

    with pytest.raises(CheckpointError) as raised:
        Checkpoint(damaged(folder, tmp_path, damage))
    message = str(raised.value)
    for part in (f"missing 1: {missing}", "surplus 1: mtp.layers.0.mlp.experts.3.up_proj.input_scale", shape, dtype):
        assert part in message
    assert "BF16 [256, 64], not F8_E4M3 [256, 64]" in message


def test_images_are_left_alone(folder: Path, tmp_path: Path) -> None:
    def damage(tensors: dict[str, torch.Tensor]) -> None:
        if "lm_head.weight" in tensors:
            tensors["model.visual.patch_embed.proj.weight"] = torch.ones(3)

    assert len(Checkpoint(damaged(folder, tmp_path, damage)).vision) == 1


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        (("text_config", "model_type"), "llama", "model_type"),
        (("text_config", "num_experts"), None, "num_experts"),
        (("text_config", "layer_types"), ["linear_attention", "mamba"], "mamba"),
        (("text_config", "tie_word_embeddings"), True, "tie_word_embeddings"),
        (("quantization_config",), None, "quantization_config"),
        (("quantization_config", "quant_algo"), "FP8", "FP8"),
        (("quantization_config", "quantized_layers", "mtp.layers.4.mlp.experts"), None, "mtp.layers.4.mlp.experts"),
        (
            ("quantization_config", "quantized_layers", "model.language_model.layers.0.mlp.experts"),
            {"quant_algo": "NVFP4", "group_size": 16},
            "layers.0.mlp.experts",
        ),
    ],
)
def test_a_config_that_says_something_else_is_refused(
    folder: Path, tmp_path: Path, path: tuple[str, ...], value: object, named: str
) -> None:
    config: dict[str, Any] = json.loads((folder / "config.json").read_bytes())
    part = config
    for key in path[:-1]:
        part = part[key]
    if value is None:
        del part[path[-1]]
    else:
        part[path[-1]] = value
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=named):
        Checkpoint(tmp_path)
