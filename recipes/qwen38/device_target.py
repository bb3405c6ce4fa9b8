"""The target on a card, a `DeviceModel`: gated delta nets and sparse attention over four residual streams.

Runs in the worker, inside captured graphs. The streams are float32; a sampling vector is the streams before the last
mixer. Experts compute with unrounded activations (W4A16). Lanes of up to eight rows leave records to choose from;
longer ones are prompt chunks and kept as a whole. Reference: target.py.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from recipes.components.device_model import DeviceRows
from recipes.components.gpu.chunk_recurrence import convolve_chunk
from recipes.components.gpu.head_rows import SparseState
from recipes.components.gpu.matrices import inject, multiply
from recipes.components.gpu.ngrams import gate_values, gather_rows, ngram_ids
from recipes.components.gpu.recurrence import convolve, delta, finish
from recipes.components.gpu.rows import Placed, open_rows
from recipes.components.gpu.streams import Injection, mix
from recipes.components.gpu.tables import AskedLines
from recipes.components.gpu.verified_delta import DeltaState, Split, verified_delta
from recipes.qwen38.architecture import Architecture
from recipes.qwen38.blocks import indexer_of
from recipes.qwen38.device_blocks import SparseAttention, experts_of, through
from recipes.qwen38.device_state import DeviceCandidates, DevicePools
from recipes.qwen38.device_weights import DeviceDelta, DeviceLayer, DeviceNgrams, DeviceWeights
from recipes.qwen38.embedding_table import row_size
from recipes.qwen38.state import NGRAM_DILATION


class DeviceTarget:
    """The `DeviceModel` of this recipe. Not thread-safe: one forward at a time, on one stream."""

    def __init__(
        self, architecture: Architecture, weights: DeviceWeights, slots: int, snapshots: int, pages: int,
        positions: int,
    ) -> None:  # fmt: skip
        """`pages` that tables may name, `positions` of the longest request."""
        self._a = architecture
        self._weights = weights
        self._slots = slots
        indexer = indexer_of(architecture)
        table = weights.embedding
        self._dtype = table.dtype
        self.pools = DevicePools(architecture, indexer, slots + snapshots, pages, table.device, table.dtype)
        self.sparse = SparseAttention(indexer, self.pools.heads, positions, table.device)
        """What a drafter's layer of the same sizes uses too."""
        self._candidates = DeviceCandidates()

    @property
    def vocab_size(self) -> int:
        """Tokens of the vocabulary, padding included."""
        return self._a.vocab_size

    @property
    def hidden_size(self) -> int:
        """Elements of a sampling vector: all streams."""
        return self._a.streams_width

    @property
    def faults(self) -> Tensor:
        """What went wrong for each slot's rows; a drafter over the same slots shares it."""
        return self.pools.faults

    @torch.inference_mode()
    def forward(self, rows: DeviceRows) -> Tensor:
        """Streams before the last mixer, float32 [B * W, S * H]; nothing of it is committed."""
        self._candidates = self.pools.candidates(rows, self._dtype)
        streams, placed = open_rows(rows, self._weights.embedding, self._a.hc_count)
        weights = self._weights
        asked = weights.table.ask(ngram_ids(self.pools.tokens.flatten(1), weights.hash, rows), rows)
        for index, layer in enumerate(self._weights.layers):
            if layer.ngrams is not None:
                self._ngrams(layer.ngrams, streams, rows, asked)
            through(layer.attention_mixer, streams, self._dtype, partial(self._attention, index, layer, rows, placed))
            through(layer.experts_mixer, streams, self._dtype, partial(experts_of, layer.experts, placed))
        return streams

    @torch.inference_mode()
    def logits(self, vectors: Tensor) -> Tensor:
        """Raw logits float32 [n, vocab_size]."""
        mixed, _ = mix(self._weights.mixer, vectors, self._dtype)
        if not mixed.is_cuda:
            return mixed.float() @ self._weights.head.float().T
        return torch.mm(mixed, self._weights.head.T, out_dtype=torch.float32)

    def _ngrams(self, block: DeviceNgrams, streams: Tensor, rows: DeviceRows, asked: AskedLines) -> None:
        """Adds the n-gram layer to the streams [R, S * H]."""
        lines = asked.take(self.faults)
        embedded = gather_rows(lines.rows, self._weights.table_scale, lines.places, row_size(self._a), self._dtype)
        inputs = gate_values(block.norms, multiply(embedded, block.inputs), streams)
        self._candidates.ngrams = inputs
        convolve(self.pools.ngrams, inputs, block.convolution, rows, NGRAM_DILATION, into=streams)

    def _attention(
        self, index: int, layer: DeviceLayer, rows: DeviceRows, placed: Placed, x: Tensor, into: Injection
    ) -> None:
        if isinstance(layer.attention, DeviceDelta):
            self._delta(index, layer.attention, x, into, rows)
        else:
            state = SparseState(self.pools.pages[index], self.pools.index[index])
            self.sparse.attend(layer.attention, state, x, into, rows, placed)

    def _delta(self, index: int, block: DeviceDelta, x: Tensor, into: Injection, rows: DeviceRows) -> None:
        pools, found = self.pools, self._candidates
        number = pools.numbers[index]
        state = DeltaState(pools.matrices[number], pools.convolutions[number])
        if found.projected is not None and found.records is not None:
            projected = multiply(x, block.inputs, out=found.projected[number])
            gated = verified_delta(block.net, state, projected, rows, pools.shape, found.records.layer(number))
        else:
            split, net = Split.of(multiply(x, block.inputs), pools.shape), block.net
            mixed = convolve_chunk(state.history, split.inputs, net.convolution, rows, found.tails[number])
            outputs, records = delta(state.matrices, mixed, split.rates, split.strengths, net.gates, rows, pools.shape)
            found.whole[index] = records
            gated = finish(outputs, split.gates, net.norm, net.epsilon)
        inject(gated, block.output, into)

    @torch.inference_mode()
    def commit(self, rows: DeviceRows, kept: Tensor) -> None:
        """Each slot's state becomes that after its lane's first `kept` rows."""
        self.pools.store(rows, self._candidates, kept, rows.slots)

    @torch.inference_mode()
    def export(self, rows: DeviceRows, kept: Tensor, target: Tensor) -> None:
        """Stores the state after the first `kept` rows in snapshot rows `target`, before commit.

        Of a lane of more than eight rows, as of a prompt chunk, `kept` is all or none.
        """
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
