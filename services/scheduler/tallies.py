"""Counters of this process, as plain numbers: the hot path only adds, `exposition.py` shows them. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from services.scheduler.survival import Outcome
from shared.manifest import MAXIMUM_DRAFTS, Kind


@dataclass(slots=True)
class RoundTally:
    """Rounds of one shape and the device's time for them, in nanoseconds."""

    rounds: int = 0
    nanoseconds: int = 0


@dataclass(slots=True)
class Tallies:
    """Draft counts hold acknowledged rounds alone."""

    finished: Counter[str] = field(default_factory=Counter)
    """By reason: stop, length, cancelled."""
    failed: Counter[str] = field(default_factory=Counter)
    """By wire code."""
    prompt_tokens: int = 0
    generation_tokens: int = 0
    drafted_rounds: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    accepted_by_depth: list[int] = field(default_factory=lambda: [0] * MAXIMUM_DRAFTS)
    rounds: dict[tuple[Kind, int, int], RoundTally] = field(default_factory=dict)
    idle_nanoseconds: int = 0
    stale_records: int = 0
    faulty_records: int = 0

    def note_round(self, kind: Kind, batch: int, tokens: int, nanoseconds: int, idle: int) -> None:
        """A round is over."""
        tally = self.rounds.setdefault((kind, batch, tokens), RoundTally())
        tally.rounds += 1
        tally.nanoseconds += nanoseconds
        self.idle_nanoseconds += idle

    def note_drafts(self, outcome: Outcome) -> None:
        """Drafts that the device verified have been acknowledged."""
        if outcome.verified:
            self.drafted_rounds += 1
            self.draft_tokens += outcome.verified
            self.accepted_tokens += outcome.accepted
            for depth in range(min(outcome.accepted, MAXIMUM_DRAFTS)):
                self.accepted_by_depth[depth] += 1


@dataclass(frozen=True, slots=True)
class Gauges:
    """State at the moment of a scrape. `page_usage` is a share of one."""

    running: int
    waiting: int
    page_usage: float
    outstanding: int
    preemptions: int
    refused: int
