"""The MTP drafter on a card, a `DeviceDrafter`: its layer's cache of committed pairs, proposals behind it.

Runs in the worker, inside captured graphs. Absorbing writes keys, values and groups and computes nothing behind them;
proposals go through the whole layer, once for each depth, and choose what they attend to once. Reference: mtp.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from recipes.components.device_drafter import DeviceDrafts, DeviceTask
from recipes.components.device_model import DeviceRows
from recipes.components.gpu.attention import device_pages
from recipes.components.gpu.head_rows import SparseState
from recipes.components.gpu.pairs import SHIFT, PairNorms, Pairs, committed_pairs, export_prefix, proposed_pairs
from recipes.components.gpu.sampling import propose_rows
from recipes.components.gpu.selection import Chosen, IndexState
from recipes.components.gpu.streams import Injection, mix
from recipes.components.indexed_attention import NOTHING, Indexer, ring_capacity
from recipes.components.paged_attention import Heads
from recipes.qwen38.architecture import Architecture
from recipes.qwen38.blocks import indexer_of
from recipes.qwen38.device_blocks import SparseAttention, experts_of, through
from recipes.qwen38.device_weights import DeviceDrafterWeights
from shared.manifest import MAXIMUM_DRAFTS, PAGE_TOKENS


@dataclass(frozen=True, slots=True)
class DrafterCounts:
    """How much a drafter holds: slots, snapshot rows, pages."""

    slots: int
    snapshots: int
    pages: int


class DeviceMtp:
    """The `DeviceDrafter` of this recipe. Not thread-safe: one call at a time, on one stream.

    A draft is drawn from the request's own law without its penalties, bias and minimum length, as on the CPU.
    """

    def __init__(
        self,
        architecture: Architecture,
        weights: DeviceDrafterWeights,
        sparse: SparseAttention,
        counts: DrafterCounts,
        faults: Tensor,
    ) -> None:
        """`sparse` and `faults` int32 [slots + 1] are the target's; the round takes the latter's bits."""
        a, table = architecture, weights.embedding
        self._weights, self._slots, self._dtype = weights, counts.slots, table.dtype
        self._norms = PairNorms(table, weights.embedding_norm, weights.hidden_norm, a.hc_count, a.rms_norm_eps)
        heads, indexer = Heads(a.num_attention_heads, a.num_key_value_heads, a.head_dim), indexer_of(a)
        self._sparse = sparse
        self._scratch = counts.slots + counts.snapshots
        self.tails = torch.zeros(self._scratch + 1, a.streams_width, dtype=table.dtype, device=table.device)
        """[rows + 1, S * H]: the target's streams at the last consumed token of slots, snapshot rows and nobody."""
        self.cache = SparseState(
            device_pages(counts.pages, heads, table.dtype, table.device),
            _index_state(indexer, counts.pages, self._scratch + 1, table, faults),
        )

    @torch.inference_mode()
    def propose(self, task: DeviceTask) -> DeviceDrafts:
        """Recursive drafts: the layer's own streams and the drafted token make the next pair."""
        lanes, depths = task.draws.shape
        law = torch.empty(lanes, depths, len(self._weights.head), device=task.draws.device)
        streams, token, chosen = self.tails, task.pending, None
        drafts: list[tuple[Tensor, Tensor]] = []
        for depth in range(depths):
            asked = proposed_pairs(self._norms, self.tails, task, depth, (streams, token))
            streams, chosen = self._forward(asked.pairs, chosen, depths - 1)
            logits, own = self._logits(streams), law[:, depth]
            token, finite = propose_rows(logits, task.state, task.rows, asked.live, asked.draws, own)
            drafts.append((token, finite))
        tokens, finite = (torch.stack(parts, 1) for parts in zip(*drafts, strict=True))
        # A draft from logits that are not finite is none, and nothing stands behind it.
        return DeviceDrafts(tokens, torch.minimum(task.limits, finite.long().cumprod(1).sum(1)), law)

    def _streams(self, pairs: Pairs) -> Tensor:
        """The layer's input float32 [R, S * H]."""
        inputs, projection = pairs.inputs.flatten(0, 1), self._weights.projection
        if inputs.is_cuda:
            found = torch.mm(inputs, projection.T, out_dtype=torch.float32)
        else:
            found = inputs.float() @ projection.float().T
        return found.view(len(pairs.inputs), -1)

    def _forward(self, pairs: Pairs, reuse: Chosen | None, since: int) -> tuple[Tensor, Chosen]:
        """Streams float32 [R, S * H] behind the layer, and what its rows chose."""
        w, streams = self._weights, self._streams(pairs)
        chosen: list[Chosen] = []

        def attention(x: Tensor, into: Injection) -> None:
            found = self._sparse.attend(w.attention, self.cache, x, into, pairs.rows, pairs.placed, reuse, since)
            chosen.append(found)

        through(w.attention_mixer, streams, self._dtype, attention)
        through(w.experts_mixer, streams, self._dtype, partial(experts_of, w.experts, pairs.placed))
        return streams, chosen[0]

    def _logits(self, streams: Tensor) -> Tensor:
        """Raw logits float32 [n, V]."""
        mixed, _ = mix(self._weights.mixer, streams, self._dtype)
        if not mixed.is_cuda:
            return mixed.float() @ self._weights.head.float().T
        return torch.mm(mixed, self._weights.head.T, out_dtype=torch.float32)

    @torch.inference_mode()
    def absorb(self, rows: DeviceRows, vectors: Tensor, kept: Tensor) -> None:
        """Takes each lane's first `kept` inputs, with the target's streams of them, into the cache."""
        pairs = committed_pairs(self._norms, self.tails, rows, vectors, kept)
        mixed, _ = mix(self._weights.attention_mixer, self._streams(pairs), self._dtype)
        self._sparse.write(self._weights.attention, self.cache, mixed, pairs.rows, pairs.placed)

    @torch.inference_mode()
    def export(self, rows: DeviceRows, vectors: Tensor, kept: Tensor, target: Tensor) -> None:
        """The prefix that ends with each lane's first `kept` rows: its last pair is the one before its last token."""
        export_prefix(self.tails, self.cache.index, rows, vectors, kept, target, self._slots)

    @torch.inference_mode()
    def reset(self, slot: Tensor) -> None:
        """Empties the slot's cache."""
        self.cache.index.tags.index_fill_(0, torch.where(slot >= 0, slot, self._scratch), NOTHING)

    @torch.inference_mode()
    def snapshot(self, slot: Tensor, target: Tensor) -> None:
        """Copies the slot's tail and the open group's raw keys into snapshot row `target`."""
        self._copy(slot, self._snapshot(target))

    @torch.inference_mode()
    def restore(self, source: Tensor, slot: Tensor) -> None:
        """Copies snapshot row `source` into the slot."""
        self._copy(self._snapshot(source), slot)

    def _copy(self, source: Tensor, target: Tensor) -> None:
        both = (source >= 0) & (target >= 0)
        origin, goal = (torch.where(both, row, self._scratch) for row in (source, target))
        for pool in (self.tails, self.cache.index.ring, self.cache.index.tags):
            pool.index_copy_(0, goal, pool.index_select(0, origin))

    def _snapshot(self, row: Tensor) -> Tensor:
        return torch.where(row >= 0, row + self._slots, -1)


def _index_state(indexer: Indexer, pages: int, rows: int, table: Tensor, faults: Tensor) -> IndexState:
    capacity, kind, device = ring_capacity(indexer.ratio, MAXIMUM_DRAFTS), table.dtype, table.device
    groups = (pages + 1) * PAGE_TOKENS // indexer.ratio
    return IndexState(
        ring=torch.zeros(rows, capacity, indexer.size, dtype=kind, device=device),
        tags=torch.full((rows, capacity), NOTHING, dtype=torch.int64, device=device),
        groups=torch.zeros(groups, indexer.size, dtype=kind, device=device),
        missing=faults,
        shift=SHIFT,
    )
