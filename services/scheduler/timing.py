"""How long requests take on their way: waiting, prefill, decode. Called by the loop once tokens were sent. Pure.

Only a request's first admission counts, so a preemption shows in the time that it costs and not as another request.
"""

from __future__ import annotations

from collections.abc import Iterable

from services.scheduler.device_side import Admission, Round
from services.scheduler.requests import Request
from services.scheduler.tallies import Tallies


class Timing:
    """Observes into the tallies. `now` is of the loop's clock, in seconds."""

    def __init__(self, tallies: Tallies) -> None:
        self._tallies = tallies

    def admissions(self, admitted: Iterable[Admission], now: float) -> None:
        """Requests were given a slot."""
        for admission in admitted:
            request = admission.request
            if request.admitted is None:
                request.admitted = now
                self._tallies.queue_time.observe(now - request.arrived)

    def rounds(self, rounds: Iterable[Round], now: float) -> None:
        """Rounds were completed."""
        for completed in rounds:
            for delivery in completed.deliveries:
                request = delivery.request
                if request.first is None and delivery.delta.tokens:
                    request.first = now
                    if request.admitted is not None:
                        self._tallies.prefill_time.observe(now - request.admitted)
                if delivery.delta.finish:
                    self.finished(request, now)

    def finished(self, request: Request, now: float) -> None:
        """A request has its last token, or its frontend found a stop string in the tokens it has."""
        if request.first is not None and request.admitted is not None:
            self._tallies.decode_time.observe(now - request.first)
            self._tallies.inference_time.observe(now - request.admitted)
