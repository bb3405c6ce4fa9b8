"""Weights of the target on a device: experts as the checkpoint packs them, everything else in the device's own type.

Runs in the worker. Projections stay MXFP8 where the core has them so; norms and gates of the recurrence are float32.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from recipes.components import csf, nvfp4
from recipes.components.gpu.expert_block import ExpertBlock
from recipes.components.gpu.experts import PackedExperts
from recipes.components.gpu.head_rows import HeadNorms
from recipes.components.gpu.launch import even_lines
from recipes.components.gpu.matrices import Matrix, before, behind, joined
from recipes.components.gpu.mxfp8_linear import Mxfp8Weight
from recipes.components.gpu.ngrams import DeviceHash, GateNorms
from recipes.components.gpu.recurrence import DeltaGates
from recipes.components.gpu.streams import DeviceMixer
from recipes.components.gpu.tables import DeviceTable, HeldTable
from recipes.components.gpu.verified_delta import DeltaNet
from recipes.components.table_file import tensor_name
from recipes.components.tensor_store import TensorStore
from recipes.qwen38.architecture import Architecture
from recipes.qwen38.embedding_table import NAME
from recipes.qwen38.inventory import EXCEPTIONS, FIXED, MTP, TARGET
from recipes.qwen38.weights import WeightReader, table_name


@dataclass(frozen=True, slots=True)
class DeviceDelta:
    """A gated delta net. `inputs` [LINE, H] are queries, keys and values, then gates, decays, betas."""

    inputs: Matrix
    output: Matrix
    net: DeltaNet


@dataclass(frozen=True, slots=True)
class DeviceAttention:
    """Sparse attention. `inputs` [LINE, H] are the parts that `HeadShape` names."""

    inputs: Matrix
    output: Matrix
    norms: HeadNorms


@dataclass(frozen=True, slots=True)
class DeviceNgrams:
    """The n-gram layer. `inputs` [S * H + H, E]: keys of the streams, then a value; `convolution` [S * H, taps]."""

    inputs: Matrix
    norms: GateNorms
    convolution: Tensor


@dataclass(frozen=True, slots=True)
class DeviceLayer:
    """One decoder layer, as `blocks.Layer`."""

    ngrams: DeviceNgrams | None
    attention_mixer: DeviceMixer
    attention: DeviceDelta | DeviceAttention
    experts_mixer: DeviceMixer
    experts: ExpertBlock


@dataclass(frozen=True, slots=True)
class DeviceWeights:
    """The target. `table` has the n-gram embeddings, `table_scale` float32 [1] is theirs."""

    embedding: Tensor
    layers: tuple[DeviceLayer, ...]
    mixer: DeviceMixer
    head: Tensor
    hash: DeviceHash
    table: DeviceTable
    table_scale: Tensor


@dataclass(frozen=True, slots=True)
class DeviceDrafterWeights:
    """The drafter's layer; `embedding` and `head` are the target's tensors.

    `projection` [H, 2 * H] takes a normed stream and the normed embedding side by side.
    """

    embedding: Tensor
    head: Tensor
    embedding_norm: Tensor
    hidden_norm: Tensor
    projection: Tensor
    attention_mixer: DeviceMixer
    attention: DeviceAttention
    experts_mixer: DeviceMixer
    experts: ExpertBlock
    mixer: DeviceMixer


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

    def target(self, table: DeviceTable | None = None) -> DeviceWeights:
        """All weights of the target; without `table` its rows lie on the device too. Raises `CheckpointError`."""
        reader, name = self._reader, table_name(self._a)
        hashed = reader.hash(name.removesuffix(".ngram_embedding"))
        return DeviceWeights(
            embedding=self._matrix(reader.plain(f"{TARGET}embed_tokens.weight")),
            layers=tuple(self._layer(layer) for layer in range(self._a.num_hidden_layers)),
            mixer=self._mixer(f"{TARGET}hyper_connection_mixer", injects=False),
            head=self._matrix(reader.plain("lm_head.weight")),
            hash=DeviceHash(
                multipliers=self._put(hashed.multipliers),
                primes=self._put(hashed.primes),
                offsets=self._put(hashed.offsets),
                boundary=hashed.boundary,
            ),
            table=table or HeldTable(self._put(self._rows(name))),
            table_scale=self._put(reader.plain(f"{name}.weight_scale_2").view(1)),
        )

    def drafter(self, target: DeviceWeights) -> DeviceDrafterWeights:
        """The drafter's weights beside the target's. Raises `CheckpointError`."""
        reader, name = self._reader, f"{MTP}layers.0"
        hidden, embedding = reader.projection(f"{MTP}fc_hidden"), reader.projection(f"{MTP}fc_embedding")
        return DeviceDrafterWeights(
            embedding=target.embedding,
            head=target.head,
            embedding_norm=self._put(reader.plain(f"{MTP}pre_fc_norm_embedding.weight")),
            hidden_norm=self._put(reader.plain(f"{MTP}pre_fc_norm_hidden.weight")),
            projection=self._matrix(torch.cat([hidden, embedding], dim=1)),
            attention_mixer=self._mixer(f"{name}.attn_hyper_connection"),
            attention=self._attention(f"{name}.self_attn"),
            experts_mixer=self._mixer(f"{name}.mlp_hyper_connection"),
            experts=self._experts(f"{name}.mlp", target=False),
            mixer=self._mixer(f"{MTP}hyper_connection_mixer", injects=False),
        )

    def _rows(self, name: str) -> Tensor:
        if tensor_name(NAME) in self._tensors:
            return self._tensors.tensor(tensor_name(NAME))
        return torch.cat([self._reader.shard(name, part) for part in range(self._a.split_ngram_parts)])

    def _layer(self, layer: int) -> DeviceLayer:
        name = f"{TARGET}layers.{layer}"
        attention: DeviceDelta | DeviceAttention
        if self._a.is_sparse(layer):
            attention = self._attention(f"{name}.self_attn")
        else:
            attention = self._delta(f"{name}.linear_attn")
        return DeviceLayer(
            ngrams=self._ngrams(f"{name}.ple") if self._a.has_ple(layer) else None,
            attention_mixer=self._mixer(f"{name}.attn_hyper_connection"),
            attention=attention,
            experts_mixer=self._mixer(f"{name}.mlp_hyper_connection"),
            experts=self._experts(f"{name}.mlp", target=True),
        )

    def _experts(self, name: str, *, target: bool) -> ExpertBlock:
        reader = self._reader
        shared = {part: self._projection(f"{name}.shared_expert.{part}_proj") for part in ("gate", "up", "down")}
        gate, up, down = (self._packed(name, part, target) for part in ("gate", "up", "down"))
        routers = [reader.plain(f"{name}.{part}.weight") for part in ("gate", "shared_expert_gate")]
        return ExpertBlock(
            router=self._matrix(even_lines(torch.cat(routers))),
            routed=PackedExperts(
                gate_up=self._put(torch.cat([gate[0], up[0]], dim=1)),
                gate_up_scales=self._put(torch.cat([gate[1], up[1]], dim=1)),
                gate_up_singles=self._put(torch.stack([gate[2], up[2]], dim=1)),
                down=self._put(down[0]),
                down_scales=self._put(down[1]),
                down_singles=self._put(down[2]),
                top=self._a.num_experts_per_tok,
            ),
            shared_gate_up=joined([shared["gate"], shared["up"]]),
            shared_down=shared["down"],
        )

    def _packed(self, name: str, part: str, target: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Bytes, block scales as bytes, and global scales of all experts' `part` matrices; the target's are CSF."""
        packed, scales, singles = [], [], []
        for number in range(self._a.num_experts):
            expert = f"{name}.experts.{number}.{part}_proj"
            packed.append(self._tensors.tensor(f"{expert}.weight"))
            if target:
                rows, columns = packed[-1].shape[0], packed[-1].shape[1] * 2 // nvfp4.BLOCK
                fixed, exceptions = (self._tensors.tensor(f"{expert}{kind}") for kind in (FIXED, EXCEPTIONS))
                scales.append(csf.decode(fixed, exceptions, rows, columns).view(torch.uint8))
            else:
                scales.append(self._tensors.tensor(f"{expert}.weight_scale").view(torch.uint8))
            singles.append(self._reader.plain(f"{expert}.weight_scale_2").view(()))
        return torch.stack(packed), torch.stack(scales), torch.stack(singles)

    def _mixer(self, name: str, *, injects: bool = True) -> DeviceMixer:
        return DeviceMixer.of(self._reader.mixer(name, injects=injects), self._dtype).to(self._device)

    def _attention(self, name: str) -> DeviceAttention:
        index = self._projection(f"{name}.indexer.index_qk_proj")
        heads = self._a.indexer_n_heads * self._a.indexer_head_dim
        key, value = (self._projection(f"{name}.{part}_proj") for part in ("k", "v"))
        parts = [self._projection(f"{name}.q_proj"), before(index, heads), key, value, behind(index, heads)]
        norms = ("q_norm", "k_norm", "indexer.q_layernorm", "indexer.k_layernorm")
        return DeviceAttention(
            inputs=joined(parts),
            output=self._projection(f"{name}.o_proj"),
            norms=HeadNorms(*(self._put(self._reader.plain(f"{name}.{norm}.weight")) for norm in norms)),
        )

    def _delta(self, name: str) -> DeviceDelta:
        plain = {part: self._put(self._reader.plain(f"{name}.{part}")) for part in ("A_log", "dt_bias", "norm.weight")}
        return DeviceDelta(
            inputs=joined([self._projection(f"{name}.in_proj_{part}") for part in ("qkv", "z", "a", "b")]),
            output=self._projection(f"{name}.out_proj"),
            net=DeltaNet(
                convolution=self._put(self._reader.plain(f"{name}.conv1d.weight").squeeze(1)),
                gates=DeltaGates(plain["A_log"], plain["dt_bias"]),
                norm=plain["norm.weight"],
                epsilon=self._a.rms_norm_eps,
            ),
        )

    def _projection(self, name: str) -> Matrix:
        """A matrix on the device as the core stores it: MXFP8, or in the device's type."""
        weight = self._tensors.tensor(f"{name}.weight")
        if weight.dtype != torch.float8_e4m3fn:
            return self._matrix(weight)
        return Mxfp8Weight(self._put(weight), self._put(self._tensors.tensor(f"{name}.weight_scale")))

    def _ngrams(self, name: str) -> DeviceNgrams:
        block = self._reader.ngrams(name)
        key, query, value = (self._put(norm) for norm in (block.key_norm, block.query_norm, block.convolution_norm))
        return DeviceNgrams(
            inputs=self._matrix(torch.cat([block.key, block.value])),
            norms=GateNorms(key, query, value, self._a.hc_count, self._a.rms_norm_eps),
            convolution=self._put(block.convolution),
        )

    def _matrix(self, value: Tensor) -> Tensor:
        return value.to(self._device, self._dtype)

    def _put(self, value: Tensor) -> Tensor:
        return value.to(self._device)
