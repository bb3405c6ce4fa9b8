"""The target: a dense Llama-family model over paged key/value state, on the CPU.

Runs in the worker. Its state is its pages alone, so commit, snapshot and restore have nothing to do: rows that were not
accepted are overwritten before anyone reads them. Sums of linear layers are exact (int8_linear.py). With `deterministic`
attention goes row by row, and what is neither exact nor correctly rounded goes in blocks too small to be split between
threads: a row's result depends on its own prefix only.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import embedding, rms_norm, silu

from recipes.components.model import Lane, Rows
from recipes.components.paged_attention import Span, attend_lane, causal_mask, page_pool, span_of
from recipes.components.rotary import rotate, rotations
from recipes.declaration import LoadConfig
from recipes.smollm2.architecture import Architecture
from recipes.smollm2.weights import Layer, Weights

_SPLIT_ELEMENTS = 32768
"""From so many elements on torch divides an elementwise operation among threads (at::internal::GRAIN_SIZE)."""


@dataclass(frozen=True, slots=True)
class _LaneView:
    """What all layers share of one lane: its rows, where its new tokens go, and for each piece of rows what it sees."""

    start: int
    stop: int
    written: Span
    pieces: tuple[tuple[int, int, Span, Tensor | None], ...]


class Target:
    """The `Model` of this recipe. Not thread-safe: one round at a time."""

    def __init__(self, architecture: Architecture, weights: Weights, config: LoadConfig) -> None:
        self._architecture = architecture
        self._weights = weights
        self._deterministic = config.deterministic
        self._heads = architecture.heads
        self._pools = [page_pool(config.pages, self._heads) for _ in range(architecture.layers)]
        self._rotations = rotations(architecture.context_length, architecture.head_size, architecture.rope_theta)
        widest = max(architecture.intermediate_size, architecture.hidden_size, architecture.query_heads * 128)
        self._block = max(1, (_SPLIT_ELEMENTS - 1) // widest)

    @property
    def vocab_size(self) -> int:
        """Tokens of the vocabulary."""
        return self._architecture.vocab_size

    @property
    def hidden_size(self) -> int:
        """Elements of a sampling vector."""
        return self._architecture.hidden_size

    @torch.inference_mode()
    def forward(self, rows: Rows) -> Tensor:
        """Sampling vectors float32 [R, hidden_size], after the final norm; writes the rows' keys and values."""
        turns = self._rotations[rows.positions][:, None]
        views = [self._view(lane) for lane in rows.lanes]
        stream = embedding(rows.tokens, self._weights.embedding).float()
        for layer, pool in zip(self._weights.layers, self._pools, strict=True):
            mixed = layer.input(self._norm(stream, layer.attention_norm))
            stream.add_(layer.output(self._attend(mixed, turns, pool, views)))
            stream.add_(layer.down(self._gated(layer, self._norm(stream, layer.mlp_norm))))
        return self._norm(stream, self._weights.norm)

    @torch.inference_mode()
    def logits(self, vectors: Tensor) -> Tensor:
        """Raw logits float32 [n, vocab_size]."""
        return self._weights.head(vectors)

    def _view(self, lane: Lane) -> _LaneView:
        if self._deterministic:
            pieces = tuple(
                (lane.start + row, lane.start + row + 1, span_of(lane.pages, 0, lane.first + row + 1), None)
                for row in range(lane.count)
            )
        else:
            seen = span_of(lane.pages, 0, lane.first + lane.count)
            mask = causal_mask(lane.first, lane.count, self._heads.group)
            pieces = ((lane.start, lane.start + lane.count, seen, mask),)
        written = span_of(lane.pages, lane.first, lane.count)
        return _LaneView(lane.start, lane.start + lane.count, written, pieces)

    def _attend(self, mixed: Tensor, turns: Tensor, pool: Tensor, views: list[_LaneView]) -> Tensor:
        """[R, query heads * size] from `mixed` [R, (queries + keys + values) * size], which it turns in place."""
        heads = self._heads
        projected = mixed.view(len(mixed), -1, heads.size)
        turned = projected[:, : heads.queries + heads.keys]
        for block in self._blocks(len(mixed)):
            rotate(turned[block], turns[block])
        queries, state = projected[:, : heads.queries], projected[:, heads.queries :].transpose(0, 1)
        found = mixed.new_empty(len(mixed), heads.queries, heads.size)
        for view in views:
            view.written.write(pool, state[:, view.start : view.stop])
            for start, stop, seen, mask in view.pieces:
                attend_lane(queries[start:stop], seen.read(pool), heads, mask, found[start:stop])
        return found.view(len(mixed), -1)

    def _gated(self, layer: Layer, rows: Tensor) -> Tensor:
        gates = layer.gate_up(rows)
        inner = self._architecture.intermediate_size
        found = gates.new_empty(len(gates), inner)
        for block in self._blocks(len(gates)):
            torch.mul(silu(gates[block, :inner]), gates[block, inner:], out=found[block])
        return found

    def _norm(self, stream: Tensor, weight: Tensor) -> Tensor:
        shape, epsilon = (self._architecture.hidden_size,), self._architecture.norm_epsilon
        blocks = self._blocks(len(stream))
        if len(blocks) == 1:
            return rms_norm(stream, shape, weight, epsilon)
        return torch.cat([rms_norm(stream[block], shape, weight, epsilon) for block in blocks])

    def _blocks(self, rows: int) -> list[slice]:
        """All rows at once, unless deterministic."""
        step = self._block if self._deterministic else rows
        return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]

    def commit(self, lane: Lane, kept: int) -> None:
        """Nothing: pages beyond the consumed count are never read."""

    def reset(self, slot: int) -> None:
        """Nothing: a new request writes each position before it reads it."""

    def snapshot(self, slot: int, target: int) -> None:
        """Nothing: pages are shared by the scheduler."""

    def export(self, lane: Lane, kept: int, target: int) -> None:
        """Nothing: pages are shared by the scheduler."""

    def restore(self, source: int, slot: int) -> None:
        """Nothing: pages are shared by the scheduler."""
