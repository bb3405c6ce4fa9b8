"""Tiny checkpoints in the real format: the same names, types and quantisation at small widths, from a seed.

Runs in `ignition tiny`. Values are drawn as float32, rounded to the stored type and written; whoever wants the exact
weights reads the checkpoint back.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from recipes.components import csf, mxfp8, nvfp4
from recipes.components.tensor_store import save_tensors
from recipes.qwen38.architecture import Architecture, Rope, checked
from recipes.qwen38.inventory import EXCEPTIONS, FIXED, Spec, mtp_tensors, target_tensors
from recipes.qwen38.ngram_tables import ngram_tables
from recipes.qwen38.quantization import expected_layers
from recipes.qwen38.tiny_text import write_text_side

_SCALE, _NORM_SCALE = 0.15, 0.1
_SHARDS = 3


def tiny_architecture(**changes: object) -> Architecture:
    """Every kind of layer at small widths, with the real number of index heads: fewer make ties of zero scores."""
    tiny = Architecture(
        model_type="qwen4_exp_text",
        vocab_size=320,
        hidden_size=64,
        num_hidden_layers=4,
        layer_types=("linear_attention", "linear_attention", "linear_attention", "full_attention"),
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        rms_norm_eps=1e-6,
        max_position_embeddings=4096,
        rope_parameters=Rope(rope_theta=1e7, partial_rotary_factor=0.25),
        linear_conv_kernel_dim=4,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
        linear_num_key_heads=2,
        linear_num_value_heads=6,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=32,
        num_experts=8,
        num_experts_per_tok=3,
        hc_count=4,
        hc_lowrank=16,
        ple_layer_ids=(2,),
        ple_embed_dim=64,
        ple_conv_kernel_size=4,
        ngram_size=3,
        heads_per_ngram=2,
        ngram_vocab_size_base=97,
        make_ngram_vocab_size_divisible_by=16,
        split_ngram_parts=4,
        seed=1234,
        indexer_n_heads=4,
        indexer_head_dim=16,
        indexer_budget=8,
        indexer_compress_ratio=4,
        eos_token_id=319,
    )
    return checked(msgspec.structs.replace(tiny, **changes))


def _drawn(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """A float32 tensor as the model's parts want it."""
    if "norm" in name.split(".")[-2]:
        near = torch.randn(shape, generator=generator) * _NORM_SCALE
        # The gated delta net's own norm is not zero-centred.
        return near + 1.0 if name.endswith("linear_attn.norm.weight") else near
    if name.endswith("A_log"):
        return torch.rand(shape, generator=generator)
    return torch.randn(shape, generator=generator) * _SCALE


def _calibrated_limit(name: str) -> float:
    """The largest activation an expert's matrix would have seen: beyond what tiny models reach, and everyone's own."""
    *_, expert, part = name.split(".")
    return 4.0 + int(expert) / 8 + {"gate_proj": 0.0, "up_proj": 0.25, "down_proj": -0.5}[part]


def _module(name: str, specs: dict[str, Spec], generator: torch.Generator) -> Iterator[tuple[str, Tensor]]:
    """The tensors of one quantised matrix `name`: its `.weight` spec tells the format, its companions are made here."""
    spec = specs[f"{name}.weight"]
    if "F8_E4M3" in spec.dtypes:
        values, scales = mxfp8.quantize(_drawn(f"{name}.weight", spec.shape, generator))
        yield from ((f"{name}.weight", values), (f"{name}.weight_scale", scales))
        return
    rows, half = spec.shape
    matrix = _drawn(f"{name}.weight", (rows, 2 * half), generator)
    single = nvfp4.global_scale_of(matrix)
    packed, scales = nvfp4.quantize(matrix, single)
    yield f"{name}.weight", packed
    if f"{name}.weight_scale_2" in specs:
        yield f"{name}.weight_scale_2", single
    if f"{name}{FIXED}" in specs:
        fixed, exceptions = csf.encode(scales.view(torch.uint8))
        yield from ((f"{name}{FIXED}", fixed), (f"{name}{EXCEPTIONS}", exceptions))
        yield f"{name}.input_scale", torch.tensor(_calibrated_limit(name) / (nvfp4.LARGEST * 448.0))
    else:
        yield f"{name}.weight_scale", scales


def _table(name: str, a: Architecture, generator: torch.Generator) -> Iterator[tuple[str, Tensor]]:
    """The shards of the n-gram table, which share one global scale."""
    tables, size = ngram_tables(a), a.ple_embed_dim // a.ngram_heads
    matrix = torch.randn(tables.rows, size, generator=generator) * _SCALE
    single = nvfp4.global_scale_of(matrix)
    packed, scales = nvfp4.quantize(matrix, single)
    parts = a.split_ngram_parts
    for shard, (values, scale) in enumerate(zip(packed.chunk(parts), scales.chunk(parts), strict=True)):
        yield f"{name}.shard_{shard}.weight", values.contiguous()
        yield f"{name}.shard_{shard}.weight_scale", scale.contiguous()
    yield f"{name}.weight_scale_2", single.view(1)


def _constants(name: str, a: Architecture) -> Iterator[tuple[str, Tensor]]:
    tables = ngram_tables(a)
    yield f"{name}.layer_multipliers", torch.tensor(tables.multipliers)
    yield f"{name}.ngram_heads_vocab_sizes", torch.tensor(tables.primes)
    yield f"{name}.ngram_heads_offsets", torch.tensor(tables.offsets)


def tiny_tensors(a: Architecture, seed: int) -> dict[str, Tensor]:
    """Every tensor of a checkpoint, in its stored type. Equal seeds give equal tensors."""
    generator = torch.Generator().manual_seed(seed)
    specs = target_tensors(a) | mtp_tensors(a)
    found: dict[str, Tensor] = {}
    for name, spec in specs.items():
        if name in found or name.endswith((".weight_scale", ".weight_scale_2", FIXED, EXCEPTIONS, ".input_scale")):
            continue
        if ".ple_embedding." in name:
            inner = name.split(".ple_embedding.")[0] + ".ple_embedding"
            found.update(_constants(inner, a))
            if f"{inner}.ngram_embedding.weight_scale_2" not in found:
                found.update(_table(f"{inner}.ngram_embedding", a, generator))
        elif "BF16" in spec.dtypes:
            found[name] = _drawn(name, spec.shape, generator).to(torch.bfloat16)
        else:
            found.update(_module(name.removesuffix(".weight"), specs, generator))
    return found


def write_tiny(folder: Path, a: Architecture, seed: int = 0) -> None:
    """Writes config.json, the tensors, in several files as large checkpoints have them, and the text side."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = sorted(tiny_tensors(a, seed).items())
    for shard in range(_SHARDS):
        save_tensors(dict(tensors[shard::_SHARDS]), folder / f"model-{shard + 1:05d}-of-{_SHARDS:05d}.safetensors")
    config = {
        "architectures": ["Qwen4ExpForCausalLM"],
        "quantization_config": {
            "quant_method": "modelopt",
            "quant_algo": "MIXED_PRECISION",
            "quantized_layers": expected_layers(a),
        },
        "text_config": a,
    }
    (folder / "config.json").write_bytes(msgspec.json.format(msgspec.json.encode(config)))
    write_text_side(folder, a)
