"""A debug line for every replayed round, from the polling thread, once the scheduler knows of the round.

The launch thread knows no requests and logs nothing. Values are put into words by the log's own thread.
"""

from __future__ import annotations

from collections import deque
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
        self._submitted: deque[tuple[str, ...]] = deque()
        self._lines = DebugLines("round.replayed", self._told)

    def submitted(self, requests: tuple[str, ...]) -> None:
        """A round of these requests was handed to the launch thread."""
        self._submitted.append(requests)

    def write(self, outcomes: Iterable[Outcome]) -> None:
        """Tells of the rounds among outcomes, times in milliseconds."""
        for outcome in outcomes:
            if isinstance(outcome, Finished):
                self._lines.write((outcome, self._submitted.popleft()))

    def _told(self, subject: tuple[Finished, tuple[str, ...]]) -> Iterator[dict[str, Any]]:
        outcome, requests = subject
        graph = self._graphs[outcome.graph]
        yield {
            "sequence": outcome.sequence,
            "kind": graph.kind,
            "batch": graph.batch_capacity,
            "width": graph.token_capacity,
            "device_ms": round(outcome.device_ns * _MILLI, 3),
            "idle_ms": round(outcome.idle_ns * _MILLI, 3),
            "requests": requests,
        }
