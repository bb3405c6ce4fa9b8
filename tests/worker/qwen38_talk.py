"""One request over the tiny Qwen3.8 with drafts forced from what it will say, and the logits that rounds computed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import torch
from torch import Tensor

from recipes.components.model import Rows
from recipes.components.request_state import RequestState
from recipes.qwen38.target import Target
from shared.frames import Meta, Source, Status
from shared.messages.common import Sampling
from tests.worker.host import LanePlan, Record

GREEDY = Sampling(temperature=0.0)
VOCABULARY = 256
"""Prompts and wrong drafts keep clear of end tokens."""


def prompt_of(seed: int, length: int) -> tuple[int, ...]:
    """Any bytes: more n-grams than the letters of answers have."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(0, VOCABULARY, (length,), generator=generator).tolist())


class Watch:
    """Notes the raw logits that the programs computed: by slot, the row at each position, the newest one."""

    def __init__(self, model: Target, state: RequestState) -> None:
        self._state, self._forward, self._logits = state, model.forward, model.logits
        self._rows: tuple[Rows, Tensor] | None = None
        self.seen: dict[int, dict[int, Tensor]] = {slot: {} for slot in range(self._state.slots)}
        model.forward, model.logits = self.forward, self.logits  # type: ignore[method-assign]

    def forward(self, rows: Rows) -> Tensor:
        vectors = self._forward(rows)
        self._rows = rows, vectors
        return vectors

    def logits(self, vectors: Tensor) -> Tensor:
        found = self._logits(vectors)
        if self._rows is not None and vectors.data_ptr() == self._rows[1].data_ptr():
            for lane in self._rows[0].lanes:
                for row in range(lane.start, min(lane.start + lane.count, len(found))):
                    self.seen[lane.slot][lane.first + row - lane.start] = found[row]
        else:
            for slot in range(self._state.slots):
                if vectors.data_ptr() == self._state.vectors[slot].data_ptr():
                    self.seen[slot][int(self._state.consumed[slot]) - 1] = found[0]
        return found


@dataclass(slots=True)
class Talk:
    """One request in a slot: what it said, and what it will say if nothing is wrong."""

    slot: int
    prompt: tuple[int, ...]
    truth: list[int]
    record: Record
    said: list[int]
    counts: Counter[tuple[int, int]] = field(default_factory=Counter)
    """Rounds by (width, accepted drafts)."""
    pairs: Counter[tuple[int, int]] = field(default_factory=Counter)
    """Rounds by (accepted drafts of the round before, width)."""

    @property
    def running(self) -> bool:
        return self.record[Meta.STATUS] == Status.RUNNING

    @property
    def consumed(self) -> int:
        return len(self.prompt) + len(self.said) - 1

    def plan(self, width: int, right: int, export: tuple[int, int] = (-1, 0)) -> LanePlan:
        """A lane of `width` rows: `right` drafts of its own truth, then drafts that are wrong."""
        at = len(self.said)
        ahead = [*self.truth[at : at + width], *[0] * width]
        drafts = [*ahead[:right], *((token + 1) % VOCABULARY for token in ahead[right : width - 1])]
        before = self.said[-2] if at > 1 else self.prompt[-1]
        return LanePlan(
            self.slot, width, (before, self.said[-1], *drafts), self.consumed - 1, Source.PROMPT, export[0], export[1]
        )

    def take(self, record: Record) -> None:
        assert not record.faults
        self.pairs[self.record[Meta.ACCEPTED], record[Meta.WIDTH]] += 1
        self.counts[record[Meta.WIDTH], record[Meta.ACCEPTED]] += 1
        self.record = record
        self.said.extend(record.tokens)
