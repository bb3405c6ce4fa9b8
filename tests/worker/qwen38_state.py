"""The whole committed state of a slot of the tiny Qwen3.8, by name: what two ways to the same tokens are compared by.

Only what can be reached counts: rows of pages below the consumed count, complete groups, ring places of the open
group. That nothing else can be reached is the business of `poison`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from recipes.components.paged_attention import token_rows
from recipes.components.request_state import RequestState
from recipes.qwen38.cache import AttentionCache
from recipes.qwen38.mtp import MtpDrafter
from recipes.qwen38.target import Target
from services.worker.snapshots import Snapshots
from shared.manifest import PAGE_TOKENS

JUNK = 77
"""Stands in integers where NaN stands in floats."""


def committed_state(target: Target, drafter: MtpDrafter, slot: int, pages: Tensor) -> dict[str, Tensor]:
    """Copies of every kind of state of `slot`, whose pages are `pages` int64 [n]."""
    found, consumed = recurrent_state(target, drafter, slot), int(target.state.consumed[slot])
    for layer, cache in target.caches.items():
        found |= _cached(f"layer {layer}", cache, slot, pages, consumed, 0)
    found |= _cached("drafter", drafter.cache, slot, pages, max(consumed - 1, 0), 1)
    return {name: part.clone() for name, part in found.items()}


def recurrent_state(target: Target, drafter: MtpDrafter, row: int) -> dict[str, Tensor]:
    """Copies of what lies in no page, of a slot or of the snapshot row behind the slots."""
    state = target.state
    found = {"consumed": state.consumed[row], "tokens": state.tokens[row], "n-grams": state.ngram_history[row]}
    for layer in state.layers:
        found[f"matrix {layer}"] = state.matrices[layer][row]
        found[f"convolution {layer}"] = state.convolutions[layer][row]
    found |= {"drafter's count": drafter.consumed[row], "tail": drafter.tails[row]}
    return {name: part.clone() for name, part in found.items()}


def _cached(name: str, cache: AttentionCache, slot: int, pages: Tensor, count: int, shift: int) -> dict[str, Tensor]:
    """Keys and values of `count` rows, their complete groups, and the open group's raw keys with their tags."""
    ratio = cache.ratio
    rows, groups = token_rows(pages, shift, count), group_places(pages, shift, count // ratio, ratio)
    opened = torch.arange(count // ratio * ratio, count)
    return {
        f"{name}: keys": cache.keys[:, rows],
        f"{name}: values": cache.values[:, rows],
        f"{name}: groups": cache.groups[groups],
        f"{name}: open group": cache.rings.read(slot, opened),
        f"{name}: rejected tags": cache.rings.tags[slot][cache.rings.tags[slot] >= count],
    }


def group_places(pages: Tensor, first: int, count: int, ratio: int) -> Tensor:
    """Where groups first .. first + count of a request lie in the pool."""
    each, groups = PAGE_TOKENS // ratio, torch.arange(first, first + count)
    return pages[groups // each] * each + groups % each


def poison(
    target: Target, drafter: MtpDrafter, state: RequestState, snapshots: Snapshots, held: dict[int, Tensor]
) -> None:
    """Makes NaN of all that no request and no snapshot may read.

    `held` maps rows, slots first and snapshot rows behind them, to the pages of what lies in them.
    """
    assert not target._candidates, "a round left candidates behind"
    recurrent, rows = target.state, len(target.state.consumed)
    free = torch.tensor([row for row in range(rows) if row not in held], dtype=torch.int64)
    parts = [*recurrent.matrices.values(), *recurrent.convolutions.values(), recurrent.ngram_history, drafter.tails]
    for part in parts:
        part[free] = torch.nan
    for numbers in (recurrent.tokens, recurrent.consumed, drafter.consumed):
        numbers[free] = JUNK
    state.vectors[free[free < state.slots]] = torch.nan
    snapshots._vectors[free[free >= state.slots] - state.slots] = torch.nan
    for cache in target.caches.values():
        _poison_cache(cache, {row: int(recurrent.consumed[row]) for row in held}, held, 0)
    pairs = {row: max(int(recurrent.consumed[row]) - 1, 0) for row in held}
    _poison_cache(drafter.cache, pairs, held, 1)


def _poison_cache(cache: AttentionCache, counts: dict[int, int], held: dict[int, Tensor], shift: int) -> None:
    """All but the first `counts[row]` places of each row, their complete groups and the open group's raw keys."""
    ratio = cache.ratio
    unread = torch.ones(cache.keys.shape[1], dtype=torch.bool)
    unseen = torch.ones(len(cache.groups), dtype=torch.bool)
    unknown = torch.ones_like(cache.rings.tags, dtype=torch.bool)
    for row, count in counts.items():
        unread[token_rows(held[row], shift, count)] = False
        unseen[group_places(held[row], shift, count // ratio, ratio)] = False
        tags = cache.rings.tags[row]
        unknown[row] = (tags < count // ratio * ratio) | (tags >= count)
    cache.keys[:, unread] = torch.nan
    cache.values[:, unread] = torch.nan
    cache.groups[unseen] = torch.nan
    cache.rings.keys[unknown] = torch.nan
