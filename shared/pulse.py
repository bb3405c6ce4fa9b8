"""The pulse of a service: a byte a second from its main loop to whoever started it, as long as that loop turns.

Imported by every process. A supervisor that hears nothing for long knows that the process is stopped or stuck, which
its being alive does not tell. A process that nobody listens to has no pipe, and then a beat does nothing. Says, too,
for how long other threads may keep that loop from the interpreter.
"""

from __future__ import annotations

import os

BEAT_S = 1.0
"""At most one byte in so many seconds, however often a loop turns."""
SWITCH_INTERVAL_S = 0.0005
"""For `sys.setswitchinterval` in each service. With Python's own 5 ms a loop that wakes while another thread renders
metrics waits as long, after each system call; docs/log.md, 2026-11-30, has what that cost."""


class Pulse:
    """The writing end. Times in seconds of any monotonic clock, always the same one."""

    def __init__(self) -> None:
        self._descriptor: int | None = None
        self._due = float("-inf")
        self.at: float | None = None
        """When the loop last turned, for whoever asks this process itself; None before the first time."""

    def connect(self, descriptor: int) -> None:
        """Takes over a pipe's writing end; programs that this process starts do not inherit it."""
        os.set_inheritable(descriptor, False)
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor

    def beat(self, now: float) -> None:
        """Call whenever the main loop turns. Never blocks and never raises: a listener that is gone is not missed."""
        self.at = now
        if self._descriptor is None or now < self._due:
            return
        self._due = now + BEAT_S
        try:
            os.write(self._descriptor, b".")
        except BlockingIOError:
            return  # the listener does not read for now; what lies in the pipe will tell it enough
        except OSError:
            self._descriptor = None


PULSE = Pulse()
"""The one of this process."""
