"""A debug line for every replayed round, from the polling thread, once the scheduler knows of the round.

The launch thread knows no requests and writes no lines: it must not wait for a file.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import structlog

from services.worker.replay import Finished, Outcome
from shared.manifest import Manifest

_MILLI = 1e-6


class RoundLog:
    """Rounds end in the order in which they were submitted."""

    def __init__(self, manifest: Manifest) -> None:
        self._graphs = manifest.graphs
        self._submitted: deque[tuple[str, ...]] = deque()
        self._log = structlog.get_logger().bind()  # once, not in each call

    def submitted(self, requests: tuple[str, ...]) -> None:
        """A round of these requests was handed to the launch thread."""
        self._submitted.append(requests)

    def write(self, outcomes: Iterable[Outcome]) -> None:
        """Tells of the rounds among outcomes, times in milliseconds."""
        for outcome in outcomes:
            if not isinstance(outcome, Finished):
                continue
            graph = self._graphs[outcome.graph]
            self._log.debug(
                "round.replayed",
                sequence=outcome.sequence,
                kind=graph.kind,
                batch=graph.batch_capacity,
                width=graph.token_capacity,
                device_ms=round(outcome.device_ns * _MILLI, 3),
                idle_ms=round(outcome.idle_ns * _MILLI, 3),
                requests=self._submitted.popleft(),
            )
