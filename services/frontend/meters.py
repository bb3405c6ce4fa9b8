"""The frontend's own Prometheus registry; what scheduler and worker count is theirs alone (shared/metrics.py)."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from services.frontend.flight import Flight
from shared import metrics

_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120)


class Meters:
    """Counters of one frontend process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        own = self.registry
        self.finished = Counter(metrics.REQUESTS_FINISHED, "Finished requests", ["finished_reason"], registry=own)
        self.failed = Counter(metrics.REQUESTS_FAILED, "Requests that ended with an error", ["code"], registry=own)
        self.prompt = Counter(metrics.PROMPT_TOKENS, "Prompt tokens of finished requests", registry=own)
        self.generated = Counter(metrics.GENERATION_TOKENS, "Generated tokens of finished requests", registry=own)
        self.first = Histogram(metrics.TIME_TO_FIRST_TOKEN, "Until the first token", registry=own, buckets=_SECONDS)
        self.between = Histogram(
            metrics.INTER_TOKEN_LATENCY, "Mean time between tokens of a request", registry=own, buckets=_SECONDS
        )
        self.refused = Gauge(metrics.REFUSED_FRAMES, "Messages that did not decode", registry=own)

    def count_finished(self, flight: Flight) -> None:
        """Counts a request that ended as it should."""
        generation = flight.generation
        self.finished.labels(generation.finish).inc()
        self.prompt.inc(flight.prompt_tokens)
        self.generated.inc(generation.count)
        if flight.first_token is None or flight.last_token is None:
            return
        self.first.observe(flight.first_token - flight.started)
        if generation.count > 1:
            self.between.observe((flight.last_token - flight.first_token) / (generation.count - 1))
