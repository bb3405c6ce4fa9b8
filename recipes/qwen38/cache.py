"""State of one sparse-attention layer: pages of keys and values, page-resident group keys, and rings of raw keys.

Runs in the worker on the CPU. Target layers and the drafter's layer keep the same kinds. Rows beyond a request's
committed count may be stored, but nobody reads them: what a row sees follows from its position alone.

The drafter's row i needs the token after position i, so that a prefix of P tokens has P - 1 of its rows. Its rows and
groups therefore lie one place further on: then all rows of a prefix, and none that depends on what follows it, lie in
the prefix's own pages, which other requests may share.
"""

from __future__ import annotations

import torch
from torch import Tensor

from recipes.components.indexed_attention import Indexer, RawKeyRings, attend_selected, ring_capacity
from recipes.components.model import Lane
from recipes.components.paged_attention import token_rows
from recipes.components.row_by_row import Rowwise
from recipes.qwen38.architecture import Architecture
from recipes.qwen38.blocks import AttentionBlock, AttentionRows
from shared.manifest import MAXIMUM_DRAFTS, PAGE_TOKENS


class AttentionCache:
    """`rows` are slots and snapshot rows together: rings belong to them, pages to the scheduler's pool.

    Row i lies at place i + `shift` of its request's pages, group g at place g + `shift`.
    """

    def __init__(
        self, a: Architecture, indexer: Indexer, pages: int, rows: int, rowwise: Rowwise, *, shift: int = 0
    ) -> None:
        self._indexer = indexer
        self._rowwise = rowwise
        self.ratio = indexer.ratio
        self._shift = shift
        self.keys = torch.zeros(a.num_key_value_heads, pages * PAGE_TOKENS, a.head_dim)
        self.values = torch.zeros_like(self.keys)
        self.groups = torch.zeros(pages * PAGE_TOKENS // indexer.ratio, indexer.size)
        self.rings = RawKeyRings(rows, ring_capacity(indexer.ratio, MAXIMUM_DRAFTS), indexer.size)

    def attend(
        self, block: AttentionBlock, rows: AttentionRows, lane: Lane, reuse: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Writes one lane's rows; returns their attention [count, heads * D] and the last one's selection [1, seen].

        `rows` are the lane's alone. With `reuse`, an earlier selection [1, n], its one row sees that and what came
        since.
        """
        self.write(block, rows, lane)
        if not self._rowwise.deterministic:
            return self._look(rows, lane.first, lane.count, lane.pages, reuse)
        # Row by row over exactly its own prefix: shapes then follow from the row's position alone.
        found = [
            self._look(rows.of(slice(row, row + 1)), lane.first + row, 1, lane.pages, reuse)
            for row in range(lane.count)
        ]
        return torch.cat([attended for attended, _ in found]), found[-1][1]

    def write(self, block: AttentionBlock, rows: AttentionRows, lane: Lane) -> None:
        """Writes one lane's rows, the groups that they complete, and their raw keys."""
        written = token_rows(lane.pages, lane.first + self._shift, lane.count)
        self.keys[:, written] = rows.keys.transpose(0, 1)
        self.values[:, written] = rows.values.transpose(0, 1)
        self._compress(block, rows, lane)

    def _look(
        self, rows: AttentionRows, first: int, count: int, pages: Tensor, reuse: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """`attend` of rows that are stored already, `count` of them from position `first` on."""
        end = first + count
        if reuse is None:
            groups = torch.arange(end // self._indexer.ratio)
            representatives = self.groups[self._places(pages, groups)]
            mask = self._indexer.selected(rows.index_queries, representatives, torch.arange(first, end))
        else:
            mask = torch.cat([reuse, torch.ones(1, end - reuse.shape[1], dtype=torch.bool)], dim=1)
        seen = token_rows(pages, self._shift, end)
        return attend_selected(rows.queries, self.keys[:, seen], self.values[:, seen], mask), mask[-1:]

    def _compress(self, block: AttentionBlock, rows: AttentionRows, lane: Lane) -> None:
        """Stores the groups that this lane completes, then its raw keys: the ring is read before it is overwritten."""
        ratio, end = self._indexer.ratio, lane.first + lane.count
        begin = lane.first // ratio * ratio
        raw = rows.raw_keys
        if begin < lane.first:
            raw = torch.cat([self.rings.read(lane.slot, torch.arange(begin, lane.first)), raw])
        groups = torch.arange(begin // ratio, end // ratio)
        if len(groups):
            complete = torch.unflatten(raw[: len(groups) * ratio], 0, (-1, ratio))
            self.groups[self._places(lane.pages, groups)] = self._rowwise(
                lambda keys, group: self._indexer.representatives(keys, block.index_key_norm, group), complete, groups
            )
        self.rings.write(lane.slot, lane.first, rows.raw_keys)

    def _places(self, pages: Tensor, groups: Tensor) -> Tensor:
        """Where groups of a request lie in the pool; a page holds whole groups."""
        each, groups = PAGE_TOKENS // self._indexer.ratio, groups + self._shift
        return pages[groups // each] * each + groups % each
