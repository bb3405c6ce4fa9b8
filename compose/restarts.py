"""When a dead service is started again: a pure policy of the supervisor. Times in seconds.

A service that has served gets a quick restart. One that dies again and again without the server becoming ready is
given up. One that ends by itself before the server was ever seen ready is tried just once more: its reason will hardly
go away, but a server may serve, and fail, in the moment before its supervisor looks. One that refuses what it was given
before that will refuse it again.
"""

from __future__ import annotations

from dataclasses import dataclass

from shared.errors import REFUSED

FIRST_DELAY_S = 0.1
LONGEST_DELAY_S = 5.0
MOST_DEATHS = 5
MOST_REFUSALS = 2
"""Ends by its own exit code, before the server was ever ready."""


@dataclass(slots=True)
class Restarts:
    """The history of one service. `deaths` are those since the server was last ready with it."""

    deaths: int = 0
    served: bool = False

    def ready(self) -> None:
        """The server, this service included, was seen to be ready."""
        self.served, self.deaths = True, 0

    def died(self, code: int) -> float | None:
        """Seconds to wait before the next start; None to give up. `code` is negative for a signal."""
        self.deaths += 1
        if code == REFUSED and not self.served:
            return None
        most = MOST_REFUSALS if not self.served and code > 0 else MOST_DEATHS
        if self.deaths >= most:
            return None
        return float(min(LONGEST_DELAY_S, FIRST_DELAY_S * 2 ** (self.deaths - 1)))
