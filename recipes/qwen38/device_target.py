"""The target on a card, a `DeviceModel`: gated delta nets and sparse attention over four residual streams.

Runs in the worker, inside captured graphs. The streams are float32; a sampling vector is the streams before the last
mixer. Experts compute with unrounded activations (W4A16). Lanes of up to eight rows leave records to choose from;
longer ones are prompt chunks and kept as a whole. Reference: target.py.
"""

from __future__ import annotations

import torch
from torch import Tensor

from recipes.components.device_model import DeviceRows
from recipes.components.gpu.experts import mixture, route
from recipes.components.gpu.ngrams import gather_rows, ngram_ids
from recipes.components.gpu.recurrence import DeltaGates, convolve, delta, finish
from recipes.components.gpu.rows import Placed, gate_rows, open_rows
from recipes.components.gpu.selection import attend_chosen, compress, half_turns, select, store_state, turn_heads
from recipes.components.gpu.streams import feed, mix
from recipes.components.hyperconnection import centred_rms_norm
from recipes.qwen38.architecture import Architecture
from recipes.qwen38.blocks import AttentionBlock, DeltaBlock, NgramBlock, indexer_of
from recipes.qwen38.device_state import DeviceCandidates, DevicePools
from recipes.qwen38.device_weights import DeviceExperts, DeviceWeights
from recipes.qwen38.embedding_table import row_size
from recipes.qwen38.state import NGRAM_DILATION

_TINY = 1e-6


class DeviceTarget:
    """The `DeviceModel` of this recipe. Not thread-safe: one forward at a time, on one stream."""

    def __init__(
        self, architecture: Architecture, weights: DeviceWeights, slots: int, snapshots: int, pages: int,
        positions: int, lanes: int, most_rows: int,
    ) -> None:  # fmt: skip
        """`pages` that tables may name, `positions` of the longest request; `lanes` and `most_rows` of one forward."""
        self._a = architecture
        self._weights = weights
        self._slots = slots
        self._indexer = indexer_of(architecture)
        table = weights.embedding
        self._dtype = table.dtype
        self.pools = DevicePools(
            architecture, self._indexer, slots + snapshots, pages, lanes, table.device, table.dtype
        )
        self._turns = half_turns(self._indexer, positions).to(table.device)
        self._arrived = torch.zeros(most_rows * self.pools.heads.keys, dtype=torch.int32, device=table.device)
        self._candidates = DeviceCandidates()

    @property
    def vocab_size(self) -> int:
        """Tokens of the vocabulary, padding included."""
        return self._a.vocab_size

    @property
    def hidden_size(self) -> int:
        """Elements of a sampling vector: all streams."""
        return self._a.streams_width

    @torch.inference_mode()
    def forward(self, rows: DeviceRows) -> Tensor:
        """Streams before the last mixer, float32 [B * W, S * H]; nothing of it is committed."""
        self._candidates = DeviceCandidates()
        opened, placed = open_rows(rows, self._weights.embedding)
        streams = opened.repeat(1, self._a.hc_count)
        for index, layer in enumerate(self._weights.layers):
            if layer.ngrams is not None:
                streams += self._ngrams(layer.ngrams, streams, rows)
            mixed, normed = mix(layer.attention_mixer, streams, self._dtype)
            if isinstance(layer.attention, DeltaBlock):
                output = self._delta(index, layer.attention, mixed, rows)
            else:
                output = self._attention(index, layer.attention, mixed, rows, placed)
            feed(layer.attention_mixer, streams, normed, output)
            mixed, normed = mix(layer.experts_mixer, streams, self._dtype)
            feed(layer.experts_mixer, streams, normed, _experts(layer.experts, mixed))
        return streams

    @torch.inference_mode()
    def logits(self, vectors: Tensor) -> Tensor:
        """Raw logits float32 [n, vocab_size]."""
        mixed, _ = mix(self._weights.mixer, vectors, self._dtype)
        if not mixed.is_cuda:
            return mixed.float() @ self._weights.head.float().T
        return torch.mm(mixed, self._weights.head.T, out_dtype=torch.float32)

    def _ngrams(self, block: NgramBlock, streams: Tensor, rows: DeviceRows) -> Tensor:
        """What the n-gram layer adds to the streams [R, S * H]."""
        a, w = self._a, self._weights
        ids = ngram_ids(self.pools.tokens.flatten(1), w.hash, rows)
        embedded = gather_rows(w.table, w.table_scale, ids, row_size(a), self._dtype)
        keys = self._normed((embedded @ block.key.T).float(), block.key_norm)
        scores = (keys * self._normed(streams, block.query_norm)).sum(-1) * a.hidden_size**-0.5
        gates = torch.sigmoid(scores.sign() * scores.abs().clamp(min=_TINY).sqrt())
        values = gates[..., None] * (embedded @ block.value.T).float()[:, None]
        inputs = self._normed(values.flatten(1), block.convolution_norm).flatten(1).to(self._dtype)
        self._candidates.ngrams = inputs
        return values.flatten(1) + convolve(self.pools.ngrams, inputs, block.convolution, rows, NGRAM_DILATION).float()

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        """[R, S, H] of `x` [R, S * H], each stream normed."""
        shape = (self._a.hc_count, self._a.hidden_size)
        return centred_rms_norm(x.view(-1, *shape), weight.view(shape), self._a.rms_norm_eps)

    def _delta(self, index: int, block: DeltaBlock, x: Tensor, rows: DeviceRows) -> Tensor:
        inputs = x @ block.qkv.T
        mixed = convolve(self.pools.convolutions[index], inputs, block.convolution, rows)
        outputs, records = delta(
            self.pools.matrices[index], mixed, x @ block.decay.T, x @ block.beta.T,
            DeltaGates(block.decay_log, block.decay_bias), rows, self.pools.shape,
        )  # fmt: skip
        self._candidates.inputs[index], self._candidates.records[index] = inputs, records
        return finish(outputs, x @ block.gate.T, block.norm, self._a.rms_norm_eps) @ block.output.T

    def _attention(self, index: int, block: AttentionBlock, x: Tensor, rows: DeviceRows, placed: Placed) -> Tensor:
        heads, indexer, turns = self.pools.heads, self._indexer, self._turns
        projected, indexed = x @ block.query.T, x @ block.index.T
        queries = turn_heads(
            projected, block.query_norm, turns, placed, indexer, heads.queries, heads.size, 2 * heads.size
        )
        pages, state = self.pools.pages[index], self.pools.index[index]
        store_state(x @ block.key.T, x @ block.value.T, block.key_norm, turns, placed, indexer, heads, pages)
        index_queries = turn_heads(
            indexed, block.index_query_norm, turns, placed, indexer, indexer.heads, indexer.size, indexer.size
        )
        raw = indexed[:, indexer.heads * indexer.size :].contiguous()
        compress(raw, block.index_key_norm, turns, state, rows, indexer)
        chosen = select(index_queries, state, placed, indexer)
        return attend_chosen(queries, projected, pages, placed, chosen, indexer, heads, self._arrived) @ block.output.T

    @torch.inference_mode()
    def commit(self, rows: DeviceRows, kept: Tensor) -> None:
        """Each slot's state becomes that after its lane's first `kept` rows."""
        self.pools.store(rows, self._candidates, kept, rows.slots)

    @torch.inference_mode()
    def export(self, rows: DeviceRows, kept: Tensor, target: Tensor) -> None:
        """Stores the state after the first `kept` rows in snapshot rows `target`, before commit."""
        self.pools.store(rows, self._candidates, kept, self._snapshot(target))

    @torch.inference_mode()
    def reset(self, slot: Tensor) -> None:
        """Empties the slot."""
        self.pools.clear(slot)

    @torch.inference_mode()
    def snapshot(self, slot: Tensor, target: Tensor) -> None:
        """Copies the slot's committed state into snapshot row `target`."""
        self.pools.copy(slot, self._snapshot(target))

    @torch.inference_mode()
    def restore(self, source: Tensor, slot: Tensor) -> None:
        """Copies snapshot row `source` into the slot."""
        self.pools.copy(self._snapshot(source), slot)

    def _snapshot(self, row: Tensor) -> Tensor:
        return torch.where(row >= 0, row + self._slots, -1)


def _experts(experts: DeviceExperts, x: Tensor) -> Tensor:
    """The experts' output [R, H] for block input `x` [R, H]."""
    weights, chosen = route(x.float() @ experts.router.T, experts.routed.top)
    shared = gate_rows(x @ experts.shared_gate_up.T) @ experts.shared_down.T
    return mixture(x, experts.routed, weights, chosen, shared, (x @ experts.shared_gate.T).flatten())
