"""The shape of Qwen3.8-Flash-Next: sizes and constants as a checkpoint's config.json states them. Pure data.

Field names are the config's own, so that anyone can compare; what the recipe cannot compute is refused here
(design/models.md, section 1.2).
"""

from __future__ import annotations

from math import prod
from typing import Literal

import msgspec

from shared.errors import CheckpointError

SPARSE_KINDS = frozenset({"full_attention", "qwen_sparse_attention", "indexed_attention"})
"""Names of a sparse-attention layer in configs and in versions of transformers."""
LINEAR_KIND = "linear_attention"


class Rope(msgspec.Struct, frozen=True):
    """`rope_parameters`; the sections of multimodal positions are equal for text and not read."""

    rope_theta: float
    partial_rotary_factor: float
    rope_type: Literal["default"] = "default"


class Architecture(msgspec.Struct, frozen=True, kw_only=True):
    """`text_config` of config.json: what is read of it. Sizes in elements, lengths in tokens."""

    model_type: Literal["qwen4_exp_text"]
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    layer_types: tuple[str, ...]
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    max_position_embeddings: int
    rope_parameters: Rope
    linear_conv_kernel_dim: int
    linear_key_head_dim: int
    linear_value_head_dim: int
    linear_num_key_heads: int
    linear_num_value_heads: int
    moe_intermediate_size: int
    shared_expert_intermediate_size: int
    num_experts: int
    num_experts_per_tok: int
    hc_count: int
    hc_lowrank: int
    ple_layer_ids: tuple[int, ...]
    ple_embed_dim: int
    ple_conv_kernel_size: int
    ngram_size: int
    heads_per_ngram: int
    ngram_vocab_size_base: int
    make_ngram_vocab_size_divisible_by: int
    split_ngram_parts: int
    seed: int
    indexer_n_heads: int
    indexer_head_dim: int
    indexer_budget: int
    indexer_compress_ratio: int
    eos_token_id: int
    indexer_kv_heads: Literal[1] = 1
    hidden_act: Literal["silu"] = "silu"
    output_gate_type: Literal["sigmoid"] = "sigmoid"
    norm_topk_prob: Literal[True] = True
    attention_bias: Literal[False] = False
    tie_word_embeddings: Literal[False] = False
    mtp_num_hidden_layers: Literal[1] = 1

    def is_sparse(self, layer: int) -> bool:
        """Whether the layer attends (sparse attention) rather than recurs (gated delta net)."""
        return self.layer_types[layer] in SPARSE_KINDS

    def has_ple(self, layer: int) -> bool:
        """Whether the layer adds n-gram embeddings; the config counts layers from one."""
        return layer + 1 in self.ple_layer_ids

    @property
    def streams_width(self) -> int:
        """Elements of the residual streams of one token."""
        return self.hc_count * self.hidden_size

    @property
    def linear_key_width(self) -> int:
        return self.linear_num_key_heads * self.linear_key_head_dim

    @property
    def linear_value_width(self) -> int:
        return self.linear_num_value_heads * self.linear_value_head_dim

    @property
    def convolution_width(self) -> int:
        """Channels of the gated delta net's convolution: queries, keys and values."""
        return 2 * self.linear_key_width + self.linear_value_width

    @property
    def rotary_size(self) -> int:
        """Elements of a head that carry positions."""
        return int(self.head_dim * self.rope_parameters.partial_rotary_factor)

    @property
    def ngram_heads(self) -> int:
        """Hash heads of all n-gram orders from two on."""
        return (self.ngram_size - 1) * self.heads_per_ngram


def checked(architecture: Architecture) -> Architecture:
    """The architecture itself, if the recipe can run it. Raises one `CheckpointError` that names all that is wrong."""
    a = architecture
    kinds = set(a.layer_types) - SPARSE_KINDS - {LINEAR_KIND}
    rules = (
        (not kinds, f"layer_types names {', '.join(sorted(kinds))}"),
        (len(a.layer_types) == a.num_hidden_layers, "layer_types does not have num_hidden_layers entries"),
        (a.num_attention_heads % a.num_key_value_heads == 0, "attention heads do not divide among key/value heads"),
        (a.linear_num_value_heads % a.linear_num_key_heads == 0, "value heads do not divide among key heads"),
        (a.num_experts_per_tok <= a.num_experts, "more experts a token than there are"),
        (a.indexer_budget % a.indexer_compress_ratio == 0, "indexer_budget is no multiple of indexer_compress_ratio"),
        (a.ple_embed_dim % a.ngram_heads == 0, "ple_embed_dim does not divide among the n-gram heads"),
        (all(1 <= layer <= a.num_hidden_layers for layer in a.ple_layer_ids), "ple_layer_ids are out of range"),
        (len(a.ple_layer_ids) == 1, "this recipe serves exactly one layer with n-gram embeddings"),
        (a.rotary_size > 0 and a.rotary_size % 2 == 0, "partial_rotary_factor leaves no even rotary part"),
        (a.rotary_size <= a.indexer_head_dim, "the rotary part does not fit into an index head"),
        (prod((a.hidden_size, a.moe_intermediate_size)) > 0, "a size is zero"),
    )
    wrong = [reason for holds, reason in rules if not holds]
    if wrong:
        raise CheckpointError("config.json: " + "; ".join(wrong))
    return architecture


def read_architecture(config: bytes) -> Architecture:
    """The text model's architecture in a config.json, nested as `text_config` or alone. Raises `CheckpointError`."""
    try:
        outer = msgspec.json.decode(config, type=dict[str, msgspec.Raw])
        return checked(msgspec.json.decode(outer.get("text_config", config), type=Architecture))
    except msgspec.MsgspecError as error:
        raise CheckpointError(f"config.json is not of a Qwen3.8-Flash-Next model: {error}") from error
