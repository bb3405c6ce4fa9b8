"""Weights of the target on a device: experts as the checkpoint packs them, everything else in the device's own type.

Runs in the worker. MXFP8 projections are widened, exactly in bfloat16; norms and gates of the recurrence stay float32.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from recipes.components import csf, nvfp4
from recipes.components.gpu.experts import PackedExperts
from recipes.components.gpu.ngrams import DeviceHash
from recipes.components.hyperconnection import Mixer
from recipes.components.table_file import tensor_name
from recipes.components.tensor_store import TensorStore
from recipes.qwen38.architecture import Architecture
from recipes.qwen38.blocks import AttentionBlock, DeltaBlock, NgramBlock
from recipes.qwen38.embedding_table import NAME
from recipes.qwen38.inventory import EXCEPTIONS, FIXED, TARGET
from recipes.qwen38.weights import WeightReader, table_name

_Block = TypeVar("_Block", AttentionBlock, DeltaBlock, NgramBlock, Mixer)


@dataclass(frozen=True, slots=True)
class DeviceExperts:
    """A layer's experts. `router` float32 [E, H]: routing decides between near scores. The rest is narrower."""

    router: Tensor
    routed: PackedExperts
    shared_gate_up: Tensor
    shared_down: Tensor
    shared_gate: Tensor


@dataclass(frozen=True, slots=True)
class DeviceLayer:
    """One decoder layer, as `blocks.Layer`."""

    ngrams: NgramBlock | None
    attention_mixer: Mixer
    attention: DeltaBlock | AttentionBlock
    experts_mixer: Mixer
    experts: DeviceExperts


@dataclass(frozen=True, slots=True)
class DeviceWeights:
    """The target. `table` uint8 [rows, row bytes] holds the n-gram embeddings, `table_scale` float32 [1] is theirs."""

    embedding: Tensor
    layers: tuple[DeviceLayer, ...]
    mixer: Mixer
    head: Tensor
    hash: DeviceHash
    table: Tensor
    table_scale: Tensor


class DeviceReader:
    """Reads a core's tensors onto one device."""

    def __init__(
        self, architecture: Architecture, tensors: TensorStore, device: torch.device, dtype: torch.dtype
    ) -> None:
        self._a = architecture
        self._tensors = tensors
        self._reader = WeightReader(architecture, tensors)
        self._device = device
        self._dtype = dtype

    def target(self) -> DeviceWeights:
        """All weights of the target. Raises `CheckpointError`."""
        reader, name = self._reader, table_name(self._a)
        hashed = reader.hash(name.removesuffix(".ngram_embedding"))
        rows = self._rows(name)
        return DeviceWeights(
            embedding=self._matrix(reader.plain(f"{TARGET}embed_tokens.weight")),
            layers=tuple(self._layer(layer) for layer in range(self._a.num_hidden_layers)),
            mixer=self._moved(reader.mixer(f"{TARGET}hyper_connection_mixer", injects=False)),
            head=self._matrix(reader.plain("lm_head.weight")),
            hash=DeviceHash(
                multipliers=self._put(hashed.multipliers),
                primes=self._put(hashed.primes),
                offsets=self._put(hashed.offsets),
                boundary=hashed.boundary,
            ),
            table=self._put(rows),
            table_scale=self._put(reader.plain(f"{name}.weight_scale_2").view(1)),
        )

    def _rows(self, name: str) -> Tensor:
        if tensor_name(NAME) in self._tensors:
            return self._tensors.tensor(tensor_name(NAME))
        return torch.cat([self._reader.shard(name, part) for part in range(self._a.split_ngram_parts)])

    def _layer(self, layer: int) -> DeviceLayer:
        name, reader = f"{TARGET}layers.{layer}", self._reader
        attention: DeltaBlock | AttentionBlock
        if self._a.is_sparse(layer):
            attention = self._moved(reader.attention(f"{name}.self_attn"))
        else:
            attention = self._moved(reader.delta(f"{name}.linear_attn"))
        return DeviceLayer(
            ngrams=self._moved(reader.ngrams(f"{name}.ple")) if self._a.has_ple(layer) else None,
            attention_mixer=self._moved(reader.mixer(f"{name}.attn_hyper_connection")),
            attention=attention,
            experts_mixer=self._moved(reader.mixer(f"{name}.mlp_hyper_connection")),
            experts=self._experts(f"{name}.mlp"),
        )

    def _experts(self, name: str) -> DeviceExperts:
        reader = self._reader
        shared = {part: reader.projection(f"{name}.shared_expert.{part}_proj") for part in ("gate", "up", "down")}
        gate, up, down = (self._packed(name, part) for part in ("gate", "up", "down"))
        return DeviceExperts(
            router=self._put(reader.plain(f"{name}.gate.weight")),
            routed=PackedExperts(
                gate_up=self._put(torch.cat([gate[0], up[0]], dim=1)),
                gate_up_scales=self._put(torch.cat([gate[1], up[1]], dim=1)),
                gate_up_singles=self._put(torch.stack([gate[2], up[2]], dim=1)),
                down=self._put(down[0]),
                down_scales=self._put(down[1]),
                down_singles=self._put(down[2]),
                top=self._a.num_experts_per_tok,
            ),
            shared_gate_up=self._matrix(torch.cat([shared["gate"], shared["up"]])),
            shared_down=self._matrix(shared["down"]),
            shared_gate=self._matrix(reader.plain(f"{name}.shared_expert_gate.weight")),
        )

    def _packed(self, name: str, part: str) -> tuple[Tensor, Tensor, Tensor]:
        """Bytes, block scales as bytes, and global scales of all experts' `part` matrices, CSF decoded."""
        packed, scales, singles = [], [], []
        for number in range(self._a.num_experts):
            expert = f"{name}.experts.{number}.{part}_proj"
            packed.append(self._tensors.tensor(f"{expert}.weight"))
            rows, columns = packed[-1].shape[0], packed[-1].shape[1] * 2 // nvfp4.BLOCK
            fixed, exceptions = (self._tensors.tensor(f"{expert}{kind}") for kind in (FIXED, EXCEPTIONS))
            scales.append(csf.decode(fixed, exceptions, rows, columns).view(torch.uint8))
            singles.append(self._reader.plain(f"{expert}.weight_scale_2").view(()))
        return torch.stack(packed), torch.stack(scales), torch.stack(singles)

    def _moved(self, block: _Block) -> _Block:
        """The block on the device: matrices in its type, vectors in float32."""
        moved: dict[str, Any] = {
            field.name: self._matrix(value) if value.dim() > 1 else self._put(value)
            for field in fields(block)
            if isinstance(value := getattr(block, field.name), Tensor)
        }
        return replace(block, **moved)

    def _matrix(self, value: Tensor) -> Tensor:
        return value.to(self._device, self._dtype)

    def _put(self, value: Tensor) -> Tensor:
        return value.to(self._device)
