"""Weights of any geometry drawn on a device, without a checkpoint: the real one has 73 GB of them, and a table beside.

Runs in the worker, for benchmarks alone: what a round takes depends on shapes, types and how many experts are chosen,
not on what the values mean. They are drawn such that activations stay of the order of one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor

from recipes.components import mxfp8, nvfp4
from recipes.components.table_file import padded
from recipes.components.tensor_store import TensorStore
from recipes.qwen38.architecture import Architecture, Rope
from recipes.qwen38.device_weights import DeviceDrafterWeights, DeviceReader, DeviceWeights
from recipes.qwen38.embedding_table import row_size
from recipes.qwen38.inventory import Spec, mtp_tensors, target_tensors
from recipes.qwen38.ngram_tables import ngram_tables

SMALL_TABLE = 20_000
"""Rows of a hash head of a reduced n-gram table; the checkpoint has 20 million, 28.8 GB in all."""
_NORM_SCALE = 0.1
_FEWEST, _MOST = 0x34, 0x3C
"""E4M3 bytes of block scales: from 0.75 up to, not including, 1.5."""
_CODE_SIZE = 2.93
"""Root mean square of E2M1 values whose four bits are drawn evenly."""


def full_architecture(table_rows: int = SMALL_TABLE) -> Architecture:
    """Qwen3.8-Flash-Next as its config states it (design/models.md, section 1.2), but for the rows of its table."""
    return Architecture(
        model_type="qwen4_exp_text",
        vocab_size=248_320,
        hidden_size=2560,
        num_hidden_layers=48,
        layer_types=("linear_attention", "linear_attention", "linear_attention", "full_attention") * 12,
        num_attention_heads=24,
        num_key_value_heads=2,
        head_dim=256,
        rms_norm_eps=1e-6,
        max_position_embeddings=262_144,
        rope_parameters=Rope(rope_theta=1e7, partial_rotary_factor=0.25),
        linear_conv_kernel_dim=4,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        linear_num_key_heads=16,
        linear_num_value_heads=48,
        moe_intermediate_size=640,
        shared_expert_intermediate_size=640,
        num_experts=512,
        num_experts_per_tok=10,
        hc_count=4,
        hc_lowrank=320,
        ple_layer_ids=(2,),
        ple_embed_dim=2560,
        ple_conv_kernel_size=4,
        ngram_size=3,
        heads_per_ngram=8,
        ngram_vocab_size_base=table_rows,
        make_ngram_vocab_size_divisible_by=128,
        split_ngram_parts=128,
        seed=1234,
        indexer_n_heads=4,
        indexer_head_dim=128,
        indexer_budget=2048,
        indexer_compress_ratio=4,
        eos_token_id=248_044,
    )


class RandomTensors:
    """A `TensorStore` without files: tensors of a checkpoint's inventory, drawn when they are asked for."""

    def __init__(self, a: Architecture, specs: Mapping[str, Spec], generator: torch.Generator) -> None:
        self._specs = specs
        self._tables = ngram_tables(a)
        self._generator = generator

    def tensor(self, name: str) -> Tensor:
        """The tensor in its stored type."""
        spec, device = self._specs[name], self._generator.device
        constants = {
            "layer_multipliers": self._tables.multipliers,
            "ngram_heads_vocab_sizes": self._tables.primes,
            "ngram_heads_offsets": self._tables.offsets,
        }.get(name.rsplit(".", 1)[-1])
        if constants is not None:
            return torch.tensor(constants, device=device)
        if name.endswith("weight_scale"):
            middle = 127 - (mxfp8.BLOCK * spec.shape[1]).bit_length() // 2
            return self._integers(middle - 1, middle + 2, spec)
        if name.endswith("weight_scale_2"):
            return torch.full(spec.shape, 1.0 / _CODE_SIZE, device=device)
        drawn = torch.randn(spec.shape, generator=self._generator, device=device)
        if "norm" in name.split(".")[-2]:
            near: Tensor = drawn * _NORM_SCALE
            return near + 1.0 if name.endswith("linear_attn.norm.weight") else near
        if "F8_E4M3" in spec.dtypes:
            return drawn.to(torch.float8_e4m3fn)
        scaled: Tensor = drawn * spec.shape[-1] ** -0.5
        return scaled.to(torch.bfloat16)

    def _integers(self, low: int, high: int, spec: Spec) -> Tensor:
        return torch.randint(
            low, high, spec.shape, generator=self._generator, device=self._generator.device, dtype=torch.uint8
        )

    def __contains__(self, name: str) -> bool:
        return name in self._specs


class RandomReader(DeviceReader):
    """A `DeviceReader` that has no files. Equal seeds give equal weights on one kind of device."""

    def __init__(self, a: Architecture, device: torch.device, dtype: torch.dtype, seed: int) -> None:
        self._generator = torch.Generator(device).manual_seed(seed)
        specs = {
            name: spec
            for name, spec in (target_tensors(a) | mtp_tensors(a)).items()
            if ".experts." not in name and ".shard_" not in name
        }
        super().__init__(a, cast(TensorStore, RandomTensors(a, specs, self._generator)), device, dtype)

    def _bytes(self, low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=self._generator, device=self._device, dtype=torch.uint8)

    def _rows(self, name: str) -> Tensor:
        size, rows = row_size(self._a), ngram_tables(self._a).rows
        values, scales = size // 2, size // nvfp4.BLOCK
        table = self._bytes(0, 256, rows, padded(values + scales))
        table[:, values : values + scales] = self._bytes(_FEWEST, _MOST, rows, scales)
        return table

    def _packed(self, name: str, part: str, target: bool) -> tuple[Tensor, Tensor, Tensor]:
        a = self._a
        inner, hidden = a.moe_intermediate_size, a.hidden_size
        rows, columns = (hidden, inner) if part == "down" else (inner, hidden)
        single = torch.full((a.num_experts,), columns**-0.5 / _CODE_SIZE, device=self._device)
        return (
            self._bytes(0, 256, a.num_experts, rows, columns // 2),
            self._bytes(_FEWEST, _MOST, a.num_experts, rows, columns // nvfp4.BLOCK),
            single,
        )


def random_weights(
    a: Architecture, device: torch.device, dtype: torch.dtype, seed: int, drafter: bool
) -> tuple[DeviceWeights, DeviceDrafterWeights | None]:
    """Weights of the target and, if wanted, of its drafter, on `device`."""
    reader = RandomReader(a, device, dtype, seed)
    target = reader.target()
    return target, reader.drafter(target) if drafter else None
