"""The supervisor's ear for one child's pulse (`shared/pulse.py`): a pipe, and for how long nothing came out of it.

Being alive says little: a stopped process is alive, and so is one whose loop is stuck. Only the supervisor imports it.
"""

from __future__ import annotations

import os

START_S = 120.0
"""Until its first beat a process imports and cannot tell how it is: it gets at least so long."""
OWN_GAP_S = 5.0
"""A supervisor that did not look for so long was stopped itself, perhaps with all others: everybody gets new time."""


class Hearing:
    """The reading end of one child's pulse. `now` in seconds of the monotonic clock."""

    def __init__(self, now: float) -> None:
        self._reader, self.writer = os.pipe()
        os.set_blocking(self._reader, False)
        self._since = self._looked = now
        self._beaten = False

    def started(self) -> None:
        """The child has its copy of `writer`, so this process drops its own."""
        os.close(self.writer)

    def silent(self, now: float, limit: float) -> bool:
        """Listens, and says whether nothing came for more than `limit` seconds; with a limit of 0 it never does."""
        if now - self._looked > OWN_GAP_S:
            self._since = now
        self._looked = now
        if self._heard():
            self._beaten, self._since = True, now
        patience = limit if self._beaten else max(limit, START_S)
        return limit > 0 and now - self._since > patience

    def close(self) -> None:
        """The child has ended."""
        os.close(self._reader)

    def _heard(self) -> bool:
        heard = False
        try:
            while os.read(self._reader, 4096):
                heard = True
        except BlockingIOError:
            pass
        return heard
