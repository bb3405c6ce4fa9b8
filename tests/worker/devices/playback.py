"""A model and a drafter of the CPU's contract, played back on a device: so T1 and D1 run inside captured rounds.

The CPU's programs run a round first, over `Taped*`. What their model said of each row and what their drafter offered
is then put into tables on the device, for that round alone. A device's row of another token or position than the CPU's
gets NaN, and a drafter that is asked otherwise offers nothing: what differs shows itself in the records.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from recipes.components.device_drafter import DeviceDrafts, DeviceTask
from recipes.components.device_model import DeviceRows
from recipes.components.model import Drafter, DraftTask, Model, Proposal, Rows
from shared.manifest import Manifest

_NOTHING = -7
Logits = Callable[[Tensor], Tensor]


@dataclass(slots=True)
class Tape:
    """What the CPU computed in the round that ran last."""

    rows: list[tuple[int, int, Tensor, Tensor]] = field(default_factory=list)
    """Slot, first position, tokens int64 [n], vectors float32 [n, H]."""
    proposals: list[tuple[DraftTask, Proposal]] = field(default_factory=list)

    def clear(self) -> None:
        """Forgets the round."""
        self.rows.clear()
        self.proposals.clear()


class TapedModel:
    """A `Model` whose rows are noted."""

    def __init__(self, model: Model, tape: Tape) -> None:
        self._model, self._tape = model, tape
        self.vocab_size, self.hidden_size = model.vocab_size, model.hidden_size
        self.logits, self.commit, self.export = model.logits, model.commit, model.export
        self.reset, self.adopt, self.snapshot, self.restore = model.reset, model.adopt, model.snapshot, model.restore

    def forward(self, rows: Rows) -> Tensor:
        vectors = self._model.forward(rows)
        for lane in rows.lanes:
            part = slice(lane.start, lane.start + lane.count)
            self._tape.rows.append((lane.slot, lane.first, rows.tokens[part], vectors[part].float()))
        return vectors


class TapedDrafter:
    """A `Drafter` whose proposals are noted."""

    def __init__(self, drafter: Drafter, tape: Tape) -> None:
        self._drafter, self._tape = drafter, tape
        self.reset, self.snapshot, self.restore = drafter.reset, drafter.snapshot, drafter.restore
        self.absorb, self.export = drafter.absorb, drafter.export

    def propose(self, task: DraftTask) -> Proposal:
        found = self._drafter.propose(task)
        self._tape.proposals.append((task, found))
        return found


class PlayedModel:
    """`DeviceModel` over the tape; `logits` in tensor operations of any device, that may be captured."""

    def __init__(self, manifest: Manifest, logits: Logits, tape: Tape, device: torch.device) -> None:
        geometry = manifest.geometry
        self.vocab_size, self.hidden_size, self._tape = geometry.vocab_size, geometry.hidden_size, tape
        self.logits = logits
        self._slots, self._longest = geometry.concurrency, geometry.context_length + 8
        shape = (geometry.concurrency + 1, self._longest)
        self._tokens = torch.full(shape, _NOTHING, dtype=torch.int64, device=device)
        self._vectors = torch.zeros(*shape, geometry.hidden_size, device=device)

    def load(self) -> None:
        """Puts the rows of the round into the tables. Not inside a round."""
        tokens, vectors = torch.full(self._tokens.shape, _NOTHING), torch.zeros(self._vectors.shape)
        for slot, first, own, said in self._tape.rows:
            tokens[slot, first : first + len(own)] = own
            vectors[slot, first : first + len(own)] = said
        self._tokens.copy_(tokens)
        self._vectors.copy_(vectors)

    def forward(self, rows: DeviceRows) -> Tensor:
        lanes, width = len(rows.slots), rows.width
        steps = torch.arange(width, device=rows.tokens.device)
        valid = (steps < rows.counts[:, None]) & (rows.slots >= 0)[:, None]
        places = torch.where(valid, rows.first[:, None] + steps, 0).clamp(0, self._longest - 1)
        slots = torch.where(rows.slots >= 0, rows.slots, self._slots)[:, None].expand(lanes, width)
        same = valid & (self._tokens[slots, places] == rows.tokens.view(lanes, width))
        return torch.where(same[..., None], self._vectors[slots, places], torch.nan).flatten(0, 1)

    def commit(self, rows: DeviceRows, kept: Tensor) -> None:
        """The tape knows."""

    def export(self, rows: DeviceRows, kept: Tensor, target: Tensor) -> None:
        """The tape knows."""

    def reset(self, slot: Tensor) -> None:
        """The tape knows."""

    def adopt(self, slot: Tensor, consumed: Tensor) -> None:
        """The tape knows."""

    def snapshot(self, slot: Tensor, target: Tensor) -> None:
        """The tape knows."""

    def restore(self, source: Tensor, slot: Tensor) -> None:
        """The tape knows."""


class PlayedDrafter:
    """`DeviceDrafter` over the tape."""

    def __init__(self, manifest: Manifest, tape: Tape, device: torch.device) -> None:
        slots, self._tape = manifest.geometry.concurrency + 1, tape
        depth, vocab = max(manifest.verification_widths) - 1, manifest.geometry.vocab_size
        self._asked = torch.full((slots, 3), _NOTHING, dtype=torch.int64, device=device)
        self._counts = torch.zeros(slots, dtype=torch.int64, device=device)
        self._tokens = torch.zeros(slots, depth, dtype=torch.int64, device=device)
        self._draws = torch.zeros(slots, depth, device=device)
        self._law = torch.zeros(slots, depth, vocab, device=device)

    def load(self) -> None:
        """Puts the proposals of the round into the tables. Not inside a round."""
        asked, counts = torch.full(self._asked.shape, _NOTHING), torch.zeros(self._counts.shape, dtype=torch.int64)
        tokens, draws = torch.zeros(self._tokens.shape, dtype=torch.int64), torch.zeros(self._draws.shape)
        law = torch.full(self._law.shape, torch.nan)
        for task, found in self._tape.proposals:
            slot, count = task.slot, len(found.tokens)
            asked[slot] = torch.tensor([task.consumed, task.pending, task.limit])
            counts[slot], draws[slot, : task.limit] = count, task.draws
            tokens[slot, :count], law[slot, :count] = found.tokens, found.law
        for table, value in zip(
            (self._asked, self._counts, self._tokens, self._draws, self._law), (asked, counts, tokens, draws, law),
            strict=True,
        ):  # fmt: skip
            table.copy_(value)

    def propose(self, task: DeviceTask) -> DeviceDrafts:
        depth, rows = task.draws.shape[1], task.rows
        asked = torch.stack([task.consumed, task.pending, task.limits], 1)
        steps = torch.arange(depth, device=rows.device)
        drawn = (self._draws[rows, :depth] == task.draws) | (steps >= task.limits[:, None])
        same = (self._asked[rows] == asked).all(1) & drawn.all(1)
        counts = torch.where(same, self._counts[rows], 0)
        return DeviceDrafts(self._tokens[rows, :depth], counts, self._law[rows, :depth])

    def absorb(self, rows: DeviceRows, vectors: Tensor, kept: Tensor) -> None:
        """The tape knows."""

    def reset(self, slot: Tensor) -> None:
        """The tape knows."""

    def snapshot(self, slot: Tensor, target: Tensor) -> None:
        """The tape knows."""

    def export(self, rows: DeviceRows, vectors: Tensor, kept: Tensor, target: Tensor) -> None:
        """The tape knows."""

    def restore(self, source: Tensor, slot: Tensor) -> None:
        """The tape knows."""
