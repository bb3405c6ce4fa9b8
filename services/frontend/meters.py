"""What one frontend process counts: how requests ended as clients see it, and how long they took.

Event loop only; `services/frontend/exposition.py` shows the numbers. What scheduler and worker count is theirs alone
(shared/metrics.py).
"""

from __future__ import annotations

from prometheus_client import Counter

from services.frontend.flight import Flight
from shared import metrics
from shared.errors import RequestError
from shared.histogram import Histogram

ABORT = "abort"
"""vLLM's finish reason of a request whose client went away."""
REASONS = ("stop", "length", ABORT)


class Meters:
    """Counters of one frontend process."""

    def __init__(self) -> None:
        self.finished = Counter(metrics.REQUESTS_FINISHED, "", ["finished_reason"], registry=None)
        self.failed = Counter(metrics.REQUESTS_FAILED, "", ["code"], registry=None)
        for reason in REASONS:
            self.finished.labels(reason)  # shown as 0 from the start, so that a first one is an increase
        self.per_token = Histogram(metrics.TOKEN_BOUNDS)
        self.whole = Histogram(metrics.LATENCY_BOUNDS)
        self.prompt = Histogram(metrics.LENGTH_BOUNDS)
        self.generated = Histogram(metrics.LENGTH_BOUNDS)

    def account(self, flight: Flight) -> str:
        """Counts a flight that is over, once, and returns its outcome: a finish reason, an error's code, or `abort`."""
        if isinstance(flight.error, RequestError):
            self.failed.labels(flight.error.code).inc()
            return flight.error.code
        reason = flight.generation.finish or ABORT
        self.finished.labels(reason).inc()
        if reason != ABORT:
            self._measure(flight)
        return reason

    def _measure(self, flight: Flight) -> None:
        count = flight.generation.count
        self.prompt.observe(flight.prompt_tokens)
        self.generated.observe(count)
        if flight.first_token is None or flight.last_token is None:
            return
        self.whole.observe(flight.last_token - flight.started)
        if count > 1:
            self.per_token.observe((flight.last_token - flight.first_token) / (count - 1))
