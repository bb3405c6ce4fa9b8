"""Sparse attention with an indexer: groups of four tokens are scored, the best ones and the open tail are attended to.

Runs in the worker on the CPU, float32. Semantics in design/kernels.md, section 8: a group is represented by the mean
of its raw keys, normalised and rotated to its first token; ties go to the lower group; validity follows from logical
lengths and tags, never from what happens to be stored.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import relu, scaled_dot_product_attention

from recipes.components.hyperconnection import centred_rms_norm
from shared.errors import HistoryMissing

NOTHING = -1
"""Tag of a ring place that holds no position."""


def rotate_half(x: Tensor, positions: Tensor, size: int, theta: float) -> Tensor:
    """Rotary positions on the first `size` elements of `x` [R, heads, D]; the two halves of that part are pairs."""
    rates = theta ** -(torch.arange(0, size, 2, dtype=torch.float32) / size)
    angles = (positions.to(torch.float32).unsqueeze(-1) * rates).repeat(1, 2).unsqueeze(1)
    part, rest = x[..., :size], x[..., size:]
    first, second = part.chunk(2, dim=-1)
    turned = torch.cat([-second, first], dim=-1)
    return torch.cat([part * angles.cos() + turned * angles.sin(), rest], dim=-1)


@dataclass(frozen=True, slots=True)
class Indexer:
    """Constants of the selector. `budget` counts groups; `theta` and `rotary` as in `rotate_half`."""

    heads: int
    size: int
    ratio: int
    budget: int
    rotary: int
    theta: float
    epsilon: float

    def queries(self, projected: Tensor, weight: Tensor, positions: Tensor) -> Tensor:
        """Index queries [R, heads, size] of `projected` [R, heads * size]."""
        split = torch.unflatten(projected, -1, (self.heads, self.size))
        return rotate_half(centred_rms_norm(split, weight, self.epsilon), positions, self.rotary, self.theta)

    def representatives(self, raw: Tensor, weight: Tensor, groups: Tensor) -> Tensor:
        """Keys [n, size] of complete groups int64 [n] from their raw keys [n, ratio, size]."""
        mean = centred_rms_norm(raw.mean(1), weight, self.epsilon).unsqueeze(1)
        return rotate_half(mean, groups * self.ratio, self.rotary, self.theta).squeeze(1)

    def selected(self, queries: Tensor, keys: Tensor, positions: Tensor) -> Tensor:
        """Which positions each row attends to: bool [R, max(positions) + 1].

        `keys` [G, size] are the groups' representatives from group 0 on, at least all that the last row can see.
        """
        visible = (positions + 1) // self.ratio
        length = int(positions.max()) + 1
        found = torch.zeros(len(positions), length, dtype=torch.bool)
        places = torch.arange(length)
        if int(visible.max()) <= self.budget:
            return places <= positions.unsqueeze(-1)
        scores = relu(torch.einsum("rhd,gd->rhg", queries, keys)).sum(1) * self.size**-0.5
        for row, (position, seen) in enumerate(zip(positions.tolist(), visible.tolist(), strict=True)):
            ranked = torch.sort(scores[row, :seen], descending=True, stable=True).indices[: self.budget]
            chosen = (ranked.unsqueeze(-1) * self.ratio + torch.arange(self.ratio)).flatten()
            found[row, chosen] = True
            found[row, seen * self.ratio : position + 1] = True
        return found


def attend_selected(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """[R, heads * size] of `queries` [R, heads, size] over `keys`, `values` [kv heads, n, size] where `mask` [R, n]."""
    rows, heads, size = queries.shape
    groups = heads // keys.shape[0]
    stacked = queries.view(rows, keys.shape[0], groups, size).permute(1, 2, 0, 3).reshape(keys.shape[0], -1, size)
    found = scaled_dot_product_attention(stacked, keys, values, attn_mask=mask.repeat(groups, 1))
    return found.view(keys.shape[0], groups, rows, size).permute(2, 0, 1, 3).reshape(rows, -1)


def ring_capacity(ratio: int, drafts: int) -> int:
    """Places that keep an open group and a round's candidates apart: whole groups of at least ratio + drafts."""
    return ratio * -(-(ratio + drafts) // ratio)


class RawKeyRings:
    """Raw index keys of the newest positions of every slot: `capacity` places a slot, each tagged with its position.

    A stale payload is never trusted: a place whose tag is not the position that is asked for means missing history.
    """

    def __init__(self, slots: int, capacity: int, size: int) -> None:
        self.keys = torch.zeros(slots, capacity, size)
        self.tags = torch.full((slots, capacity), NOTHING, dtype=torch.int64)
        self._capacity = capacity

    def read(self, slot: int, positions: Tensor) -> Tensor:
        """Keys [n, size] of these positions. Raises `HistoryMissing` if one of them is not held."""
        places = positions % self._capacity
        if not torch.equal(self.tags[slot, places], positions):
            raise HistoryMissing(f"slot {slot} does not hold the raw index keys of positions {positions.tolist()}")
        return self.keys[slot, places]

    def write(self, slot: int, first: int, keys: Tensor) -> None:
        """Keeps the newest of `keys` [n, size] at positions first .. first + n."""
        kept = keys[-self._capacity :]
        positions = torch.arange(first + len(keys) - len(kept), first + len(keys))
        places = positions % self._capacity
        self.keys[slot, places] = kept
        self.tags[slot, places] = positions

    def keep(self, slot: int, consumed: int) -> None:
        """Forgets positions from `consumed` on: candidates that were rejected."""
        self.tags[slot].masked_fill_(self.tags[slot] >= consumed, NOTHING)

    def copy(self, source: int, target: int, consumed: int) -> None:
        """Copies a slot's ring as a prefix of `consumed` tokens left it: later positions are not taken along."""
        self.keys[target] = self.keys[source]
        tags = self.tags[source]
        self.tags[target] = torch.where(tags < consumed, tags, NOTHING)

    def clear(self, slot: int) -> None:
        """Holds nothing any more."""
        self.tags[slot] = NOTHING
