"""A debug line for every replayed round, once the scheduler knows of the round.

From the thread that told it. Values are put into words by the log's own thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from services.worker.replay import Finished, Outcome
from shared.logs import DebugLines
from shared.manifest import Manifest

_MILLI = 1e-6


class RoundLog:
    """Rounds end in the order in which they were submitted."""

    def __init__(self, manifest: Manifest) -> None:
        self._graphs = manifest.graphs
        self._lines = DebugLines("round.replayed", self._told)

    def write(self, outcomes: Iterable[Outcome]) -> None:
        """Tells of the rounds among outcomes, times in milliseconds."""
        for outcome in outcomes:
            if isinstance(outcome, Finished):
                self._lines.write(outcome)

    def _told(self, outcome: Finished) -> Iterator[dict[str, Any]]:
        graph = self._graphs[outcome.graph]
        yield {
            "sequence": outcome.sequence,
            "kind": graph.kind,
            "batch": graph.batch_capacity,
            "width": graph.token_capacity,
            "device_ms": round(outcome.device_ns * _MILLI, 3),
            "idle_ms": round(outcome.idle_ns * _MILLI, 3),
            "requests": outcome.requests,
        }
