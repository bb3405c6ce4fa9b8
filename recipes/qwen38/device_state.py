"""State of the target on a device: a row for each slot and each snapshot, pages, and what the running round left.

Runs in the worker, inside captured graphs. The last row of every pool is in no slot and no snapshot: what has to go
nowhere goes there. A forward reads the rows of its slots; rows change in `store` (commit, export), `copy` and `clear`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from recipes.components.device_model import DeviceRows
from recipes.components.gpu.attention import device_pages
from recipes.components.gpu.recurrence import VERIFIED_ROWS, DeltaShape, Records, advance, recover
from recipes.components.gpu.selection import IndexState, keep_rings
from recipes.components.indexed_attention import NOTHING, Indexer, ring_capacity
from recipes.components.paged_attention import Heads
from recipes.components.short_convolution import history_length
from recipes.qwen38.architecture import Architecture
from recipes.qwen38.state import NGRAM_DILATION
from shared.manifest import MAXIMUM_DRAFTS, PAGE_TOKENS


@dataclass(slots=True)
class DeviceCandidates:
    """The rows of the round that runs: inputs and records of its delta layers, inputs of the n-gram layer."""

    projected: Tensor | None = None
    """[layers, R, LINE] of a verified round, with the records of all layers."""
    records: Records | None = None
    tails: Tensor = field(default_factory=lambda: torch.empty(0))
    """[layers, B * (taps - 1), C]: what the convolutions' histories become after a prompt chunk, which is kept as a
    whole or not at all, with each layer's records."""
    whole: dict[int, Records] = field(default_factory=dict)
    ngrams: Tensor | None = None


class DevicePools:
    """Committed state. `rows` are slots and snapshots together; int64 tensors name rows, -1 nobody."""

    def __init__(
        self, a: Architecture, indexer: Indexer, rows: int, pages: int, device: torch.device,
        dtype: torch.dtype,
    ) -> None:  # fmt: skip
        self.shape = DeltaShape(
            a.linear_num_key_heads, a.linear_num_value_heads, a.linear_key_head_dim, a.linear_value_head_dim
        )
        self.heads = Heads(a.num_attention_heads, a.num_key_value_heads, a.head_dim)
        self._scratch = rows
        self._boundary = a.eos_token_id

        def zeros(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=device)

        delta = [layer for layer in range(a.num_hidden_layers) if not a.is_sparse(layer)]
        sparse = [layer for layer in range(a.num_hidden_layers) if a.is_sparse(layer)]
        matrix = (a.linear_num_value_heads, a.linear_key_head_dim, a.linear_value_head_dim)
        self.numbers = {layer: number for own in (delta, sparse) for number, layer in enumerate(own)}
        """Where a layer's rows are among those of all layers of its kind, which commit moves at once."""
        self.matrices = zeros(len(delta), rows + 1, *matrix, dtype=torch.float32)
        history = history_length(a.linear_conv_kernel_dim)
        self.convolutions = zeros(len(delta), rows + 1, history, a.convolution_width)
        self.ngrams = zeros(rows + 1, history_length(a.ple_conv_kernel_size, NGRAM_DILATION), a.streams_width)
        self.tokens = zeros(rows + 1, a.ngram_size - 1, 1, dtype=torch.int64).fill_(self._boundary)
        self.pages = {layer: device_pages(pages, self.heads, dtype, device) for layer in sparse}
        capacity = ring_capacity(indexer.ratio, MAXIMUM_DRAFTS)
        self.rings = zeros(len(sparse), rows + 1, capacity, indexer.size)
        self.tags = zeros(len(sparse), rows + 1, capacity, dtype=torch.int64).fill_(NOTHING)
        self.faults = zeros(rows + 1, dtype=torch.int32)
        """Of every row: bits of `Fault` that computing a slot's rows has set."""
        self.index = {
            layer: IndexState(
                ring=self.rings[number],
                tags=self.tags[number],
                groups=zeros((pages + 1) * PAGE_TOKENS // indexer.ratio, indexer.size),
                missing=self.faults,
            )
            for number, layer in enumerate(sparse)
        }

    def candidates(self, rows: DeviceRows, dtype: torch.dtype) -> DeviceCandidates:
        """Room for what a round's rows leave."""
        layers, count, s = len(self.matrices), len(rows.tokens), self.shape
        if rows.width > VERIFIED_ROWS:
            history, channels = self.convolutions.shape[2:]
            return DeviceCandidates(tails=self.convolutions.new_empty(layers, len(rows.slots) * history, channels))
        line = 2 * (s.key_heads * s.key + s.value_heads * (s.value + 1))
        states = self.matrices
        return DeviceCandidates(
            projected=self.convolutions.new_empty(layers, count, line, dtype=dtype),
            records=Records(
                keys=states.new_empty(layers, count, s.key_heads, s.key),
                values=states.new_empty(layers, count, s.value_heads, s.value),
                decays=states.new_empty(layers, count, s.value_heads),
                final=states.new_empty(0),
            ),
        )

    def store(self, rows: DeviceRows, found: DeviceCandidates, kept: Tensor, targets: Tensor) -> None:
        """Row `targets`[b] becomes the state after the first `kept`[b] rows of lane b behind its slot's row."""
        if found.projected is not None and found.records is not None:
            recover(self.matrices, found.records, rows, kept, targets, self.shape)
            advance(self.convolutions, found.projected, rows, kept, targets)
        for layer, records in found.whole.items():
            number = self.numbers[layer]
            recover(self.matrices[number], records, rows, kept, targets, self.shape)
        if found.whole:
            own = replace(rows, width=self.convolutions.shape[2])
            advance(self.convolutions, found.tails, own, torch.where(kept > 0, own.width, 0), targets)
        if found.ngrams is not None:
            advance(self.ngrams, found.ngrams, rows, kept, targets)
        advance(self.tokens, rows.tokens[:, None], rows, kept, targets)
        keep_rings(self.rings, self.tags, rows, kept, targets)

    def copy(self, source: Tensor, target: Tensor) -> None:
        """Row `target` int64 [1] becomes row `source`; nothing if either is -1."""
        both = (source >= 0) & (target >= 0)
        origin = torch.where(both, source, self._scratch)
        goal = torch.where(both, target, self._scratch)
        for pool in self._all():
            pool.index_copy_(0, goal, pool.index_select(0, origin))

    def clear(self, row: Tensor) -> None:
        """Row `row` int64 [1] becomes the state of an empty text; -1: of nobody."""
        goal = torch.where(row >= 0, row, self._scratch)
        for pool in self._all():
            pool.index_fill_(0, goal, 0)
        self.tokens.index_fill_(0, goal, self._boundary)
        self.faults.index_fill_(0, goal, 0)
        self.tags.index_fill_(1, goal, NOTHING)

    def _all(self) -> list[Tensor]:
        """Views whose first dimension is rows."""
        layered = (self.matrices, self.convolutions, self.rings, self.tags)
        return [*(pool.transpose(0, 1) for pool in layered), self.ngrams, self.tokens]
