"""Sparse attention with an indexer on a device: groups and rings of raw keys, the choice, attention to the chosen.

Runs in the worker. Places are those of the CPU's cache: a page holds whole groups, a ring belongs to a slot or snapshot
row. A lane's rows are stored before they are seen; the ring is read before it is overwritten. References:
indexed_attention.py. Here they go lane by lane and may wait, the kernels never do.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from recipes.components.device_model import DeviceRows
from recipes.components.gpu.launch import chained, power_above, runs_triton
from recipes.components.gpu.rows import Placed
from recipes.components.hyperconnection import centred_rms_norm
from recipes.components.indexed_attention import Indexer, attend_selected, rotate_half
from recipes.components.paged_attention import Heads, token_rows
from shared.frames import Fault
from shared.manifest import PAGE_TOKENS

_GROUPS_AT_ONCE = 64
_CHOICE_PART = 2048
"""Scores that a program holds; more than a budget of them, or nothing would be left out."""
_TOKENS_AT_ONCE = 64
CHUNK_ROWS = 8
"""Lanes of more rows are prompt chunks, which chunk_attention.py serves."""


@dataclass(frozen=True, slots=True)
class IndexState:
    """`ring` [rows, capacity, size], `tags` int64 [rows, capacity]: positions held, -1 nothing.

    `groups` [pages * 64 / ratio, size]: keys of complete groups; `missing` int32, one or more for each slot, gets
    `Fault.MISSING_HISTORY` where a raw key was not held when it was needed. Group g lies at place g + `shift` of
    its request's pages.
    """

    ring: Tensor
    tags: Tensor
    groups: Tensor
    missing: Tensor
    shift: int = 0


@dataclass(frozen=True, slots=True)
class Chosen:
    """What each row attends to beside its open tail: `groups` int32 [R, budget], ascending, the first `numbers` [R]."""

    groups: Tensor
    numbers: Tensor
    anchors: Tensor
    """int32 [R]: the position at which the row chose; what came since belongs to its tail."""


def half_turns(indexer: Indexer, positions: int) -> Tensor:
    """float32 [positions, rotary]: cosine and sine of each pair of `rotate_half`, side by side."""
    rates = indexer.theta ** -(torch.arange(0, indexer.rotary, 2, dtype=torch.float32) / indexer.rotary)
    angles = torch.arange(positions, dtype=torch.float32)[:, None] * rates
    return torch.stack([angles.cos(), angles.sin()], -1).flatten(1)


def _blocks(indexer: Indexer, size: int) -> tuple[int, int, int]:
    """(rotary, block of half of it, block of what is behind it) of a head of `size`."""
    return indexer.rotary, power_above(indexer.rotary // 2), power_above(max(1, size - indexer.rotary))


def turn_heads(
    source: Tensor, weight: Tensor, turns: Tensor, placed: Placed, indexer: Indexer, heads: int, size: int, stride: int
) -> Tensor:
    """Heads [R, heads, size], normed and turned, out of `source` [R, LINE]: head h begins at h * `stride`."""
    count, line = source.shape
    if not runs_triton(source):
        split = torch.as_strided(source, (count, heads, size), (source.stride(0), stride, 1)).float()
        normed = centred_rms_norm(split, weight.float(), indexer.epsilon)
        return rotate_half(normed, placed.positions.clamp_min(0), indexer.rotary, indexer.theta).to(source.dtype)
    from recipes.components.gpu.selection_kernels import turn_heads as kernel

    out = torch.empty(count, heads, size, dtype=source.dtype, device=source.device)
    kernel[(count, heads)](
        source, weight, turns, placed.positions, out, indexer.epsilon, heads, stride, line, size,
        *_blocks(indexer, size), num_warps=1,
    )  # fmt: skip
    return out


def store_state(
    keys: Tensor,
    values: Tensor,
    weight: Tensor,
    turns: Tensor,
    placed: Placed,
    indexer: Indexer,
    heads: Heads,
    pages: Tensor,
) -> None:
    """Normed and turned `keys`, and `values`, [R, key heads * size], into `pages`; rows without a place write none."""
    if not runs_triton(keys):
        split = keys.float().view(len(keys), heads.keys, heads.size)
        normed = centred_rms_norm(split, weight.float(), indexer.epsilon)
        turned = rotate_half(normed, placed.positions.clamp_min(0), indexer.rotary, indexer.theta)
        live = placed.places >= 0
        page, within = placed.places[live].long() // PAGE_TOKENS, placed.places[live].long() % PAGE_TOKENS
        pages[page, 0, :, within] = turned[live].to(pages.dtype)
        pages[page, 1, :, within] = values.view(split.shape)[live].to(pages.dtype)
        return
    from recipes.components.gpu.selection_kernels import store_state as kernel

    kernel[(len(keys), heads.keys)](
        keys, values, weight, turns, placed.positions, placed.places, pages, indexer.epsilon, heads.keys, heads.size,
        PAGE_TOKENS, *_blocks(indexer, heads.size), power_above(heads.size), num_warps=1,
    )  # fmt: skip


def compress(raw: Tensor, weight: Tensor, turns: Tensor, state: IndexState, rows: DeviceRows, indexer: Indexer) -> None:
    """Stores the groups that each lane's rows complete, from raw keys [R, size] and the ring; then rings its rows."""
    if not runs_triton(raw):
        _compress(raw, weight, state, rows, indexer)
        return
    from recipes.components.gpu.selection_kernels import compress as kernel
    from recipes.components.gpu.selection_kernels import write_ring

    lanes, capacity, each = len(rows.slots), state.ring.shape[1], PAGE_TOKENS // indexer.ratio
    kernel[(lanes, -(-rows.width // indexer.ratio) + 1)](
        raw, weight, turns, state.ring, state.tags, state.groups, rows.slots, rows.first, rows.counts, rows.tables,
        state.missing, rows.tables.shape[1], indexer.epsilon, rows.width, capacity, indexer.ratio, each, indexer.size,
        *_blocks(indexer, indexer.size), state.shift, num_warps=1,
    )  # fmt: skip
    write_ring[(lanes, min(rows.width, capacity))](
        raw, state.ring, state.tags, rows.slots, rows.first, rows.counts, rows.width, capacity, indexer.size,
        power_above(indexer.size), num_warps=1,
    )  # fmt: skip


def _compress(raw: Tensor, weight: Tensor, state: IndexState, rows: DeviceRows, indexer: Indexer) -> None:
    capacity, ratio = state.ring.shape[1], indexer.ratio
    for lane, (slot, first, count) in enumerate(
        zip(rows.slots.tolist(), rows.first.tolist(), rows.counts.tolist(), strict=True)
    ):
        if slot < 0 or count == 0:
            continue
        own = raw[lane * rows.width : lane * rows.width + count].float()
        old = torch.arange(first // ratio * ratio, first, device=raw.device)
        groups = torch.arange(first // ratio, (first + count) // ratio, device=raw.device)
        if len(groups):
            lost = state.tags[slot, old % capacity] != old
            state.missing[slot] |= lost.any().int() * int(Fault.MISSING_HISTORY)
            past = torch.where(lost[:, None], torch.nan, state.ring[slot, old % capacity].float())
            complete = torch.cat([past, own])[: len(groups) * ratio].view(len(groups), ratio, -1)
            found = indexer.representatives(complete, weight.float(), groups)
            state.groups[_group_places(rows.tables[lane], groups + state.shift, ratio)] = found.to(state.groups.dtype)
        newest = torch.arange(first + max(0, count - capacity), first + count, device=raw.device)
        state.ring[slot, newest % capacity] = own[-len(newest) :].to(state.ring.dtype)
        state.tags[slot, newest % capacity] = newest


def _group_places(table: Tensor, groups: Tensor, ratio: int) -> Tensor:
    each = PAGE_TOKENS // ratio
    return table[groups // each].long() * each + groups % each


def keep_ring(state: IndexState, rows: DeviceRows, kept: Tensor, targets: Tensor) -> None:
    """Row `target` becomes the slot's ring as its lane's first `kept` rows left it: rejected rows are forgotten."""
    keep_rings(state.ring[None], state.tags[None], rows, kept, targets)


def keep_rings(rings: Tensor, tags: Tensor, rows: DeviceRows, kept: Tensor, targets: Tensor) -> None:
    """The same for all layers at once: `rings` [layers, rows, capacity, size], `tags` [layers, rows, capacity]."""
    layers, _, capacity, size = rings.shape
    if not runs_triton(rings):
        live = (rows.slots >= 0) & (targets >= 0)
        slots, goals = rows.slots[live], targets[live]
        known, keys = tags[:, slots], rings[:, slots]
        tags[:, goals] = torch.where(known < (rows.first + kept)[live][:, None], known, -1)
        rings[:, goals] = keys
        return
    from recipes.components.gpu.selection_kernels import keep_ring as kernel

    early = chained(rings)
    kernel[(len(rows.slots), layers)](
        rings, tags, rows.slots, rows.first, kept, targets, rings.shape[1], capacity, size, power_above(capacity),
        power_above(size), early, **_launch(early),
    )  # fmt: skip


def select(queries: Tensor, state: IndexState, placed: Placed, indexer: Indexer) -> Chosen:
    """The best groups that each row sees, by index `queries` [R, heads, size]; all of them up to the budget."""
    count, device, each = len(queries), queries.device, PAGE_TOKENS // indexer.ratio
    groups = torch.empty(count, indexer.budget, dtype=torch.int32, device=device)
    numbers = torch.empty(count, dtype=torch.int32, device=device)
    most = placed.tables.shape[1] * each
    if not runs_triton(queries):
        return _select(queries, state, placed, indexer, Chosen(groups, numbers, placed.positions))
    if placed.width > CHUNK_ROWS:
        from recipes.components.gpu.chunk_attention import select_rows

        return select_rows(queries, state, placed, indexer)
    # Where all fit nobody reads a score, but the kernel is compiled for their type.
    fits = most <= indexer.budget
    scores = queries.new_empty(1, 1, dtype=torch.float32) if fits else _scores(queries, state, placed, indexer, most)
    _choose(scores, placed, indexer, groups, numbers, most)
    return Chosen(groups, numbers, placed.positions)


def _scores(queries: Tensor, state: IndexState, placed: Placed, indexer: Indexer, most: int) -> Tensor:
    """float32 [R, most]: of every group that a row sees; the rest is not set."""
    from recipes.components.gpu.attention import tensor_type
    from recipes.components.gpu.selection_kernels import score

    scores = torch.empty(len(queries), most, dtype=torch.float32, device=queries.device)
    early = chained(queries)
    score[(len(queries), -(-most // _GROUPS_AT_ONCE))](
        queries, state.groups, placed.positions, placed.tables, scores, placed.tables.shape[1], most,
        indexer.size**-0.5, placed.width, indexer.heads, max(16, power_above(indexer.heads)), indexer.size,
        max(16, power_above(indexer.size)), indexer.ratio, PAGE_TOKENS // indexer.ratio, indexer.budget,
        _GROUPS_AT_ONCE, tensor_type(queries), state.shift, early, **_launch(early),
    )  # fmt: skip
    return scores


def _choose(scores: Tensor, placed: Placed, indexer: Indexer, groups: Tensor, numbers: Tensor, most: int) -> None:
    """Programs hold a part of a row's scores each; of what a longer row leaves, the best are chosen again."""
    from recipes.components.gpu.choice_kernels import choose_among, choose_parts

    count, budget, device, early = len(groups), indexer.budget, groups.device, chained(groups)
    part = max(_CHOICE_PART, power_above(budget))
    parts = -(-most // part)
    best = torch.empty(count, parts, budget, dtype=torch.float32, device=device) if parts > 1 else scores
    candidates = torch.empty(count, parts, budget, dtype=torch.int32, device=device) if parts > 1 else groups
    choose_parts[(count, parts)](
        scores, placed.positions, best, candidates, groups, numbers, most, parts, indexer.ratio, budget, part, early,
        num_warps=8, **_launch(early),
    )  # fmt: skip
    if parts > 1:
        block = power_above(parts * budget)
        choose_among[(count,)](
            best, candidates, placed.positions, groups, parts, indexer.ratio, budget, part,
            min(block, 2 * _CHOICE_PART), block, early, num_warps=16, **_launch(early),
        )  # fmt: skip


def _launch(early: bool) -> dict[str, bool]:
    return {"launch_pdl": True} if early else {}


def _select(queries: Tensor, state: IndexState, placed: Placed, indexer: Indexer, found: Chosen) -> Chosen:
    for row, position in enumerate(placed.positions.tolist()):
        visible = (position + 1) // indexer.ratio
        chosen = torch.arange(visible, device=queries.device)
        if visible > indexer.budget:
            keys = state.groups[_group_places(placed.tables[row // placed.width], chosen + state.shift, indexer.ratio)]
            scores = (queries[row].float() @ keys.float().T).relu().sum(0)
            ranked = torch.sort(scores, descending=True, stable=True).indices[: indexer.budget]
            chosen = ranked.sort().values
        found.groups[row, : len(chosen)] = chosen.int()
        found.numbers[row] = len(chosen)
    return found


def attend_chosen(
    queries: Tensor,
    projected: Tensor,
    pages: Tensor,
    placed: Placed,
    chosen: Chosen,
    indexer: Indexer,
    heads: Heads,
    shift: int = 0,
    since: int = 0,
) -> Tensor:
    """[R, queries * size]: attention of `queries` [R, heads, size] to the chosen groups and the open tail, gated.

    A head's gate lies behind its query in `projected` [R, heads * 2 * size], whose rows may lie apart. Position p lies
    at place p + `shift` of its request's pages; a row may stand up to `since` positions behind the one at which it
    chose.
    """
    if not runs_triton(queries):
        return _attend_chosen(queries, projected, pages, placed, chosen, indexer, heads, shift)
    if placed.width > CHUNK_ROWS:
        from recipes.components.gpu.chunk_attention import attend_rows_chosen

        return attend_rows_chosen(queries, projected, pages, placed, chosen, indexer, heads, shift)
    return _attend_blocks(queries, projected, pages, placed, chosen, indexer, heads, shift, since)


def _attend_blocks(
    queries: Tensor, projected: Tensor, pages: Tensor, placed: Placed, chosen: Chosen, indexer: Indexer, heads: Heads,
    shift: int, since: int,
) -> Tensor:  # fmt: skip
    from recipes.components.gpu.attention import tensor_type
    from recipes.components.gpu.chosen_attention_kernels import attend_blocks, merge_blocks

    count, device, early = len(queries), queries.device, chained(queries)
    wide = max(16, power_above(heads.size))
    blocks = -(-(indexer.budget * indexer.ratio + indexer.ratio - 1 + since) // _TOKENS_AT_ONCE)
    parts = torch.empty(count, heads.queries, blocks, heads.size, dtype=torch.float32, device=device)
    sums = torch.empty(count, heads.queries, blocks, 2, dtype=torch.float32, device=device)
    out = torch.empty(count, heads.queries * heads.size, dtype=queries.dtype, device=device)
    attend_blocks[(count * heads.keys, blocks)](
        queries, pages, placed.positions, placed.tables, chosen.groups, chosen.numbers, chosen.anchors, parts, sums,
        placed.tables.shape[1], heads.size**-0.5, placed.width, heads.group, heads.keys, heads.size, wide, PAGE_TOKENS,
        indexer.ratio, indexer.budget, max(16, power_above(heads.group)), _TOKENS_AT_ONCE, blocks, shift,
        tensor_type(pages), early, num_warps=4, **_launch(early),
    )  # fmt: skip
    merge_blocks[(count, heads.queries)](
        parts, sums, projected, placed.positions, chosen.numbers, chosen.anchors, out, projected.stride(0),
        heads.queries, heads.size, wide, indexer.ratio, _TOKENS_AT_ONCE, blocks, power_above(blocks), early,
        num_warps=4, **_launch(early),
    )  # fmt: skip
    return out


def _attend_chosen(
    queries: Tensor, projected: Tensor, pages: Tensor, placed: Placed, chosen: Chosen, indexer: Indexer, heads: Heads,
    shift: int,
) -> Tensor:  # fmt: skip
    found = torch.zeros(len(queries), heads.queries * heads.size)
    gates = projected.float().reshape(len(queries), heads.queries, 2, heads.size)[:, :, 1].flatten(1)
    for row, position in enumerate(placed.positions.tolist()):
        if position < 0:
            continue
        groups = chosen.groups[row, : int(chosen.numbers[row])].long()
        tail = torch.arange((int(chosen.anchors[row]) + 1) // indexer.ratio * indexer.ratio, position + 1)
        seen = torch.cat([(groups[:, None] * indexer.ratio + torch.arange(indexer.ratio)).flatten(), tail])
        place = token_rows(placed.tables[row // placed.width].long(), shift, position + 1)[seen]
        state = pages[place // PAGE_TOKENS, :, :, place % PAGE_TOKENS].float().permute(1, 2, 0, 3)
        mask = torch.ones(1, len(seen), dtype=torch.bool)
        found[row] = attend_selected(queries[row : row + 1].float(), state[0], state[1], mask)[0]
    return (found * gates.sigmoid()).to(queries.dtype)
