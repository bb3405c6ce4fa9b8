"""The target: a dense Llama-family model over paged key/value state, on the CPU.

Runs in the worker. Its state is its pages alone, so commit, snapshot and restore have nothing to do: rows that were not
accepted are overwritten before anyone reads them. Sums of linear layers are exact (int8_linear.py). With
`deterministic` attention goes row by row, and what is neither exact nor correctly rounded goes in blocks
too small to be split between threads: a row's result depends on its own prefix only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import embedding, silu

from recipes.components.model import Lane, Rows
from recipes.components.paged_attention import Heads, Span, attend_lane, causal_mask, page_pools, span_of
from recipes.components.rms_norm import divisor, scaled_weight
from recipes.components.rotary import rotate, rotations
from recipes.declaration import LoadConfig
from recipes.smollm2.architecture import Architecture
from recipes.smollm2.weights import Weights

_SPLIT_ELEMENTS = 32768
"""From so many elements on torch divides an elementwise operation among threads (at::internal::GRAIN_SIZE)."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """Rows start .. stop of the batch that attend together, and what they see: `views` of each layer, or `seen`."""

    start: int
    stop: int
    seen: Span
    views: list[Tensor]
    mask: Tensor | None

    def attend(self, queries: Tensor, pool: Tensor, layer: int, heads: Heads) -> Tensor:
        """[stop - start, queries * size] of this piece's rows of `queries` [R, queries, size]."""
        context = self.views[layer] if self.views else self.seen.gather(pool)
        return attend_lane(queries[self.start : self.stop], context, heads, self.mask)


@dataclass(frozen=True, slots=True)
class _LaneView:
    """What all layers share of one lane: its rows, where their state goes, and the pieces that attend together."""

    start: int
    stop: int
    written: Span
    views: list[Tensor]
    pieces: tuple[_Piece, ...]

    def write(self, pool: Tensor, layer: int, state: Tensor) -> None:
        """Writes this lane's rows of `state` [planes, R, size]."""
        own = state[:, self.start : self.stop]
        if self.views:
            self.views[layer].copy_(own)
        else:
            self.written.scatter(pool, own)


class Target:
    """The `Model` of this recipe. Not thread-safe: one round at a time."""

    def __init__(self, architecture: Architecture, weights: Weights, config: LoadConfig) -> None:
        self._architecture = architecture
        self._weights = weights
        self._deterministic = config.deterministic
        self._heads = architecture.heads
        self._pools = page_pools(architecture.layers, config.pages, self._heads)
        self._layer_pools = self._pools.unbind()
        self._norms = tuple(
            (scaled_weight(layer.attention_norm), scaled_weight(layer.mlp_norm)) for layer in weights.layers
        )
        self._final_norm = scaled_weight(weights.norm)
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
        for index, (layer, norms) in enumerate(zip(self._weights.layers, self._norms, strict=True)):
            mixed = layer.input(stream * norms[0], self._divisor(stream))
            stream.add_(layer.output(self._attend(mixed, turns, index, views)))
            gates = layer.gate_up(stream * norms[1], self._divisor(stream))
            stream.add_(layer.down(self._gated(gates)))
        return stream.mul(self._final_norm).div_(self._divisor(stream))

    @torch.inference_mode()
    def logits(self, vectors: Tensor) -> Tensor:
        """Raw logits float32 [n, vocab_size]."""
        return self._weights.head(vectors)

    def _view(self, lane: Lane) -> _LaneView:
        written = span_of(lane.pages, lane.first, lane.count)
        step = 1 if self._deterministic else lane.count
        pieces = tuple(self._piece(lane, row, step) for row in range(0, lane.count, step))
        return _LaneView(lane.start, lane.start + lane.count, written, written.views(self._pools), pieces)

    def _piece(self, lane: Lane, row: int, count: int) -> _Piece:
        seen = span_of(lane.pages, 0, lane.first + row + count)
        mask = causal_mask(lane.first + row, count, self._heads.group)
        start = lane.start + row
        return _Piece(start, start + count, seen, seen.views(self._pools), mask)

    def _attend(self, mixed: Tensor, turns: Tensor, layer: int, views: list[_LaneView]) -> Tensor:
        """[R, query heads * size] from `mixed` [R, (queries + keys + values) * size], which it turns in place."""
        heads = self._heads
        projected = mixed.view(len(mixed), -1, heads.size)
        turned = projected[:, : heads.queries + heads.keys]
        for block in self._blocks(len(mixed)):
            rotate(turned[block], turns[block])
        state = projected[:, heads.queries :].transpose(0, 1)
        queries, pool = projected[:, : heads.queries], self._layer_pools[layer]
        for view in views:
            view.write(pool, layer, state)
        found = [piece.attend(queries, pool, layer, heads) for view in views for piece in view.pieces]
        return found[0] if len(found) == 1 else torch.cat(found)

    def _gated(self, gates: Tensor) -> Tensor:
        inner = self._architecture.intermediate_size
        return self._in_blocks(silu, gates[:, :inner]).mul_(gates[:, inner:])

    def _divisor(self, stream: Tensor) -> Tensor:
        epsilon = self._architecture.norm_epsilon
        return self._in_blocks(lambda rows: divisor(rows, epsilon), stream)

    def _in_blocks(self, operation: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
        if not self._deterministic or len(rows) <= self._block:
            return operation(rows)
        return torch.cat([operation(rows[block]) for block in self._blocks(len(rows))])

    def _blocks(self, rows: int) -> list[slice]:
        """All rows at once, unless deterministic."""
        step = self._block if self._deterministic else rows
        return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]

    def commit(self, lane: Lane, kept: int) -> None:
        """Nothing: pages beyond the consumed count are never read."""

    def reset(self, slot: int) -> None:
        """Nothing: a new request writes each position before it reads it."""

    def adopt(self, slot: int, consumed: int) -> None:
        """Nothing: all state of a prefix lies in its pages."""

    def snapshot(self, slot: int, target: int) -> None:
        """Nothing: pages are shared by the scheduler."""

    def export(self, lane: Lane, kept: int, target: int) -> None:
        """Nothing: pages are shared by the scheduler."""

    def restore(self, source: int, slot: int) -> None:
        """Nothing: pages are shared by the scheduler."""
