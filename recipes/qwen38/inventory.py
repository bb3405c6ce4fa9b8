"""Every tensor that a checkpoint of FP4-Local's layout must hold: name to type and shape. Pure data.

`ignition` compares it with the headers before it reads a payload. Quantisation is part of a tensor's identity: NVFP4
for the target's experts with CSF scales, MXFP8 for its projections, W4A16 NVFP4 with plain scales for the MTP
experts, NVFP4 for the n-gram table, BF16 for the rest (design/models.md, sections 1.4 to 1.6).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from recipes.components import csf, mxfp8, nvfp4
from recipes.qwen38.architecture import Architecture
from recipes.qwen38.ngram_tables import ngram_tables

TARGET = "model.language_model."
MTP = "mtp."
VISION = "model.visual."
"""Tensors of images: known, and left alone."""
FIXED, EXCEPTIONS = ".weight_scale.nvfp4_csf_fixed", ".weight_scale.nvfp4_csf_exceptions"
ANY = -1
"""A dimension that only the checkpoint knows: the count of a stream's exceptions."""


@dataclass(frozen=True, slots=True)
class Spec:
    """What a tensor must be. `dtypes` are alternatives; a dimension may be `ANY`."""

    dtypes: tuple[str, ...]
    shape: tuple[int, ...]

    def accepts(self, dtype: str, shape: tuple[int, ...]) -> bool:
        """Whether a header's tensor is this one."""
        return (
            dtype in self.dtypes
            and len(shape) == len(self.shape)
            and all(want in (ANY, have) for want, have in zip(self.shape, shape, strict=True))
        )

    def __str__(self) -> str:
        sizes = ", ".join("n" if size == ANY else str(size) for size in self.shape)
        return f"{' or '.join(self.dtypes)} [{sizes}]"


Found = Iterator[tuple[str, Spec]]
_BF16, _FLOAT, _BYTES, _LONG = ("BF16",), ("F32",), ("U8",), ("I64",)
_EITHER = ("BF16", "F32")
"""Decay parameters: derivatives differ, and the reader takes both."""


def _plain(name: str, *shape: int, dtypes: tuple[str, ...] = _BF16) -> Found:
    yield name, Spec(dtypes, shape)


def _mxfp8(name: str, out: int, width: int) -> Found:
    yield f"{name}.weight", Spec(("F8_E4M3",), (out, width))
    yield f"{name}.weight_scale", Spec(_BYTES, (out, width // mxfp8.BLOCK))


def _nvfp4(name: str, out: int, width: int) -> Found:
    yield f"{name}.weight", Spec(_BYTES, (out, width // 2))
    yield f"{name}.weight_scale_2", Spec(_FLOAT, ())


def _target_expert(name: str, out: int, width: int) -> Found:
    columns = width // nvfp4.BLOCK
    yield from _nvfp4(name, out, width)
    yield f"{name}{FIXED}", Spec(_BYTES, csf.fixed_shape(out, columns))
    yield f"{name}{EXCEPTIONS}", Spec(("U32",), (ANY,))
    yield f"{name}.input_scale", Spec(_FLOAT, ())


def _mtp_expert(name: str, out: int, width: int) -> Found:
    yield from _nvfp4(name, out, width)
    yield f"{name}.weight_scale", Spec(("F8_E4M3",), (out, width // nvfp4.BLOCK))


def _mixer(a: Architecture, name: str, *, injects: bool) -> Found:
    """A hyperconnection; the last one of a model injects nothing."""
    yield from _plain(f"{name}.hc_norm.weight", a.streams_width)
    yield from _plain(f"{name}.input_mix_weight_down.weight", a.hc_lowrank, a.streams_width)
    yield from _plain(f"{name}.input_mix_weight_up.weight", a.streams_width, a.hc_lowrank)
    if injects:
        yield from _plain(f"{name}.block_inject_weight.weight", a.hc_count, a.streams_width)


def _linear_attention(a: Architecture, name: str) -> Found:
    yield from _mxfp8(f"{name}.in_proj_qkv", a.convolution_width, a.hidden_size)
    yield from _mxfp8(f"{name}.in_proj_z", a.linear_value_width, a.hidden_size)
    yield from _mxfp8(f"{name}.in_proj_b", a.linear_num_value_heads, a.hidden_size)
    yield from _mxfp8(f"{name}.in_proj_a", a.linear_num_value_heads, a.hidden_size)
    yield from _mxfp8(f"{name}.out_proj", a.hidden_size, a.linear_value_width)
    yield from _plain(f"{name}.conv1d.weight", a.convolution_width, 1, a.linear_conv_kernel_dim)
    yield from _plain(f"{name}.norm.weight", a.linear_value_head_dim, dtypes=_EITHER)
    yield from _plain(f"{name}.A_log", a.linear_num_value_heads, dtypes=_EITHER)
    yield from _plain(f"{name}.dt_bias", a.linear_num_value_heads, dtypes=_EITHER)


def _sparse_attention(a: Architecture, name: str, *, quantized: bool) -> Found:
    queries, keys = a.num_attention_heads * a.head_dim, a.num_key_value_heads * a.head_dim
    index = (a.indexer_n_heads + a.indexer_kv_heads) * a.indexer_head_dim
    projections = (
        (f"{name}.q_proj", 2 * queries, a.hidden_size),
        (f"{name}.k_proj", keys, a.hidden_size),
        (f"{name}.v_proj", keys, a.hidden_size),
        (f"{name}.o_proj", a.hidden_size, queries),
        (f"{name}.indexer.index_qk_proj", index, a.hidden_size),
    )
    for projection, out, width in projections:
        yield from _mxfp8(projection, out, width) if quantized else _plain(f"{projection}.weight", out, width)
    for norm, size in (("q_norm", a.head_dim), ("k_norm", a.head_dim)):
        yield from _plain(f"{name}.{norm}.weight", size)
    for norm in ("q_layernorm", "k_layernorm"):
        yield from _plain(f"{name}.indexer.{norm}.weight", a.indexer_head_dim)


def _experts(a: Architecture, name: str, *, target: bool) -> Found:
    """Router, shared expert and routed experts of one layer."""
    hidden, inner, shared = a.hidden_size, a.moe_intermediate_size, a.shared_expert_intermediate_size
    yield from _plain(f"{name}.gate.weight", a.num_experts, hidden)
    yield from _plain(f"{name}.shared_expert_gate.weight", 1, hidden)
    for part, out, width in (("gate_proj", shared, hidden), ("up_proj", shared, hidden), ("down_proj", hidden, shared)):
        path = f"{name}.shared_expert.{part}"
        yield from _mxfp8(path, out, width) if target else _plain(f"{path}.weight", out, width)
    expert = _target_expert if target else _mtp_expert
    for number in range(a.num_experts):
        for part, out, width in (
            ("gate_proj", inner, hidden),
            ("up_proj", inner, hidden),
            ("down_proj", hidden, inner),
        ):
            yield from expert(f"{name}.experts.{number}.{part}", out, width)


def _ngrams(a: Architecture, name: str) -> Found:
    tables, size = ngram_tables(a), a.ple_embed_dim // a.ngram_heads
    rows = tables.rows // a.split_ngram_parts
    yield from _plain(f"{name}.key_proj.weight", a.streams_width, a.ple_embed_dim)
    yield from _plain(f"{name}.value_proj.weight", a.hidden_size, a.ple_embed_dim)
    for norm in ("norm_key", "norm_query", "norm_conv"):
        yield from _plain(f"{name}.{norm}.weight", a.streams_width)
    yield from _plain(f"{name}.conv1d.weight", a.streams_width, 1, a.ple_conv_kernel_size)
    inner = f"{name}.ple_embedding"
    yield from _plain(f"{inner}.layer_multipliers", a.ngram_size, dtypes=_LONG)
    yield from _plain(f"{inner}.ngram_heads_vocab_sizes", a.ngram_heads, dtypes=_LONG)
    yield from _plain(f"{inner}.ngram_heads_offsets", a.ngram_heads, dtypes=_LONG)
    yield from _plain(f"{inner}.ngram_embedding.weight_scale_2", 1, dtypes=_FLOAT)
    for shard in range(a.split_ngram_parts):
        yield from _plain(f"{inner}.ngram_embedding.shard_{shard}.weight", rows, size // 2, dtypes=_BYTES)
        scales = f"{inner}.ngram_embedding.shard_{shard}.weight_scale"
        yield from _plain(scales, rows, size // nvfp4.BLOCK, dtypes=("F8_E4M3",))


def _target(a: Architecture) -> Found:
    yield from _plain("lm_head.weight", a.vocab_size, a.hidden_size)
    yield from _plain(f"{TARGET}embed_tokens.weight", a.vocab_size, a.hidden_size)
    yield from _mixer(a, f"{TARGET}hyper_connection_mixer", injects=False)
    for layer in range(a.num_hidden_layers):
        name = f"{TARGET}layers.{layer}"
        yield from _mixer(a, f"{name}.attn_hyper_connection", injects=True)
        yield from _mixer(a, f"{name}.mlp_hyper_connection", injects=True)
        if a.is_sparse(layer):
            yield from _sparse_attention(a, f"{name}.self_attn", quantized=True)
        else:
            yield from _linear_attention(a, f"{name}.linear_attn")
        if a.has_ple(layer):
            yield from _ngrams(a, f"{name}.ple")
        yield from _experts(a, f"{name}.mlp", target=True)


def _mtp(a: Architecture) -> Found:
    yield from _plain(f"{MTP}fc_embedding.weight", a.hidden_size, a.hidden_size)
    yield from _plain(f"{MTP}fc_hidden.weight", a.hidden_size, a.hidden_size)
    yield from _plain(f"{MTP}pre_fc_norm_embedding.weight", a.hidden_size)
    yield from _plain(f"{MTP}pre_fc_norm_hidden.weight", a.streams_width)
    yield from _mixer(a, f"{MTP}hyper_connection_mixer", injects=False)
    name = f"{MTP}layers.0"
    yield from _mixer(a, f"{name}.attn_hyper_connection", injects=True)
    yield from _mixer(a, f"{name}.mlp_hyper_connection", injects=True)
    yield from _sparse_attention(a, f"{name}.self_attn", quantized=False)
    yield from _experts(a, f"{name}.mlp", target=False)


def target_tensors(architecture: Architecture) -> dict[str, Spec]:
    """The target's tensors, n-gram table included."""
    return dict(_target(architecture))


def mtp_tensors(architecture: Architecture) -> dict[str, Spec]:
    """The drafter's own tensors; embedding and head are the target's."""
    return dict(_mtp(architecture))
