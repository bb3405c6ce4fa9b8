"""What target layers and the drafter's layer share on a card: sparse attention, experts, use of hyperconnections.

Runs in the worker, inside captured graphs. Whose state a layer keeps is its caller's business: pages, groups and rings
come in as tensors. Reference: blocks.py over cache.py.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from recipes.components.device_model import DeviceRows
from recipes.components.gpu.expert_block import ExpertBlock, expert_block
from recipes.components.gpu.head_rows import HeadShape, SparseState, keep_heads, place_heads
from recipes.components.gpu.matrices import behind, inject, multiply
from recipes.components.gpu.rows import Placed
from recipes.components.gpu.selection import Chosen, attend_chosen, half_turns, select
from recipes.components.gpu.streams import DeviceMixer, Injection, mix
from recipes.components.indexed_attention import Indexer
from recipes.components.paged_attention import Heads
from recipes.qwen38.device_weights import DeviceAttention


class SparseAttention:
    """Sparse attention over any layer's block and state. `positions` of the longest request."""

    def __init__(self, indexer: Indexer, heads: Heads, positions: int, device: torch.device) -> None:
        self._shape = HeadShape(heads, indexer)
        self._turns = half_turns(indexer, positions).to(device)

    def attend(
        self,
        block: DeviceAttention,
        state: SparseState,
        x: Tensor,
        into: Injection,
        rows: DeviceRows,
        placed: Placed,
        reuse: Chosen | None = None,
        since: int = 0,
    ) -> Chosen:
        """The block's output for its input `x` [R, H] goes into the streams; returns what each row chose.

        Writes the rows' keys, values and groups. With `reuse`, what rows up to `since` positions before them chose,
        they attend to that choice and all that came since, and leave groups and rings alone: proposals may, committed
        rows never (mtp-design.md, "Available operator contracts").
        """
        shape = self._shape
        projected = multiply(x, block.inputs)
        queries, index_queries = place_heads(
            projected, block.norms, self._turns, state, rows, placed, shape, chooses=reuse is None
        )
        chosen = select(index_queries, state.index, placed, shape.indexer) if reuse is None else reuse
        gated = projected[:, : shape.sizes[0]]
        found = attend_chosen(
            queries, gated, state.pages, placed, chosen, shape.indexer, shape.heads, state.index.shift, since
        )
        inject(found, block.output, into)
        return chosen

    def write(self, block: DeviceAttention, state: SparseState, x: Tensor, rows: DeviceRows, placed: Placed) -> None:
        """What `attend` writes, and nothing else: for rows whose output nobody reads."""
        kept = multiply(x, behind(block.inputs, self._shape.kept))
        keep_heads(kept, block.norms, self._turns, state, rows, placed, self._shape)


def through(
    mixer: DeviceMixer, streams: Tensor, dtype: torch.dtype, block: Callable[[Tensor, Injection], object]
) -> None:
    """Mixes the streams float32 [R, S * H] into the input [R, H] of `block`, which injects its output into them."""
    mixed, strengths = mix(mixer, streams, dtype)
    block(mixed, Injection(streams, strengths))


def experts_of(experts: ExpertBlock, placed: Placed, x: Tensor, into: Injection) -> None:
    """The experts' output for block input `x` [R, H] goes into the streams. Rows that are masked choose no experts."""
    expert_block(experts, x, into, placed.positions)
