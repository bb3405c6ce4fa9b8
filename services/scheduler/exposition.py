"""Prometheus exposition of the tallies on a loopback port, off unless asked for. Runs in a thread of its own.

Numbers are read when scraped; a scrape that overlaps a round may see one counter advanced and another not yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily

from services.scheduler.tallies import Gauges, Tallies
from shared import metrics

LOOPBACK = "127.0.0.1"
_NANO = 1e-9


class TallyCollector:
    """Renders `tallies` and whatever `gauges()` says."""

    def __init__(self, tallies: Tallies, gauges: Callable[[], Gauges]) -> None:
        self._tallies = tallies
        self._gauges = gauges

    def collect(self) -> Iterable[Metric]:
        """All metric families of the scheduler."""
        now, tallies = self._gauges(), self._tallies
        for name, value in (
            (metrics.REQUESTS_RUNNING, now.running),
            (metrics.REQUESTS_WAITING, now.waiting),
            (metrics.PAGE_USAGE, now.page_usage),
            (metrics.ROUNDS_OUTSTANDING, now.outstanding),
        ):
            yield GaugeMetricFamily(name, name, value=value)
        for name, count in (
            (metrics.PREEMPTIONS, now.preemptions),
            (metrics.REFUSED_FRAMES, now.refused),
            (metrics.PROMPT_TOKENS, tallies.prompt_tokens),
            (metrics.GENERATION_TOKENS, tallies.generation_tokens),
            (metrics.DRAFT_ROUNDS, tallies.drafted_rounds),
            (metrics.DRAFT_TOKENS, tallies.draft_tokens),
            (metrics.ACCEPTED_TOKENS, tallies.accepted_tokens),
            (metrics.STALE_RECORDS, tallies.stale_records),
            (metrics.FAULTY_RECORDS, tallies.faulty_records),
            (metrics.LAUNCH_GAP_SECONDS, tallies.idle_nanoseconds * _NANO),
        ):
            yield CounterMetricFamily(name, name, value=count)
        yield _labelled(metrics.REQUESTS_FINISHED, "finished_reason", dict(tallies.finished))
        yield _labelled(metrics.REQUESTS_FAILED, "code", dict(tallies.failed))
        depths = {str(depth): count for depth, count in enumerate(tallies.accepted_by_depth)}
        yield _labelled(metrics.ACCEPTED_BY_POSITION, "position", depths)
        yield self._rounds()

    def _rounds(self) -> Metric:
        name = metrics.ROUND_SECONDS
        family = SummaryMetricFamily(name, name, labels=("kind", "batch", "tokens"))
        for (kind, batch, tokens), tally in list(self._tallies.rounds.items()):
            labels = (kind, str(batch), str(tokens))
            family.add_metric(labels, count_value=tally.rounds, sum_value=tally.nanoseconds * _NANO)
        return family


def _labelled(name: str, label: str, values: dict[str, int]) -> Metric:
    family = CounterMetricFamily(name, name, labels=(label,))
    for key, value in values.items():
        family.add_metric((key,), value)
    return family


def expose(port: int, collector: TallyCollector) -> Callable[[], None]:
    """Serves `/metrics` at a loopback port; the result ends it."""
    registry = CollectorRegistry()
    registry.register(collector)
    server, thread = start_http_server(port, addr=LOOPBACK, registry=registry)

    def close() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return close
