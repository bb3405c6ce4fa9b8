"""The metrics and the readiness of a scheduler. Read in a thread of its own; the loop never waits for it.

A scrape that overlaps a round may see one counter advanced and another not yet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from prometheus_client.core import Metric

from services.scheduler.tallies import Gauges, Tallies
from shared import metrics
from shared.exposition import Exposition, Labelled, histogram, number, table
from shared.frames import Source


@dataclass(frozen=True, slots=True)
class TallyCollector:
    """Renders `tallies` and whatever `gauges()` says."""

    tallies: Tallies
    gauges: Callable[[], Gauges]

    def collect(self) -> Iterable[Metric]:
        """All metric families of the scheduler."""
        yield from self._state(self.gauges())
        yield from self._counts()
        yield from self._drafts()
        for name, values in (
            (metrics.QUEUE_TIME, self.tallies.queue_time),
            (metrics.PREFILL_TIME, self.tallies.prefill_time),
            (metrics.DECODE_TIME, self.tallies.decode_time),
            (metrics.INFERENCE_TIME, self.tallies.inference_time),
        ):
            yield histogram(name, ((), values))

    def _state(self, now: Gauges) -> Iterable[Metric]:
        for name, value in (
            (metrics.REQUESTS_RUNNING, now.running),
            (metrics.REQUESTS_WAITING, now.waiting),
            (metrics.REQUEST_SLOTS, now.slots),
            (metrics.QUEUE_LIMIT, now.queue_limit),
            (metrics.PAGE_USAGE, 1.0 - now.pages_free / now.pages),
            (metrics.PAGES, now.pages),
            (metrics.PAGES_FREE, now.pages_free),
            (metrics.PREFIX_QUERIES, now.prefix_queries),
            (metrics.PREFIX_HITS, now.prefix_hits),
            (metrics.PREFIX_PAGES, now.prefix_pages),
            (metrics.PREFIX_ROWS, now.prefix_rows),
            (metrics.HISTORY_TOKENS, now.history),
            (metrics.HISTORY_CAPACITY, now.history_capacity),
            (metrics.UNACKNOWLEDGED, now.unacknowledged),
            (metrics.ROUNDS_OUTSTANDING, now.outstanding),
            (metrics.FRONTENDS, now.frontends),
            (metrics.PREEMPTIONS, now.preemptions),
            (metrics.REFUSED_FRAMES, now.refused),
        ):
            yield number(name, value)
        yield table(metrics.NARROW_LANES, [((reason,), count) for reason, count in now.narrow.items()])

    def _counts(self) -> Iterable[Metric]:
        tallies = self.tallies
        for name, count in (
            (metrics.SUBMITTED, tallies.submitted),
            (metrics.PROMPT_TOKENS, tallies.prompt_tokens),
            (metrics.GENERATION_TOKENS, tallies.generation_tokens),
            (metrics.STALE_RECORDS, tallies.stale_records),
            (metrics.FAULTY_RECORDS, tallies.faulty_records),
            (metrics.WORKER_ATTACHMENTS, tallies.worker_attachments),
            (metrics.WORKER_LOSSES, tallies.worker_losses),
        ):
            yield number(name, count)
        outcomes = Counter({"stop": 0, "length": 0, "cancelled": 0, "overloaded": 0})
        outcomes.update(tallies.finished.copy())
        outcomes.update(tallies.failed.copy())
        yield table(metrics.OUTCOMES, [((outcome,), count) for outcome, count in outcomes.items()])
        yield table(metrics.LANES, [((str(rows),), count) for rows, count in enumerate(tallies.lanes) if rows])

    def _drafts(self) -> Iterable[Metric]:
        tallies = self.tallies
        yield number(metrics.DRAFT_ROUNDS, tallies.drafted_rounds)
        yield number(metrics.DRAFT_TOKENS, tallies.draft_tokens)
        yield number(metrics.ACCEPTED_TOKENS, tallies.accepted_tokens)
        depths = [((str(depth),), count) for depth, count in enumerate(tallies.accepted_by_depth)]
        yield table(metrics.ACCEPTED_BY_POSITION, depths)
        yield table(metrics.OFFERED_BY_SOURCE, _by_source(tallies.offered_by_source))
        yield table(metrics.ACCEPTED_BY_SOURCE, _by_source(tallies.accepted_by_source))


def _by_source(counts: dict[Source, list[int]]) -> Labelled:
    return [
        ((str(source.name).lower(), str(depth)), count)
        for source, depths in counts.items()
        for depth, count in enumerate(depths)
    ]


def expose(tallies: Tallies, gauges: Callable[[], Gauges], unready: Callable[[], str], model: str) -> Exposition:
    """What this scheduler shows of itself; `unready` says why it cannot run requests, or nothing."""
    return Exposition(TallyCollector(tallies, gauges).collect, unready, lambda: model)
