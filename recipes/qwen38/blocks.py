"""Blocks of the model over its weights: gated delta net, sparse attention, n-gram layer. Arithmetic only, no state.

Runs in the worker on the CPU, float32 (design/models.md, section 1.3). Which history belongs to which request, and
which candidate stands, is `state.py`'s business.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

from recipes.components.experts import Mixture
from recipes.components.gated_delta import DeltaRows
from recipes.components.hyperconnection import Mixer, centred_rms_norm
from recipes.components.indexed_attention import Indexer, rotate_half
from recipes.qwen38.architecture import Architecture

_TINY = 1e-6


@dataclass(frozen=True, slots=True)
class DeltaBlock:
    """A gated delta net. Matrices are [out, in]; `convolution` [channels, kernel], oldest input first."""

    qkv: Tensor
    gate: Tensor
    beta: Tensor
    decay: Tensor
    output: Tensor
    convolution: Tensor
    norm: Tensor
    decay_log: Tensor
    decay_bias: Tensor

    def rows(self, a: Architecture, x: Tensor, mixed: Tensor) -> DeltaRows:
        """The recurrence's inputs of block input `x` [R, H] and the convolved, activated `mixed` [R, channels]."""
        query, key, value = torch.tensor_split(mixed, (a.linear_key_width, 2 * a.linear_key_width), dim=-1)
        share = a.linear_num_value_heads // a.linear_num_key_heads
        heads = (a.linear_num_key_heads, a.linear_key_head_dim)
        query = _unit(torch.unflatten(query, -1, heads)) * a.linear_key_head_dim**-0.5
        key = _unit(torch.unflatten(key, -1, heads))
        decay = torch.exp(-self.decay_log.exp() * softplus(x @ self.decay.t() + self.decay_bias))
        return DeltaRows(
            query.repeat_interleave(share, dim=1),
            key.repeat_interleave(share, dim=1),
            torch.unflatten(value, -1, (a.linear_num_value_heads, a.linear_value_head_dim)),
            decay,
            torch.sigmoid(x @ self.beta.t()),
        )

    def finish(self, x: Tensor, outputs: Tensor, epsilon: float) -> Tensor:
        """The block's output [R, H] from the recurrence's [R, HV, V]."""
        normed = outputs * torch.rsqrt(outputs.square().mean(-1, keepdim=True) + epsilon) * self.norm
        return (normed.flatten(-2) * torch.sigmoid(x @ self.gate.t())) @ self.output.t()


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + _TINY)


@dataclass(frozen=True, slots=True)
class AttentionRows:
    """What attention needs of R rows: `queries` [R, heads, D] with their `gates`, keys and values, index parts."""

    queries: Tensor
    gates: Tensor
    keys: Tensor
    values: Tensor
    index_queries: Tensor
    raw_keys: Tensor

    def of(self, part: slice) -> AttentionRows:
        """One lane's rows."""
        return AttentionRows(*(getattr(self, field.name)[part] for field in fields(self)))


@dataclass(frozen=True, slots=True)
class AttentionBlock:
    """Sparse attention with its indexer."""

    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor
    query_norm: Tensor
    key_norm: Tensor
    index: Tensor
    index_query_norm: Tensor
    index_key_norm: Tensor

    def rows(self, a: Architecture, indexer: Indexer, x: Tensor, positions: Tensor) -> AttentionRows:
        """Projected, normalised and rotated rows of block input `x` [R, H]."""
        queries, gates = torch.unflatten((x @ self.query.t()), -1, (a.num_attention_heads, 2 * a.head_dim)).chunk(
            2, dim=-1
        )
        keys = torch.unflatten((x @ self.key.t()), -1, (a.num_key_value_heads, a.head_dim))
        theta, rotary = a.rope_parameters.rope_theta, a.rotary_size
        index_queries, raw_keys = torch.tensor_split(
            x @ self.index.t(), (a.indexer_n_heads * a.indexer_head_dim,), dim=-1
        )
        return AttentionRows(
            rotate_half(centred_rms_norm(queries, self.query_norm, a.rms_norm_eps), positions, rotary, theta),
            gates.flatten(-2),
            rotate_half(centred_rms_norm(keys, self.key_norm, a.rms_norm_eps), positions, rotary, theta),
            torch.unflatten((x @ self.value.t()), -1, (a.num_key_value_heads, a.head_dim)),
            indexer.queries(index_queries, self.index_query_norm, positions),
            raw_keys,
        )

    def finish(self, gates: Tensor, attended: Tensor) -> Tensor:
        """The block's output [R, H] from attention's [R, heads * D] and the rows' `gates`."""
        return (attended * torch.sigmoid(gates)) @ self.output.t()


@dataclass(frozen=True, slots=True)
class NgramBlock:
    """The layer that adds n-gram embeddings to the streams. Norm weights are [S * H]."""

    key: Tensor
    value: Tensor
    key_norm: Tensor
    query_norm: Tensor
    convolution_norm: Tensor
    convolution: Tensor

    def gated(self, a: Architecture, state: Tensor, embedded: Tensor) -> tuple[Tensor, Tensor]:
        """The gated values [R, S * H], and the same normalised, which the convolution takes."""
        shape = (a.hc_count, a.hidden_size)
        keys = self._normed(a, embedded @ self.key.t(), self.key_norm)
        queries = self._normed(a, state, self.query_norm)
        scores = torch.unflatten((keys * queries), -1, shape).sum(-1) * a.hidden_size**-0.5
        gates = torch.sigmoid(scores.sign() * scores.abs().clamp(min=_TINY).sqrt())
        values = (gates.unsqueeze(-1) * (embedded @ self.value.t()).unsqueeze(-2)).flatten(-2)
        return values, self._normed(a, values, self.convolution_norm)

    def _normed(self, a: Architecture, x: Tensor, weight: Tensor) -> Tensor:
        shape = (a.hc_count, a.hidden_size)
        return centred_rms_norm(torch.unflatten(x, -1, shape), weight.view(shape), a.rms_norm_eps).flatten(-2)


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer: n-gram block (or None), mixer of the attention, attention, mixer of the experts, experts."""

    ngrams: NgramBlock | None
    attention_mixer: Mixer
    attention: DeltaBlock | AttentionBlock
    experts_mixer: Mixer
    experts: Mixture


def fed(mixer: Mixer, experts: Mixture, streams: Tensor) -> Tensor:
    """The streams [R, S * H] after a layer's experts."""
    mixed, normed = mixer.mix(streams)
    return mixer.combine(streams, normed, experts(mixed))


def indexer_of(a: Architecture) -> Indexer:
    """The selector's constants."""
    return Indexer(
        heads=a.indexer_n_heads,
        size=a.indexer_head_dim,
        ratio=a.indexer_compress_ratio,
        budget=a.indexer_budget // a.indexer_compress_ratio,
        rotary=a.rotary_size,
        theta=a.rope_parameters.rope_theta,
        epsilon=a.rms_norm_eps,
    )


def activated(convolved: Tensor) -> Tensor:
    """The convolution's activation in both places where it stands."""
    return silu(convolved)
