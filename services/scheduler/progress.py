"""What the log tells of requests on their way: admitted, prefilled, each round, finished. Called by the loop.

Counts, names and times since the request came, in seconds; never a token. The loop calls after the next round was
queued and the tokens were sent, so that nobody waits for a line.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import structlog

from services.scheduler.completions import Delivery
from services.scheduler.device_side import Admission, Round
from shared.frames import Source


class Progress:
    """Writes the lines. `now` is of the loop's clock, in seconds."""

    def __init__(self) -> None:
        self._log = structlog.get_logger().bind()  # once, not in each call

    def admissions(self, admitted: list[Admission], now: float) -> None:
        """Tells of admissions and empties their list."""
        for admission in admitted:
            request = admission.request
            self._log.info(
                "request.admitted",
                request=request.key.request,
                slot=admission.slot,
                pages=admission.pages,
                waited=round(now - request.arrived, 4),
            )
        admitted.clear()

    def rounds(self, rounds: Iterable[Round], now: float) -> None:
        """Tells what completed rounds did to their requests."""
        for completed in rounds:
            for delivery in completed.deliveries:
                self._round(delivery, completed.sequence, now)

    def _round(self, delivery: Delivery, sequence: int, now: float) -> None:
        request, delta, record = delivery.request, delivery.delta, delivery.record
        seconds = round(now - request.arrived, 4)
        if delta.start == 0:
            self._log.info(
                "request.prefilled", request=delta.request, prompt_tokens=request.prompt_length, seconds=seconds
            )
        self._log.debug(
            "request.round",
            request=delta.request,
            sequence=sequence,
            width=record.width,
            offered=record.offered,
            accepted=record.accepted,
            emitted=len(record.tokens),
            sources=source_names(int(record.sources)),
        )
        if delta.finish:
            self._log.info(
                "request.finished",
                request=delta.request,
                reason=delta.finish,
                output_tokens=request.generated,
                offered=request.counts.offered,
                accepted=request.counts.accepted,
                seconds=seconds,
            )


_NAMES = {int(source): str(source.name).lower() for source in Source}


@cache
def source_names(sources: int) -> tuple[str, ...]:
    """Where a round's drafts came from, by the bits of `Source`; nothing for a round without drafts."""
    return tuple(name for bit, name in _NAMES.items() if sources & bit)
