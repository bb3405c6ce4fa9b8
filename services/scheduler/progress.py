"""What the log tells of requests on their way: admitted, prefilled, each round, finished. Called by the loop.

Counts, names and times since the request came, in seconds; never a token. The loop calls after the next round was
queued and the tokens were sent, so that nobody waits for a line. Those of a round are made later, when nothing else is
to be done.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import structlog

from services.scheduler.device_side import Admission, Round
from services.scheduler.requests import Request
from shared.frames import Source
from shared.logs import DebugLines
from shared.messages.frontend import Finish


class Progress:
    """Writes the lines. `now` is of the loop's clock, in seconds."""

    def __init__(self) -> None:
        self._log = structlog.get_logger().bind()  # once, not in each call
        self._rounds = DebugLines("request.round", _told)

    def admissions(self, admitted: list[Admission], now: float) -> None:
        """Tells of admissions and empties their list."""
        for admission in admitted:
            request = admission.request
            self._log.info(
                "request.admitted",
                request=request.key.request,
                slot=admission.slot,
                pages=admission.pages,
                cached=admission.cached,
                waited=round(now - request.arrived, 4),
            )
        admitted.clear()

    def rounds(self, rounds: Iterable[Round], now: float) -> None:
        """Tells what completed rounds did to their requests."""
        for completed in rounds:
            for delivery in completed.deliveries:
                if delivery.delta.start == 0 and delivery.delta.tokens:
                    self._prefilled(delivery.request, now)
            self._rounds.write(completed, len(completed.deliveries))
            for delivery in completed.deliveries:
                if delivery.delta.finish:
                    request = delivery.request
                    self.finished(request, delivery.delta.finish, request.generated, now)

    def finished(self, request: Request, reason: Finish, output_tokens: int, now: float) -> None:
        """Tells that a request has all its output; `reason` as in the metrics. Drafts are those of all its rounds."""
        self._log.info(
            "request.finished",
            request=request.key.request,
            reason=reason,
            output_tokens=output_tokens,
            offered=request.counts.offered,
            accepted=request.counts.accepted,
            seconds=round(now - request.arrived, 4),
        )

    def _prefilled(self, request: Request, now: float) -> None:
        self._log.info(
            "request.prefilled",
            request=request.key.request,
            prompt_tokens=request.prompt_length,
            seconds=round(now - request.arrived, 4),
        )


def _told(completed: Round) -> Iterator[dict[str, Any]]:
    """What a round did to each of its requests, from what no longer changes: runs later."""
    for delivery in completed.deliveries:
        record = delivery.record
        yield {
            "request": delivery.delta.request,
            "sequence": completed.sequence,
            "width": record.width,
            "offered": record.offered,
            "accepted": record.accepted,
            "emitted": len(record.tokens),
            "sources": source_names(int(record.sources)),
        }


_NAMES = {int(source): str(source.name).lower() for source in Source}


@cache
def source_names(sources: int) -> tuple[str, ...]:
    """Where a round's drafts came from, by the bits of `Source`; nothing for a round without drafts."""
    return tuple(name for bit, name in _NAMES.items() if sources & bit)
