"""Pairs of residual streams and the token that follows them: what a draft layer of several streams takes in.

Runs in the worker. The pair at position i is that of the streams there with token i + 1, and lies one place further on
in its request's pages (recipes/qwen38/cache.py says why). `tails` keep the streams of each slot's last consumed token.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from recipes.components.device_drafter import DeviceTask
from recipes.components.device_model import DeviceRows
from recipes.components.gpu.launch import chained, power_above, runs_triton
from recipes.components.gpu.rows import Placed
from recipes.components.gpu.selection import IndexState, keep_ring
from recipes.components.hyperconnection import centred_rms_norm
from shared.manifest import PAGE_TOKENS

SHIFT = 1
"""Places by which a pair lies behind its position."""
_BLOCK = 2048


@dataclass(frozen=True, slots=True)
class PairNorms:
    """`table` [V, H] of embeddings with its zero-centred norm [H], and the norm [S * H] of all streams together."""

    table: Tensor
    embedding: Tensor
    hidden: Tensor
    streams: int
    epsilon: float


@dataclass(frozen=True, slots=True)
class Pairs:
    """R pairs: `inputs` [R, S, 2 * H], and where they are. `rows` names lanes by positions of pairs, not of tokens."""

    inputs: Tensor
    rows: DeviceRows
    placed: Placed


@dataclass(frozen=True, slots=True)
class Proposed:
    """One pair a lane at some depth: `live` bool [B] where a draft is asked for, `draws` float32 [B] of that depth."""

    pairs: Pairs
    live: Tensor
    draws: Tensor


def _made(lanes: int, width: int, tables: Tensor, norms: PairNorms) -> Pairs:
    """Room for the pairs of `lanes` lanes of `width` rows."""
    device, count = tables.device, lanes * width
    # Each for itself: kernels are compiled once more for what is not aligned.
    slots, first, counts = (torch.empty(lanes, dtype=torch.int64, device=device) for _ in range(3))
    positions, places = (torch.empty(count, dtype=torch.int32, device=device) for _ in range(2))
    shape = (count, norms.streams, 2 * norms.table.shape[1])
    # The tokens of a pair are in its inputs already; its lanes' lengths follow from the positions.
    rows = DeviceRows(slots, slots, first, counts, tables, width)
    return Pairs(
        torch.empty(shape, dtype=norms.table.dtype, device=device),
        rows,
        Placed(positions, places, first, tables, width),
    )


def committed_pairs(norms: PairNorms, tails: Tensor, rows: DeviceRows, vectors: Tensor, kept: Tensor) -> Pairs:
    """The pairs of each lane's first `kept` rows with the streams before them; then `tails` hold the last row's.

    `vectors` float32 [B * W, S * H] are the streams of the rows themselves.
    """
    if not runs_triton(vectors):
        return _committed_pairs(norms, tails, rows, vectors, kept)
    from recipes.components.gpu.pairs_kernels import committed_pairs as kernel

    lanes, hidden = len(rows.slots), norms.table.shape[1]
    found = _made(lanes, rows.width, rows.tables, norms)
    kernel[(lanes * rows.width,)](
        tails, vectors, rows.tokens, rows.slots, rows.first, kept, rows.tables, norms.table, norms.embedding,
        norms.hidden, found.inputs, found.rows.slots, found.rows.first, found.rows.counts, found.placed.positions,
        found.placed.places, rows.tables.shape[1], rows.width, norms.epsilon, len(norms.table), norms.streams, hidden,
        power_above(hidden), PAGE_TOKENS, **_launch(vectors), num_warps=8,
    )  # fmt: skip
    return found


def _committed_pairs(norms: PairNorms, tails: Tensor, rows: DeviceRows, vectors: Tensor, kept: Tensor) -> Pairs:
    lanes, width = len(rows.slots), rows.width
    kept = torch.where(rows.slots >= 0, kept, 0)
    skipped = (rows.first == 0).long()
    source = torch.arange(width, device=kept.device) + skipped[:, None]
    live, source = source < kept[:, None], source.clamp(max=width - 1)
    own = vectors.view(lanes, width, -1)
    before = torch.cat([tails[rows.slots.clamp(min=0)][:, None].float(), own[:, :-1]], 1)
    streams = before.gather(1, source[..., None].expand(-1, -1, own.shape[2]))
    tokens = rows.tokens.view(lanes, width).gather(1, source)
    positions = torch.where(live, rows.first[:, None] - 1 + source, -1)
    counts = (kept - skipped).clamp(min=0)
    slots = torch.where(counts > 0, rows.slots, -1)
    found = replace(rows, slots=slots, first=rows.first - 1 + skipped, counts=counts)
    pairs = _beside(norms, streams.flatten(0, 1), tokens.flatten(), positions.flatten(), found)
    some = (kept > 0).nonzero().flatten()
    tails[rows.slots[some]] = own[some, kept[some] - 1].to(tails.dtype)
    return pairs


def proposed_pairs(
    norms: PairNorms, tails: Tensor, task: DeviceTask, depth: int, before: tuple[Tensor, Tensor]
) -> Proposed:
    """One pair a lane: the slot's tail and the pending token at depth 0, further on what lies `before`.

    `before` are streams float32 [B, S * H] and the tokens int64 [B] that were drafted from them; at depth 0 only the
    tokens are read. Lanes that ask for no draft at this depth have slot -1.
    """
    streams, tokens = before
    if not runs_triton(tails):
        return _proposed_pairs(norms, tails, task, depth, before)
    from recipes.components.gpu.pairs_kernels import proposed_pairs as kernel

    (lanes, depths), hidden, device = task.draws.shape, norms.table.shape[1], tails.device
    found = _made(lanes, 1, task.tables, norms)
    live, draws = torch.empty(lanes, dtype=torch.uint8, device=device), torch.empty(lanes, device=device)
    kernel[(lanes,)](
        tails, streams, tokens.contiguous(), task.slots, task.consumed.contiguous(), task.limits.contiguous(),
        task.draws, task.tables, norms.table,
        norms.embedding, norms.hidden, found.inputs, found.rows.slots, found.rows.first, found.rows.counts,
        found.placed.positions, found.placed.places, live, draws, task.tables.shape[1], depth, depths, norms.epsilon,
        len(norms.table), norms.streams, hidden, power_above(hidden), PAGE_TOKENS, **_launch(tails), num_warps=8,
    )  # fmt: skip
    return Proposed(found, live.view(torch.bool), draws)


def _proposed_pairs(
    norms: PairNorms, tails: Tensor, task: DeviceTask, depth: int, before: tuple[Tensor, Tensor]
) -> Proposed:
    streams, tokens = before
    position = task.consumed - 1 + depth
    live = (task.slots >= 0) & (task.limits > depth) & (position >= 0)
    slots = torch.where(live, task.slots, -1)
    rows = DeviceRows(tokens, slots, position, live.long(), task.tables, 1)
    streams = tails[slots.clamp(min=0)].float() if depth == 0 else streams
    pairs = _beside(norms, streams, tokens, torch.where(live, position, -1), rows)
    return Proposed(pairs, live, task.draws[:, depth].contiguous())


def _beside(norms: PairNorms, streams: Tensor, tokens: Tensor, positions: Tensor, rows: DeviceRows) -> Pairs:
    count, hidden = len(tokens), norms.table.shape[1]
    live = (positions >= 0) & (positions + SHIFT < rows.tables.shape[1] * PAGE_TOKENS)
    known = live & (tokens >= 0) & (tokens < len(norms.table))
    embedded = norms.table[torch.where(known, tokens, 0)].float() * known[:, None]
    embedded = centred_rms_norm(embedded, norms.embedding, norms.epsilon)
    normed = centred_rms_norm(torch.where(live[:, None], streams, 0.0), norms.hidden, norms.epsilon)
    both = torch.cat(
        [normed.view(count, norms.streams, hidden), embedded[:, None].expand(-1, norms.streams, -1)], dim=2
    )
    stored = torch.where(live, positions + SHIFT, 0)
    lane = torch.arange(count, device=stored.device) // rows.width
    page = rows.tables[lane, stored // PAGE_TOKENS]
    places = torch.where(live & (page >= 0), page * PAGE_TOKENS + stored % PAGE_TOKENS, -1)
    placed = Placed(torch.where(live, positions, -1).int(), places.int(), rows.first, rows.tables, rows.width)
    return Pairs(both.to(norms.table.dtype), rows, placed)


def export_prefix(
    tails: Tensor,
    index: IndexState,
    rows: DeviceRows,
    vectors: Tensor,
    kept: Tensor,
    targets: Tensor,
    first_row: int,
) -> None:
    """Row `first_row` + `targets`[b] becomes the state of the prefix that ends with lane b's first `kept` rows.

    Its tail is that of the last of them, its ring the slot's up to the pair before. -1, or nothing kept: nothing.
    """
    if not runs_triton(vectors):
        some = ((rows.slots >= 0) & (targets >= 0) & (kept > 0)).nonzero().flatten()
        goals = torch.full_like(targets, -1)
        goals[some] = first_row + targets[some]
        tails[goals[some]] = vectors.view(len(kept), rows.width, -1)[some, kept[some] - 1].to(tails.dtype)
        keep_ring(index, replace(rows, first=rows.first - SHIFT), kept, goals)
        return
    from recipes.components.gpu.pairs_kernels import export_prefix as kernel

    size, (capacity, each) = vectors.shape[1], index.ring.shape[1:]
    block = min(_BLOCK, power_above(size))
    kernel[(len(kept), -(-size // block))](
        tails, index.ring, index.tags, vectors, rows.slots, rows.first, kept, targets, rows.width, first_row, size,
        block, capacity, each, power_above(capacity), power_above(each), **_launch(vectors), num_warps=4,
    )  # fmt: skip


def _launch(tensor: Tensor) -> dict[str, bool]:
    early = chained(tensor)
    return {"CHAINED": True, "launch_pdl": True} if early else {"CHAINED": False}
