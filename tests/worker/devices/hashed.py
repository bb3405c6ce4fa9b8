"""A model and a drafter of hashes, all tensors and capturable: what they say shows every fault of pages and of state.

A row's answer is a hash of the prefix that its pages hold and of a recurrent state that each token advances; a place
that was never written makes it NaN. Logits are integers over a power of two, so two devices agree bit by bit. `Packed*`
puts them behind the CPU's contract: the same arithmetic, lane by lane.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from recipes.components.device_drafter import DeviceDrafts, DeviceTask
from recipes.components.device_model import DeviceRows
from recipes.components.device_state import DeviceState
from recipes.components.model import DraftTask, Lane, Proposal, Rows
from shared.errors import RowsLost
from shared.manifest import PAGE_TOKENS

HIDDEN = 3
_A, _B, _C = 0x5851F42D4C957F2D, 0x14057B7EF767814F, 0x369DEA0F31A53F85
_ALPHABET = 11


def mixed(words: Tensor) -> Tensor:
    """int64 to int64, every bit stirred."""
    words = (words ^ ((words >> 29) & ((1 << 35) - 1))) * _C
    return words ^ ((words >> 32) & ((1 << 32) - 1))


def hashed_logits(keys: Tensor, best: Tensor, vocab_size: int) -> Tensor:
    """float32 [n, V] of keys int64 [n]: `best` int64 [n] at 4, the others in [-8, 0) by hash."""
    ids = torch.arange(vocab_size, device=keys.device)
    logits = ((mixed((keys[:, None] + 1) * _A + ids * _B) >> 40) & 0xFFFFF).float() / 2.0**17 - 8.0
    return logits.scatter(1, best[:, None], 4.0)


class HashedModel:
    """`DeviceModel`. Rows of padding lanes and masked rows write to the last page and the last state row."""

    vocab_size: int
    hidden_size = HIDDEN

    def __init__(self, vocab_size: int, pages: int, slots: int, snapshots: int, device: torch.device) -> None:
        self.vocab_size, self._slots = vocab_size, slots
        self._pool = torch.zeros((pages + 1) * PAGE_TOKENS, dtype=torch.int64, device=device)
        self._scratch = pages * PAGE_TOKENS
        self._state = torch.zeros(slots + 1, dtype=torch.int64, device=device)
        self._candidates = torch.zeros(slots + 1, 257, dtype=torch.int64, device=device)
        self._snapshots = torch.zeros(snapshots + 1, dtype=torch.int64, device=device)
        self.faults = torch.zeros(slots + 1, dtype=torch.int32, device=device)
        self.losing = torch.zeros(1, dtype=torch.int32, device=device)
        """Bits of `Fault` that every lane of the next forwards gets."""

    def _safe(self, slots: Tensor) -> Tensor:
        return torch.where(slots >= 0, slots, self._slots)

    def forward(self, rows: DeviceRows) -> Tensor:
        lanes, width, device = len(rows.slots), rows.width, rows.tokens.device
        steps = torch.arange(width, device=device)
        valid = (steps < rows.counts[:, None]) & (rows.slots >= 0)[:, None]
        tokens, positions = rows.tokens.view(lanes, width), rows.first[:, None] + steps
        tables = rows.tables.long()
        pages = tables.gather(1, (positions // PAGE_TOKENS).clamp(max=tables.shape[1] - 1))
        places = torch.where(valid, pages * PAGE_TOKENS + positions % PAGE_TOKENS, self._scratch)
        self._pool.index_copy_(0, places.flatten(), tokens.flatten() + 1)
        every = torch.arange(tables.shape[1] * PAGE_TOKENS, device=device)
        held = self._pool[tables[:, every // PAGE_TOKENS] * PAGE_TOKENS + every % PAGE_TOKENS]
        sums = mixed(held * _A + every * _B).cumsum(1)
        gaps = (held == 0).long().cumsum(1)
        at = torch.where(valid, positions, 0)
        state, safe = self._state[self._safe(rows.slots)], self._safe(rows.slots)
        found = [state]
        for step in range(width):
            found.append(found[-1] * _C + tokens[:, step] + 1)
        self._candidates[:, : width + 1].index_copy_(0, safe, torch.stack(found, 1))
        keys = mixed(sums.gather(1, at) + torch.stack(found[1:], 1))
        parts = (keys & 0xFFFFFF, (keys >> 24) & 0xFFFFFF, mixed(tokens + 1) % _ALPHABET + 3)
        vectors = torch.stack(parts, 2).float()
        whole = valid & (gaps.gather(1, at) == 0)
        bits = torch.where(rows.slots >= 0, self.losing, 0)
        self.faults.index_copy_(0, safe, self.faults[safe] | bits)
        return torch.where(whole[..., None], vectors, torch.nan).flatten(0, 1)

    def logits(self, vectors: Tensor) -> Tensor:
        finite = ~vectors.isnan().any(1)
        whole = torch.where(finite[:, None], vectors, 0.0).long()
        logits = hashed_logits(whole[:, 0] + (whole[:, 1] << 24), whole[:, 2], self.vocab_size)
        return torch.where(finite[:, None], logits, torch.nan)

    def commit(self, rows: DeviceRows, kept: Tensor) -> None:
        safe = self._safe(rows.slots)
        self._state.index_copy_(0, safe, self._candidates[safe].gather(1, kept[:, None])[:, 0])

    def export(self, rows: DeviceRows, kept: Tensor, target: Tensor) -> None:
        state = self._candidates[self._safe(rows.slots)].gather(1, kept[:, None])[:, 0]
        self._snapshots.index_copy_(0, torch.where(target >= 0, target, len(self._snapshots) - 1), state)

    def reset(self, slot: Tensor) -> None:
        self._state.index_fill_(0, self._safe(slot), 0)

    def snapshot(self, slot: Tensor, target: Tensor) -> None:
        row = torch.where((target >= 0) & (slot >= 0), target, len(self._snapshots) - 1)
        self._snapshots.index_copy_(0, row, self._state[self._safe(slot)])

    def restore(self, source: Tensor, slot: Tensor) -> None:
        row = torch.where(source >= 0, source, len(self._snapshots) - 1)
        self._state.index_copy_(0, self._safe(torch.where(source >= 0, slot, -1)), self._snapshots[row])


class HashedDrafter:
    """`DeviceDrafter`: up to `limits` drafts from a soft law of its own, whose favourite is often the target's."""

    def __init__(self, vocab_size: int, slots: int, snapshots: int, device: torch.device) -> None:
        self._vocab_size, self._slots = vocab_size, slots
        self._state = torch.zeros(slots + 1, dtype=torch.int64, device=device)
        self._snapshots = torch.zeros(snapshots + 1, dtype=torch.int64, device=device)

    def _safe(self, slots: Tensor) -> Tensor:
        return torch.where(slots >= 0, slots, self._slots)

    def propose(self, task: DeviceTask) -> DeviceDrafts:
        horizon, key = task.draws.shape[1], self._state[self._safe(task.slots)] + task.consumed
        previous, tokens, laws = task.pending, [], []
        for depth in range(horizon):
            key = mixed(key * _A + previous + 1)
            best = mixed(previous + 1) % _ALPHABET + 3
            law = torch.softmax(hashed_logits(key, best, self._vocab_size).double(), 1)
            target = task.draws[:, depth, None].double() * law.sum(1, keepdim=True)
            previous = torch.searchsorted(law.cumsum(1), target).clamp(max=self._vocab_size - 1)[:, 0]
            tokens.append(previous)
            laws.append(law.float())
        offered = torch.minimum(task.limits, mixed(task.pending + task.consumed) % 8)
        return DeviceDrafts(torch.stack(tokens, 1), offered, torch.stack(laws, 1))

    def absorb(self, rows: DeviceRows, vectors: Tensor, kept: Tensor) -> None:
        safe, tokens = self._safe(rows.slots), rows.tokens.view(-1, rows.width)
        seen = torch.where(vectors.isnan(), 0.0, vectors).long().view(len(safe), rows.width, HIDDEN)
        state = self._state[safe]
        for step in range(rows.width):
            state = torch.where(step < kept, state * _C + tokens[:, step] + seen[:, step, 0], state)
        self._state.index_copy_(0, safe, state)

    def reset(self, slot: Tensor) -> None:
        self._state.index_fill_(0, self._safe(slot), 0)

    def snapshot(self, slot: Tensor, target: Tensor) -> None:
        row = torch.where((target >= 0) & (slot >= 0), target, len(self._snapshots) - 1)
        self._snapshots.index_copy_(0, row, self._state[self._safe(slot)])

    def export(self, rows: DeviceRows, vectors: Tensor, kept: Tensor, target: Tensor) -> None:
        # A draft cache is positional: what lies behind the boundary is cut off again, here by taking what was absorbed.
        row = torch.where(target >= 0, target, len(self._snapshots) - 1)
        self._snapshots.index_copy_(0, row, self._state[self._safe(rows.slots)])

    def restore(self, source: Tensor, slot: Tensor) -> None:
        row = torch.where(source >= 0, source, len(self._snapshots) - 1)
        self._state.index_copy_(0, self._safe(torch.where(source >= 0, slot, -1)), self._snapshots[row])


def _one(value: int) -> Tensor:
    return torch.tensor([value])


def rows_of_lane(lane: Lane, tokens: Tensor) -> DeviceRows:
    """One lane as the device's contract has it."""
    first, count = _one(lane.first), _one(lane.count)
    return DeviceRows(tokens, _one(lane.slot), first, count, lane.pages.int()[None], lane.count)


class PackedModel:
    """`Model` over a `HashedModel` on the CPU."""

    def __init__(self, model: HashedModel) -> None:
        self._model = model
        self.vocab_size, self.hidden_size = model.vocab_size, model.hidden_size
        self.losing = False

    def forward(self, rows: Rows) -> Tensor:
        """Raises `RowsLost` while it is `losing`."""
        parts = [rows.tokens[lane.start : lane.start + lane.count] for lane in rows.lanes]
        found = [self._model.forward(rows_of_lane(lane, part)) for lane, part in zip(rows.lanes, parts, strict=True)]
        if self.losing:
            raise RowsLost("a test's row server is gone")
        return torch.cat(found)

    def logits(self, vectors: Tensor) -> Tensor:
        return self._model.logits(vectors)

    def commit(self, lane: Lane, kept: int) -> None:
        self._model.commit(rows_of_lane(lane, torch.zeros(lane.count, dtype=torch.int64)), _one(kept))

    def export(self, lane: Lane, kept: int, target: int) -> None:
        self._model.export(rows_of_lane(lane, torch.zeros(lane.count, dtype=torch.int64)), _one(kept), _one(target))

    def reset(self, slot: int) -> None:
        self._model.reset(_one(slot))

    def adopt(self, slot: int, consumed: int) -> None:
        raise NotImplementedError("pages alone do not continue a prefix of this model")

    def snapshot(self, slot: int, target: int) -> None:
        self._model.snapshot(_one(slot), _one(target))

    def restore(self, source: int, slot: int) -> None:
        self._model.restore(_one(source), _one(slot))


class PackedDrafter:
    """`Drafter` over a `HashedDrafter` on the CPU."""

    def __init__(self, drafter: HashedDrafter, horizon: int) -> None:
        self._drafter, self._horizon = drafter, horizon

    def propose(self, task: DraftTask) -> Proposal:
        # A draft depends on those before it alone, so the captured horizon may exceed the lane's limit.
        draws = torch.ones(1, self._horizon)
        draws[0, : task.limit] = task.draws
        slot, consumed, pending, limit = map(_one, (task.slot, task.consumed, task.pending, task.limit))
        state = cast(DeviceState, None)  # not read
        found = self._drafter.propose(DeviceTask(slot, slot, consumed, pending, limit, slot, draws, state))
        count = int(found.counts[0])
        return Proposal(found.tokens[0, :count], found.law[0, :count])

    def absorb(self, lane: Lane, tokens: Tensor, vectors: Tensor, kept: int) -> None:
        self._drafter.absorb(rows_of_lane(lane, tokens), vectors, _one(kept))

    def reset(self, slot: int) -> None:
        self._drafter.reset(_one(slot))

    def snapshot(self, slot: int, target: int) -> None:
        self._drafter.snapshot(_one(slot), _one(target))

    def export(self, lane: Lane, vectors: Tensor, kept: int, target: int) -> None:
        rows = rows_of_lane(lane, torch.zeros(lane.count, dtype=torch.int64))
        self._drafter.export(rows, vectors, _one(kept), _one(target))

    def restore(self, source: int, slot: int) -> None:
        self._drafter.restore(_one(source), _one(slot))
