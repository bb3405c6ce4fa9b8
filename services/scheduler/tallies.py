"""Counters of this process, as plain numbers: the hot path only adds, `exposition.py` shows them. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from services.scheduler.survival import Outcome
from shared.frames import ROW_TOKENS, Source
from shared.histogram import Histogram
from shared.manifest import MAXIMUM_DRAFTS
from shared.metrics import LATENCY_BOUNDS

SOURCES = (Source.LEARNED, Source.HISTORY, Source.PROMPT)


def _latency() -> Histogram:
    return Histogram(LATENCY_BOUNDS)


def _by_depth() -> list[int]:
    return [0] * MAXIMUM_DRAFTS


def _by_source() -> dict[Source, list[int]]:
    return {source: _by_depth() for source in SOURCES}


def _add(counts: dict[Source, list[int]], copies: Source, copied: int, drafts: int) -> None:
    """The first `copied` of a row's drafts are of source `copies`, the others are learned."""
    total = min(drafts, MAXIMUM_DRAFTS)
    copied = max(min(copied, total), 0)
    if copied:
        row = counts[copies]
        for depth in range(copied):
            row[depth] += 1
    if copied < total:
        row = counts[Source.LEARNED]
        for depth in range(copied, total):
            row[depth] += 1


@dataclass(slots=True)
class Tallies:
    """Draft and token counts hold acknowledged rounds alone. Times in seconds of the loop's clock."""

    submitted: int = 0
    finished: Counter[str] = field(default_factory=Counter)
    """By reason: stop, length, cancelled."""
    failed: Counter[str] = field(default_factory=Counter)
    """By wire code."""
    prompt_tokens: int = 0
    generation_tokens: int = 0
    drafted_rounds: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    accepted_by_depth: list[int] = field(default_factory=_by_depth)
    offered_by_source: dict[Source, list[int]] = field(default_factory=_by_source)
    accepted_by_source: dict[Source, list[int]] = field(default_factory=_by_source)
    lanes: list[int] = field(default_factory=lambda: [0] * (ROW_TOKENS + 1))
    """By verified rows; the first is for records that make no sense."""
    stale_records: int = 0
    faulty_records: int = 0
    worker_attachments: int = 0
    worker_losses: int = 0
    queue_time: Histogram = field(default_factory=_latency)
    prefill_time: Histogram = field(default_factory=_latency)
    decode_time: Histogram = field(default_factory=_latency)
    inference_time: Histogram = field(default_factory=_latency)

    def note_lane(self, rows: int) -> None:
        """A request's part of a generation round is over, `rows` of it verified."""
        self.lanes[rows if 0 < rows <= ROW_TOKENS else 0] += 1

    def note_drafts(self, outcome: Outcome) -> None:
        """Drafts that the device verified have been acknowledged. Copies come first in a row, learned drafts after."""
        if not outcome.verified:
            return
        self.drafted_rounds += 1
        self.draft_tokens += outcome.verified
        self.accepted_tokens += outcome.accepted
        copies = Source.HISTORY if outcome.source & Source.HISTORY else Source.PROMPT
        _add(self.offered_by_source, copies, outcome.copies, outcome.verified)
        _add(self.accepted_by_source, copies, outcome.copied, outcome.accepted)
        for depth in range(min(outcome.accepted, MAXIMUM_DRAFTS)):
            self.accepted_by_depth[depth] += 1


@dataclass(frozen=True, slots=True)
class Gauges:
    """State at the moment of a scrape."""

    running: int
    waiting: int
    slots: int
    queue_limit: int
    pages: int
    pages_free: int
    """Pages that no request holds."""
    prefix_queries: int
    prefix_hits: int
    prefix_pages: int
    prefix_rows: int
    history: int
    history_capacity: int
    unacknowledged: int
    outstanding: int
    frontends: int
    preemptions: int
    refused: int
    narrow: dict[str, int]
    """Lanes planned at width one, by reason."""
