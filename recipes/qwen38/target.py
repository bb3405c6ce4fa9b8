"""The target: 36 gated delta nets and 12 sparse-attention layers over four residual streams, on the CPU.

Runs in the worker, float32. A sampling vector is the streams before the last mixer, [S * H]: the drafter absorbs
exactly those, and `logits` mixes them. Lanes of up to eight rows leave records to choose from; longer ones are prompt
chunks. With `deterministic` every row is computed alone and the recurrence goes row by row in chunks too: a row's
result depends on its own prefix only (docs/adr/0008).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from recipes.components.gated_delta import Corrections, delta_chunks, delta_rows
from recipes.components.gdn_recovery import recover
from recipes.components.hyperconnection import Mixer
from recipes.components.model import Lane, Rows
from recipes.components.ngram_hash import NgramHash
from recipes.components.row_by_row import Rowwise
from recipes.components.short_convolution import convolve
from recipes.declaration import LoadConfig
from recipes.qwen38.architecture import Architecture
from recipes.qwen38.blocks import AttentionBlock, DeltaBlock, Layer, NgramBlock, activated, fed, indexer_of
from recipes.qwen38.cache import AttentionCache
from recipes.qwen38.embedding_table import AskedNgrams, NgramTable
from recipes.qwen38.state import NGRAM_DILATION, Candidate, DeltaCandidate, RecurrentRows
from shared.errors import ContractBreach
from shared.manifest import MAXIMUM_DRAFTS

VERIFIED_ROWS = MAXIMUM_DRAFTS + 1
"""A lane of at most so many rows may be kept in part."""


@dataclass(frozen=True, slots=True)
class TargetWeights:
    """The target's weights; `table` holds the n-gram embeddings."""

    embedding: Tensor
    layers: tuple[Layer, ...]
    mixer: Mixer
    head: Tensor
    hash: NgramHash
    table: NgramTable


class Target:
    """The `Model` of this recipe. Not thread-safe: one round at a time."""

    def __init__(self, architecture: Architecture, weights: TargetWeights, config: LoadConfig) -> None:
        self._a = architecture
        self._weights = weights
        self._indexer = indexer_of(architecture)
        self._rowwise = Rowwise(config.deterministic)
        self._slots = config.slots
        rows = config.slots + config.snapshots
        self.state = RecurrentRows(architecture, rows)
        self.caches = {
            layer: AttentionCache(architecture, self._indexer, config.pages, rows, self._rowwise)
            for layer in range(architecture.num_hidden_layers)
            if architecture.is_sparse(layer)
        }
        self._candidates: dict[int, Candidate] = {}

    @property
    def vocab_size(self) -> int:
        """Tokens of the vocabulary, padding included."""
        return self._a.vocab_size

    @property
    def hidden_size(self) -> int:
        """Elements of a sampling vector: all streams."""
        return self._a.streams_width

    @torch.inference_mode()
    def forward(self, rows: Rows) -> Tensor:
        """Streams before the last mixer, float32 [R, S * H]; nothing of it is committed."""
        for lane in rows.lanes:
            consumed = int(self.state.consumed[lane.slot])
            if lane.first != consumed:
                raise ContractBreach(f"slot {lane.slot} committed {consumed} tokens, its lane starts at {lane.first}")
            self._candidates[lane.slot] = Candidate(
                lane.first, rows.tokens[_part(lane)], {}, torch.empty(0, self._a.streams_width)
            )
        asked = self._ask(rows)
        streams = self._weights.embedding[rows.tokens].repeat(1, self._a.hc_count)
        for index, layer in enumerate(self._weights.layers):
            if layer.ngrams is not None:
                streams = streams + self._ngrams(layer.ngrams, streams, rows, asked)
            mixed, normed = self._rowwise(layer.attention_mixer.mix, streams)
            if isinstance(layer.attention, DeltaBlock):
                output = self._delta(index, layer.attention, mixed, rows)
            else:
                output = self._attention(index, layer.attention, mixed, rows)
            streams = self._rowwise(layer.attention_mixer.combine, streams, normed, output)
            streams = self._rowwise(partial(fed, layer.experts_mixer, layer.experts), streams)
        return streams

    @torch.inference_mode()
    def logits(self, vectors: Tensor) -> Tensor:
        """Raw logits float32 [n, vocab_size]."""
        return self._rowwise(lambda rows: self._weights.mixer.mix(rows)[0] @ self._weights.head.t(), vectors)

    def _ask(self, rows: Rows) -> AskedNgrams:
        """Asks for the n-gram rows of all tokens, drafted ones too, before the layers that do not need them."""
        ids = [self._weights.hash.ids(self.state.tokens[lane.slot], rows.tokens[_part(lane)]) for lane in rows.lanes]
        return self._weights.table.ask(torch.cat(ids))

    def _ngrams(self, block: NgramBlock, streams: Tensor, rows: Rows, asked: AskedNgrams) -> Tensor:
        embedded = asked.rows().flatten(-2)
        values, inputs = self._rowwise(partial(block.gated, self._a), streams, embedded)
        convolved = []
        for lane in rows.lanes:
            own = inputs[_part(lane)]
            history = self.state.ngram_history[lane.slot]
            convolved.append(convolve(history, own, block.convolution, NGRAM_DILATION))
            candidate = self._candidates[lane.slot]
            self._candidates[lane.slot] = Candidate(candidate.first, candidate.tokens, candidate.deltas, own)
        return values + self._rowwise(activated, torch.cat(convolved))

    def _delta(self, index: int, block: DeltaBlock, x: Tensor, rows: Rows) -> Tensor:
        inputs = self._rowwise(lambda rows: rows @ block.qkv.t(), x)
        outputs = []
        for lane in rows.lanes:
            part = _part(lane)
            history = self.state.convolutions[index][lane.slot]
            mixed = self._rowwise(activated, convolve(history, inputs[part], block.convolution))
            delta = self._rowwise(partial(block.rows, self._a), x[part], mixed)
            matrix = self.state.matrices[index][lane.slot]
            outcome: Corrections | Tensor
            if lane.count <= VERIFIED_ROWS:
                found, outcome = delta_rows(matrix, delta)
            elif self._rowwise.deterministic:
                found, records = delta_rows(matrix, delta)
                outcome = recover(matrix, records, lane.count)
            else:
                found, outcome = delta_chunks(matrix, delta)
            self._candidates[lane.slot].deltas[index] = DeltaCandidate(inputs[part], outcome)
            outputs.append(found)
        return self._rowwise(partial(block.finish, epsilon=self._a.rms_norm_eps), x, torch.cat(outputs))

    def _attention(self, index: int, block: AttentionBlock, x: Tensor, rows: Rows) -> Tensor:
        projected = self._rowwise(partial(block.rows, self._a, self._indexer), x, rows.positions)
        attended = [self.caches[index].attend(block, projected.of(_part(lane)), lane)[0] for lane in rows.lanes]
        return self._rowwise(block.finish, projected.gates, torch.cat(attended))

    def commit(self, lane: Lane, kept: int) -> None:
        """The slot's state becomes that after its first `kept` rows."""
        self.state.store(lane.slot, lane.slot, self._candidates.pop(lane.slot), kept)
        for cache in self.caches.values():
            cache.rings.keep(lane.slot, lane.first + kept)

    def reset(self, slot: int) -> None:
        """Empties the slot."""
        self.state.clear(slot)
        for cache in self.caches.values():
            cache.rings.clear(slot)
        self._candidates.pop(slot, None)

    def adopt(self, slot: int, consumed: int) -> None:
        """Refuses: a prefix goes on from a snapshot row."""
        raise ContractBreach(f"slot {slot}: pages alone do not continue a prefix of {consumed} tokens")

    def snapshot(self, slot: int, target: int) -> None:
        """Copies the committed state into snapshot row `target`."""
        self._copy(slot, self._slots + target)

    def export(self, lane: Lane, kept: int, target: int) -> None:
        """Stores the state after the lane's first `kept` rows in snapshot row `target`, before commit."""
        row = self._slots + target
        self.state.store(row, lane.slot, self._candidates[lane.slot], kept)
        for cache in self.caches.values():
            cache.rings.copy(lane.slot, row, lane.first + kept)

    def restore(self, source: int, slot: int) -> None:
        """Copies snapshot row `source` into the slot."""
        self._copy(self._slots + source, slot)

    def _copy(self, source: int, row: int) -> None:
        self.state.copy(source, row)
        for cache in self.caches.values():
            cache.rings.copy(source, row, int(self.state.consumed[source]))


def _part(lane: Lane) -> slice:
    return slice(lane.start, lane.start + lane.count)
