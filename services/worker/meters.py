"""What the worker counts: rounds by the shape of their graph, and how far ahead of the device they were queued.

Plain additions on the thread that told the scheduler, after it did.
"""

from __future__ import annotations

from collections.abc import Iterable

from services.worker.replay import Finished, Outcome
from shared.histogram import Histogram
from shared.manifest import Manifest
from shared.metrics import GAP_BOUNDS, LEAD_BOUNDS, ROUND_BOUNDS

_NANO = 1e-9

Shape = tuple[str, str, str]
"""Kind, batch capacity and token capacity of a graph, as labels."""


class Meters:
    """Counters of one worker process; times in seconds."""

    def __init__(self, manifest: Manifest) -> None:
        self._shapes: list[Shape] = [
            (graph.kind, str(graph.batch_capacity), str(graph.token_capacity)) for graph in manifest.graphs
        ]
        self.rounds: dict[Shape, Histogram] = {}
        self.lead = Histogram(LEAD_BOUNDS)
        self.gap = Histogram(GAP_BOUNDS)
        self.stale_messages = 0

    def take(self, outcomes: Iterable[Outcome]) -> None:
        """Counts the rounds among what the launch thread reported."""
        for outcome in outcomes:
            if not isinstance(outcome, Finished):
                continue
            shape = self._shapes[outcome.graph]
            if shape not in self.rounds:
                self.rounds[shape] = Histogram(ROUND_BOUNDS)
            self.rounds[shape].observe(outcome.device_ns * _NANO)
            self.lead.observe(outcome.lead_ns * _NANO)
            if outcome.lead_ns:
                self.gap.observe(outcome.idle_ns * _NANO)
