"""State of the target on a device: a row for each slot and each snapshot, pages, and what the running round left.

Runs in the worker, inside captured graphs. The last row of every pool is in no slot and no snapshot: what has to go
nowhere goes there. A forward reads the rows of its slots; rows change in `store` (commit, export), `copy` and `clear`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from recipes.components.device_model import DeviceRows
from recipes.components.gpu.attention import device_pages
from recipes.components.gpu.recurrence import DeltaShape, Records, advance, recover
from recipes.components.gpu.selection import IndexState, keep_ring
from recipes.components.indexed_attention import NOTHING, Indexer, ring_capacity
from recipes.components.paged_attention import Heads
from recipes.components.short_convolution import history_length
from recipes.qwen38.architecture import Architecture
from recipes.qwen38.state import NGRAM_DILATION
from shared.manifest import MAXIMUM_DRAFTS, PAGE_TOKENS


@dataclass(slots=True)
class DeviceCandidates:
    """The rows of the round that runs: inputs and records of each delta layer, inputs of the n-gram layer."""

    inputs: dict[int, Tensor] = field(default_factory=dict)
    records: dict[int, Records] = field(default_factory=dict)
    ngrams: Tensor | None = None


class DevicePools:
    """Committed state. `rows` are slots and snapshots together; int64 tensors name rows, -1 nobody."""

    def __init__(
        self, a: Architecture, indexer: Indexer, rows: int, pages: int, lanes: int, device: torch.device,
        dtype: torch.dtype,
    ) -> None:  # fmt: skip
        self.shape = DeltaShape(
            a.linear_num_key_heads, a.linear_num_value_heads, a.linear_key_head_dim, a.linear_value_head_dim
        )
        self.heads = Heads(a.num_attention_heads, a.num_key_value_heads, a.head_dim)
        self._scratch = rows
        self._boundary = a.eos_token_id

        def zeros(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
            return torch.zeros(rows + 1, *shape, dtype=dtype, device=device)

        delta = [layer for layer in range(a.num_hidden_layers) if not a.is_sparse(layer)]
        sparse = [layer for layer in range(a.num_hidden_layers) if a.is_sparse(layer)]
        matrix = (a.linear_num_value_heads, a.linear_key_head_dim, a.linear_value_head_dim)
        self.matrices = {layer: zeros(*matrix, dtype=torch.float32) for layer in delta}
        history = history_length(a.linear_conv_kernel_dim)
        self.convolutions = {layer: zeros(history, a.convolution_width) for layer in delta}
        self.ngrams = zeros(history_length(a.ple_conv_kernel_size, NGRAM_DILATION), a.streams_width)
        self.tokens = zeros(a.ngram_size - 1, 1, dtype=torch.int64).fill_(self._boundary)
        self.pages = {layer: device_pages(pages, self.heads, dtype, device) for layer in sparse}
        capacity = ring_capacity(indexer.ratio, MAXIMUM_DRAFTS)
        self.index = {
            layer: IndexState(
                ring=zeros(capacity, indexer.size),
                tags=zeros(capacity, dtype=torch.int64).fill_(NOTHING),
                groups=torch.zeros(
                    (pages + 1) * PAGE_TOKENS // indexer.ratio, indexer.size, dtype=dtype, device=device
                ),
                missing=torch.zeros(lanes, dtype=torch.int32, device=device),
            )
            for layer in sparse
        }

    def store(self, rows: DeviceRows, found: DeviceCandidates, kept: Tensor, targets: Tensor) -> None:
        """Row `targets`[b] becomes the state after the first `kept`[b] rows of lane b behind its slot's row."""
        for layer, records in found.records.items():
            recover(self.matrices[layer], records, rows, kept, targets, self.shape)
            advance(self.convolutions[layer], found.inputs[layer], rows, kept, targets)
        if found.ngrams is not None:
            advance(self.ngrams, found.ngrams, rows, kept, targets)
        advance(self.tokens, rows.tokens[:, None], rows, kept, targets)
        for state in self.index.values():
            keep_ring(state, rows, kept, targets)

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
        for state in self.index.values():
            state.tags.index_fill_(0, goal, NOTHING)

    def _all(self) -> list[Tensor]:
        rings = [part for state in self.index.values() for part in (state.ring, state.tags)]
        return [*self.matrices.values(), *self.convolutions.values(), self.ngrams, self.tokens, *rings]
