"""Causal attention of a few rows over pages: one pool a layer, 64 tokens a page, each head's tokens side by side.

Runs in the worker on the CPU. `attend_lane` takes any number of a lane's rows at once. Given one row over exactly its
own prefix, its shapes follow from the row's position alone, so that the result cannot depend on chunking, batch-mates
or page placement: that is how deterministic serving calls it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from shared.errors import ProcessError
from shared.manifest import PAGE_TOKENS


@dataclass(frozen=True, slots=True)
class Heads:
    """Head counts and size of one layer. `group` query heads share a key head."""

    queries: int
    keys: int
    size: int

    @property
    def group(self) -> int:
        """Query heads of one key head."""
        return self.queries // self.keys

    @property
    def planes(self) -> int:
        """Planes of a pool: one for each key head, then one for each value head."""
        return 2 * self.keys


def page_pools(layers: int, pages: int, heads: Heads) -> Tensor:
    """The pools of all layers, float32 [layers, planes, pages * 64, size]: a head's tokens lie side by side."""
    return torch.zeros(layers, heads.planes, pages * PAGE_TOKENS, heads.size)


def token_rows(pages: Tensor, first: int, count: int) -> Tensor:
    """Pool rows int64 [count] of the positions first .. first + count."""
    positions = torch.arange(first, first + count)
    return pages[positions // PAGE_TOKENS] * PAGE_TOKENS + positions % PAGE_TOKENS


@dataclass(frozen=True, slots=True)
class Span:
    """Where `count` tokens of a lane lie: one run of the pool from `start`, or scattered `rows` int64 [count]."""

    count: int
    start: int
    rows: Tensor | None

    def views(self, pools: Tensor) -> list[Tensor]:
        """[planes, count, size] of each layer, where the tokens are one run; else nothing."""
        if self.rows is not None:
            return []
        return list(pools[:, :, self.start : self.start + self.count].unbind())

    def gather(self, pool: Tensor) -> Tensor:
        """[planes, count, size] of one layer's pool, as a copy. Scattered tokens only."""
        return pool.index_select(1, self._scattered())

    def scatter(self, pool: Tensor, planes: Tensor) -> None:
        """Writes `planes` [planes, count, size] into one layer's pool. Scattered tokens only."""
        pool.index_copy_(1, self._scattered(), planes)

    def _scattered(self) -> Tensor:
        if self.rows is None:
            raise ProcessError("tokens of one run are read and written through a view")
        return self.rows


def span_of(pages: Tensor, first: int, count: int) -> Span:
    """The span of positions first .. first + count under the page table `pages` int64 [max_pages]."""
    offset = first // PAGE_TOKENS
    table = pages[offset : -(-(first + count) // PAGE_TOKENS)].tolist()
    if all(after == before + 1 for before, after in pairwise(table)):
        return Span(count, table[0] * PAGE_TOKENS + first % PAGE_TOKENS, None)
    return Span(count, -1, token_rows(pages, first, count))


def causal_mask(first: int, count: int, group: int) -> Tensor | None:
    """[group * count, first + count] of 0 and -inf: row r of a group sees positions 0 .. first + r. One row: None."""
    if count == 1:
        return None
    limits = torch.arange(first, first + count)
    hidden = torch.arange(first + count)[None] > limits[:, None]
    mask = torch.zeros(hidden.shape).masked_fill_(hidden, -torch.inf)
    return mask.repeat(group, 1)


def attend_lane(queries: Tensor, context: Tensor, heads: Heads, mask: Tensor | None) -> Tensor:
    """[count, queries * size] of `queries` [count, queries, size] over `context` [planes, length, size].

    The query heads of a key head become further rows of it: no key is read or copied twice.
    """
    count = queries.shape[0]
    keys, values = context.view(2, 1, heads.keys, -1, heads.size).unbind()
    grouped = queries.view(count, heads.keys, heads.group, heads.size).permute(1, 2, 0, 3)
    stacked = grouped.reshape(1, heads.keys, heads.group * count, heads.size)
    found = scaled_dot_product_attention(stacked, keys, values, attn_mask=mask)
    return found.view(heads.keys, heads.group, count, heads.size).permute(2, 0, 1, 3).reshape(count, -1)


def reference_attention(queries: Tensor, keys: Tensor, values: Tensor, heads: Heads, first: int) -> Tensor:
    """What both compute, head by head and row by row in float64."""
    found = []
    for row, query in enumerate(queries.double()):
        seen = first + row + 1
        outputs = []
        for head in range(heads.queries):
            key, value = keys[head // heads.group, :seen].double(), values[head // heads.group, :seen].double()
            weights = (key @ query[head] * heads.size**-0.5).softmax(0)
            outputs.append(weights @ value)
        found.append(torch.cat(outputs))
    return torch.stack(found).float()
