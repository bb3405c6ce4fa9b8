"""Weights of the model from a checkpoint: dequantised to float32 for the CPU's reference arithmetic.

Runs in `ignition` and in the worker. The CPU serves checkpoints of a size for tests; at full geometry only headers are
read here.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from recipes.components import csf, mxfp8, nvfp4
from recipes.components.embedding_rows import HeldRows, RowSource
from recipes.components.experts import Mixture
from recipes.components.hyperconnection import Mixer
from recipes.components.ngram_hash import NgramHash
from recipes.components.nvfp4_activations import ActivationPolicy, InputScales, shared_by
from recipes.components.table_file import tensor_name
from recipes.components.tensor_store import TensorStore
from recipes.qwen38.architecture import Architecture
from recipes.qwen38.blocks import AttentionBlock, DeltaBlock, Layer, NgramBlock
from recipes.qwen38.embedding_table import NAME, NgramTable, joined, row_size
from recipes.qwen38.inventory import EXCEPTIONS, FIXED, MTP, TARGET
from recipes.qwen38.mtp import DrafterWeights
from recipes.qwen38.target import TargetWeights
from shared.errors import CheckpointError


class WeightReader:
    """Reads tensors of a checkpoint or a core by what they are for."""

    def __init__(self, architecture: Architecture, tensors: TensorStore) -> None:
        self.architecture = architecture
        self._tensors = tensors

    def plain(self, name: str) -> Tensor:
        """A stored tensor as float32."""
        return self._tensors.tensor(name).to(torch.float32)

    def projection(self, name: str) -> Tensor:
        """A matrix [out, in], MXFP8 or plain, as the checkpoint has it."""
        weight = self._tensors.tensor(f"{name}.weight")
        if weight.dtype != torch.float8_e4m3fn:
            return weight.to(torch.float32)
        return mxfp8.dequantize(weight, self._tensors.tensor(f"{name}.weight_scale"))

    def expert(self, name: str, *, target: bool) -> Tensor:
        """An NVFP4 expert matrix; the target's scales are CSF streams, the drafter's plain."""
        packed = self._tensors.tensor(f"{name}.weight")
        if target:
            rows, columns = packed.shape[0], packed.shape[1] * 2 // nvfp4.BLOCK
            fixed, exceptions = (self._tensors.tensor(f"{name}{part}") for part in (FIXED, EXCEPTIONS))
            scales = csf.decode(fixed, exceptions, rows, columns).view(torch.float8_e4m3fn)
        else:
            scales = self._tensors.tensor(f"{name}.weight_scale")
        return nvfp4.dequantize(packed, scales, self._tensors.tensor(f"{name}.weight_scale_2"))

    def mixer(self, name: str, *, injects: bool = True) -> Mixer:
        """A hyperconnection."""
        a = self.architecture
        return Mixer(
            self.plain(f"{name}.hc_norm.weight"),
            self.plain(f"{name}.input_mix_weight_down.weight"),
            self.plain(f"{name}.input_mix_weight_up.weight"),
            self.plain(f"{name}.block_inject_weight.weight") if injects else None,
            a.hc_count,
            a.rms_norm_eps,
        )

    def attention(self, name: str) -> AttentionBlock:
        """A sparse-attention block."""
        return AttentionBlock(
            query=self.projection(f"{name}.q_proj"),
            key=self.projection(f"{name}.k_proj"),
            value=self.projection(f"{name}.v_proj"),
            output=self.projection(f"{name}.o_proj"),
            query_norm=self.plain(f"{name}.q_norm.weight"),
            key_norm=self.plain(f"{name}.k_norm.weight"),
            index=self.projection(f"{name}.indexer.index_qk_proj"),
            index_query_norm=self.plain(f"{name}.indexer.q_layernorm.weight"),
            index_key_norm=self.plain(f"{name}.indexer.k_layernorm.weight"),
        )

    def delta(self, name: str) -> DeltaBlock:
        """A gated delta net."""
        return DeltaBlock(
            qkv=self.projection(f"{name}.in_proj_qkv"),
            gate=self.projection(f"{name}.in_proj_z"),
            beta=self.projection(f"{name}.in_proj_b"),
            decay=self.projection(f"{name}.in_proj_a"),
            output=self.projection(f"{name}.out_proj"),
            convolution=self.plain(f"{name}.conv1d.weight").squeeze(1),
            norm=self.plain(f"{name}.norm.weight"),
            decay_log=self.plain(f"{name}.A_log"),
            decay_bias=self.plain(f"{name}.dt_bias"),
        )

    def input_scales(self, name: str) -> InputScales:
        """The activation scales of a layer's experts. Raises `CheckpointError` if one of them scales nothing."""
        parts = self._over_experts(name, lambda expert: self.plain(f"{expert}.input_scale"))
        for part, scales in parts.items():
            wrong = (~(torch.isfinite(scales) & (scales > 0))).nonzero().flatten().tolist()
            if wrong:
                raise CheckpointError(f"{name}: input_scale of {part}_proj is not positive in experts {wrong[:8]}")
        return InputScales(shared_by(parts["gate"], parts["up"]), parts["down"])

    def mixture(self, name: str, *, target: bool, policy: ActivationPolicy = ActivationPolicy.W4A16) -> Mixture:
        """Router, experts and shared expert of a layer."""
        parts = self._over_experts(name, lambda expert: self.expert(expert, target=target))
        shared = {part: self.projection(f"{name}.shared_expert.{part}_proj") for part in ("gate", "up", "down")}
        return Mixture(
            router=self.plain(f"{name}.gate.weight"),
            gate_up=torch.cat([parts["gate"], parts["up"]], dim=1),
            down=parts["down"],
            shared_gate_up=torch.cat([shared["gate"], shared["up"]]),
            shared_down=shared["down"],
            shared_gate=self.plain(f"{name}.shared_expert_gate.weight"),
            top=self.architecture.num_experts_per_tok,
            input_scales=self.input_scales(name) if policy is ActivationPolicy.W4A4 else None,
        )

    def _over_experts(self, name: str, read: Callable[[str], Tensor]) -> dict[str, Tensor]:
        """What `read` gives for each expert's projection of a layer, stacked, by part."""
        experts = range(self.architecture.num_experts)
        return {
            part: torch.stack([read(f"{name}.experts.{number}.{part}_proj") for number in experts])
            for part in ("gate", "up", "down")
        }

    def ngrams(self, name: str) -> NgramBlock:
        """The n-gram layer apart from its table."""
        return NgramBlock(
            key=self.plain(f"{name}.key_proj.weight"),
            value=self.plain(f"{name}.value_proj.weight"),
            key_norm=self.plain(f"{name}.norm_key.weight"),
            query_norm=self.plain(f"{name}.norm_query.weight"),
            convolution_norm=self.plain(f"{name}.norm_conv.weight"),
            convolution=self.plain(f"{name}.conv1d.weight").squeeze(1),
        )

    def shard(self, name: str, number: int) -> Tensor:
        """Whole rows uint8 [n, row bytes] of one shard of a checkpoint's n-gram table."""
        part = f"{name}.shard_{number}.weight"
        return joined(self._tensors.tensor(part), self._tensors.tensor(f"{part}_scale"))

    def table(self, name: str, source: RowSource | None = None) -> NgramTable:
        """The n-gram table over `source`; without one, its rows are loaded: a core's, or a checkpoint's shards."""
        if source is None and tensor_name(NAME) in self._tensors:
            source = HeldRows(self._tensors.tensor(tensor_name(NAME)))
        elif source is None:
            parts = range(self.architecture.split_ngram_parts)
            source = HeldRows(torch.cat([self.shard(name, number) for number in parts]))
        return NgramTable(source, row_size(self.architecture), self.plain(f"{name}.weight_scale_2").squeeze(0))

    def hash(self, name: str) -> NgramHash:
        """The hash's constants as the checkpoint stores them."""
        return NgramHash(
            multipliers=self._tensors.tensor(f"{name}.layer_multipliers"),
            primes=self._tensors.tensor(f"{name}.ngram_heads_vocab_sizes"),
            offsets=self._tensors.tensor(f"{name}.ngram_heads_offsets"),
            boundary=self.architecture.eos_token_id,
        )


def table_name(a: Architecture) -> str:
    """What the names of the n-gram table's tensors begin with in a checkpoint."""
    return f"{TARGET}layers.{a.ple_layer_ids[0] - 1}.ple.ple_embedding.ngram_embedding"


def read_target(
    reader: WeightReader, policy: ActivationPolicy = ActivationPolicy.W4A16, source: RowSource | None = None
) -> TargetWeights:
    """All weights of the target; `policy` is about its routed experts, `source` has the rows of the n-gram table."""
    a = reader.architecture
    return TargetWeights(
        embedding=reader.plain(f"{TARGET}embed_tokens.weight"),
        layers=tuple(_layer(reader, layer, policy) for layer in range(a.num_hidden_layers)),
        mixer=reader.mixer(f"{TARGET}hyper_connection_mixer", injects=False),
        head=reader.plain("lm_head.weight"),
        hash=reader.hash(table_name(a).removesuffix(".ngram_embedding")),
        table=reader.table(table_name(a), source),
    )


def _layer(reader: WeightReader, layer: int, policy: ActivationPolicy) -> Layer:
    name, a = f"{TARGET}layers.{layer}", reader.architecture
    sparse = a.is_sparse(layer)
    return Layer(
        ngrams=reader.ngrams(f"{name}.ple") if a.has_ple(layer) else None,
        attention_mixer=reader.mixer(f"{name}.attn_hyper_connection"),
        attention=reader.attention(f"{name}.self_attn") if sparse else reader.delta(f"{name}.linear_attn"),
        experts_mixer=reader.mixer(f"{name}.mlp_hyper_connection"),
        experts=reader.mixture(f"{name}.mlp", target=True, policy=policy),
    )


def read_drafter(reader: WeightReader, target: TargetWeights) -> DrafterWeights:
    """The drafter's weights; its experts are W4A16 whatever the target's policy is, and keep their own scales."""
    name = f"{MTP}layers.0"
    return DrafterWeights(
        embedding=target.embedding,
        head=target.head,
        embedding_norm=reader.plain(f"{MTP}pre_fc_norm_embedding.weight"),
        hidden_norm=reader.plain(f"{MTP}pre_fc_norm_hidden.weight"),
        embedding_projection=reader.projection(f"{MTP}fc_embedding"),
        hidden_projection=reader.projection(f"{MTP}fc_hidden"),
        attention_mixer=reader.mixer(f"{name}.attn_hyper_connection"),
        attention=reader.attention(f"{name}.self_attn"),
        experts_mixer=reader.mixer(f"{name}.mlp_hyper_connection"),
        experts=reader.mixture(f"{name}.mlp", target=False),
        mixer=reader.mixer(f"{MTP}hyper_connection_mixer", injects=False),
    )
