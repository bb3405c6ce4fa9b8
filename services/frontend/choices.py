"""The flights of one HTTP request, one a choice: sent together, awaited together, given up together. Event loop only.

They share one wake event, so that waiting costs the same for one choice as for a hundred.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from services.frontend.flight import Chunk, ClientGone, Flight
from services.frontend.link import SchedulerLink
from shared.errors import RequestError, Unavailable
from shared.messages.scheduler import Submit


@dataclass(frozen=True, slots=True)
class Choices:
    """Choice i is `flights[i]`; all of them have `wake` as theirs."""

    link: SchedulerLink
    flights: tuple[Flight, ...]
    wake: asyncio.Event

    def submit(self, messages: Sequence[Submit]) -> None:
        """Sends all, or none that stays: raises `Unavailable` when the scheduler does not take every one."""
        try:
            for flight, message in zip(self.flights, messages, strict=True):
                self.link.submit(flight, message)
        except Unavailable:
            self.release()
            raise

    def abandon(self) -> None:
        """The client is gone: cancels every choice at once."""
        for flight in self.flights:
            self.link.abandon(flight)

    def release(self) -> None:
        """The HTTP task is done with them: what still runs is cancelled."""
        for flight in self.flights:
            self.link.release(flight)

    @property
    def error(self) -> RequestError | ClientGone | None:
        """What ended a choice before its time: that the client is gone, or else the first choice's error."""
        found = [flight.error for flight in self.flights if flight.error is not None]
        return next((error for error in found if isinstance(error, ClientGone)), found[0] if found else None)

    @property
    def told(self) -> bool:
        """Whether the last chunk of every choice was taken."""
        return all(flight.told for flight in self.flights)

    async def next(self, *, patient: bool) -> list[tuple[int, Chunk]]:
        """The choices that have something and their chunks, waiting for the first; [] once all are over.

        An error of any choice is raised for all: at once or, if `patient`, when all output before it was taken.
        """
        while not self.told:
            await self.wake.wait()
            self.wake.clear()
            error = self.error
            if error is not None:
                self.wake.set()  # an error stays
                if not patient or isinstance(error, ClientGone):
                    raise error
            chunks = [(index, flight.take()) for index, flight in enumerate(self.flights)]
            found = [(index, chunk) for index, chunk in chunks if chunk is not None]
            if found:
                return found
            if error is not None:
                raise error
        return []
