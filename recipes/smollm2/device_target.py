"""The target on a card: a dense Llama-family model over paged key/value state, a `DeviceModel`.

Runs in the worker, inside captured graphs. Few rows take five kernels a layer, each bound by the bytes of its weights;
many rows leave their linear layers to cuBLAS. The stream is float32. State is the pages alone, so commit, snapshot
and restore have nothing to do: rows that were not accepted are overwritten before anyone reads them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from recipes.components.device_model import DeviceRows
from recipes.components.gpu.attention import arrivals, attend_rows, device_pages, one_shape
from recipes.components.gpu.linear import ONE_SHAPE, Tiles, Weight, add_linear, gate_up, linear, project_heads
from recipes.components.gpu.rows import Placed, gate_rows, norm_rows, open_rows, turn_and_store
from recipes.components.rotary import rotations
from recipes.smollm2.architecture import Architecture
from recipes.smollm2.device_weights import DeviceLayer, DeviceWeights

FEW_ROWS = 32
"""Up to here a layer's weights are read by our own kernels (docs/log.md)."""


class DeviceTarget:
    """The `DeviceModel` of this recipe. Not thread-safe: one forward at a time, on one stream."""

    def __init__(
        self,
        architecture: Architecture,
        weights: DeviceWeights,
        pages: int,
        lanes: int,
        most_rows: int,
        invariant: bool = False,
    ) -> None:
        """`pages` that tables may name; at most `lanes` lanes and `most_rows` rows in one forward.

        `invariant`: every row takes kernels of one shape, so that its bits do not depend on the rows beside it.
        """
        self._architecture = architecture
        self._weights = weights
        self._heads = architecture.heads
        table = weights.embedding
        self._dtype = table.dtype
        self._pages = [device_pages(pages, self._heads, self._dtype, table.device) for _ in weights.layers]
        turns = rotations(architecture.context_length, architecture.head_size, architecture.rope_theta)
        self._turns = torch.view_as_real(turns).reshape(len(turns), -1).contiguous().to(table.device)
        self._invariant, self._tiles = invariant, ONE_SHAPE if invariant else Tiles()
        self._arrived = arrivals(lanes, most_rows, self._heads, table.device)

    @property
    def vocab_size(self) -> int:
        """Tokens of the vocabulary."""
        return self._architecture.vocab_size

    @property
    def hidden_size(self) -> int:
        """Elements of a sampling vector."""
        return self._architecture.hidden_size

    @torch.inference_mode()
    def forward(self, rows: DeviceRows) -> Tensor:
        """Sampling vectors float32 [B * W, hidden_size], after the final norm; writes valid rows' keys and values."""
        stream, placed = open_rows(rows, self._weights.embedding)
        if len(rows.tokens) > FEW_ROWS and not self._invariant:
            return self._forward_many(stream, placed)
        epsilon, tiles = self._architecture.norm_epsilon, self._tiles
        for layer, pages in zip(self._weights.layers, self._pages, strict=True):
            queries = project_heads(
                stream, layer.attention_norm, epsilon, layer.input, self._turns, placed, self._heads, pages,
                tiles.heads,
            )  # fmt: skip
            split = one_shape(placed) if self._invariant else None
            found = attend_rows(queries, pages, placed, self._heads, self._arrived, split)
            add_linear(found, layer.output, stream, tiles.add)
            inner = gate_up(stream, layer.mlp_norm, epsilon, layer.gate_up, self._dtype, tiles.gate_up)
            add_linear(inner, layer.down, stream, tiles.add)
        return norm_rows(stream, self._weights.norm, epsilon)

    def _forward_many(self, stream: Tensor, placed: Placed) -> Tensor:
        change, scale = None, None
        for layer, pages in zip(self._weights.layers, self._pages, strict=True):
            normed = self._normed(stream, layer.attention_norm, change, scale)
            change, scale = self._block(stream, normed, layer, pages, placed)
        return norm_rows(stream, self._weights.norm, self._architecture.norm_epsilon, change, scale)

    def _block(
        self, stream: Tensor, normed: Tensor, layer: DeviceLayer, pages: Tensor, placed: Placed
    ) -> tuple[Tensor, Tensor | None]:
        """What the block's second half adds to the stream, unscaled, and its scale; the first half is added already."""
        projected = _dense(normed, layer.input)
        queries = turn_and_store(projected, self._turns, placed, self._heads, pages, layer.input.scale)
        found = attend_rows(queries, pages, placed, self._heads, self._arrived)
        normed = self._normed(stream, layer.mlp_norm, _dense(found, layer.output), layer.output.scale)
        inner = gate_rows(_dense(normed, layer.gate_up), layer.gate_up.scale)
        return _dense(inner, layer.down), layer.down.scale

    def _normed(self, stream: Tensor, gain: Tensor, change: Tensor | None, scale: Tensor | None) -> Tensor:
        return norm_rows(stream, gain, self._architecture.norm_epsilon, change, scale, self._dtype)

    @torch.inference_mode()
    def logits(self, vectors: Tensor) -> Tensor:
        """Raw logits float32 [n, vocab_size] of sampling vectors [n, hidden_size]."""
        head = self._weights.head
        if len(vectors) <= FEW_ROWS or self._invariant or not vectors.is_cuda:
            return linear(vectors, head, self._dtype, self._tiles.head)
        rows = vectors.to(self._dtype)
        found = torch.mm(rows, head.values.to(self._dtype).T, out_dtype=torch.float32)
        return found if head.scale is None else found.mul_(head.scale)

    def commit(self, rows: DeviceRows, kept: Tensor) -> None:
        """Nothing: pages beyond the consumed count are never read."""

    def export(self, rows: DeviceRows, kept: Tensor, target: Tensor) -> None:
        """Nothing: pages are shared by the scheduler."""

    def reset(self, slot: Tensor) -> None:
        """Nothing: a new request writes each position before it reads it."""

    def snapshot(self, slot: Tensor, target: Tensor) -> None:
        """Nothing: pages are shared by the scheduler."""

    def restore(self, source: Tensor, slot: Tensor) -> None:
        """Nothing: pages are shared by the scheduler."""


def _dense(rows: Tensor, weight: Weight) -> Tensor:
    """[R, N] in the rows' type, unscaled. int8 values are exact in bfloat16; the consumer multiplies by the scale."""
    return rows @ weight.values.to(rows.dtype).T
