"""What the frontend process is able to do right now: one place that says why work or readiness is refused."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from services.frontend.core import Core
from services.frontend.link import SchedulerLink
from services.frontend.meters import Meters
from shared.errors import Overloaded, Unavailable

MAXIMUM_REQUESTS = 1024
"""Chat requests inside the process at once; the scheduler's own bounded queue refuses far earlier."""


@dataclass(slots=True)
class FrontendState:
    """Shared by all routes. `open_requests` counts chat requests from their first byte to their last.

    `ready_timeout` and `keep_alive` are the configuration's, in seconds.
    """

    link: SchedulerLink
    ready_timeout: float
    keep_alive: float
    log_content: bool = False
    """Whether the log tells the text of prompts and answers."""
    meters: Meters = field(default_factory=Meters)
    core: Core | None = None
    draining: bool = False
    open_requests: int = 0
    body_bytes: int = 0
    """Of bodies that are being read, or wait to be decoded."""
    started: int = field(default_factory=lambda: int(time.time()))

    def loaded(self) -> Core:
        """The core, if work that needs it alone can be done. Raises `Unavailable`."""
        if self.draining:
            raise Unavailable("the server is shutting down")
        if self.core is None:
            raise Unavailable("the server is loading")
        return self.core

    def served(self) -> Core:
        """The core, if the scheduler can be given a request of it. Raises `Unavailable`."""
        core = self.loaded()
        if self.link.scheduler is None:
            raise Unavailable("the scheduler is not connected")
        if self.link.digest != core.digest:
            raise Unavailable("scheduler and frontend serve different cores")
        return core

    def admit_text(self) -> Core:
        """`loaded`, for a request that is not open yet. Raises `Unavailable` or `Overloaded`."""
        core = self.loaded()
        self._check_room()
        return core

    def admit(self) -> Core:
        """`served`, for a request that is not open yet. Raises `Unavailable` or `Overloaded`."""
        core = self.served()
        self._check_room()
        return core

    def _check_room(self) -> None:
        if self.open_requests >= MAXIMUM_REQUESTS:
            raise Overloaded("too many requests are open")

    def unready(self, now: float) -> str | None:
        """Why `/ready` says 503, or None. `now` is the loop's clock, in seconds."""
        try:
            self.served()
        except Unavailable as refusal:
            return str(refusal)
        status = self.link.status
        if status is None:
            return "the scheduler has not told its state yet"
        if now - self.link.status_at > self.ready_timeout:
            return f"the scheduler has been silent for {now - self.link.status_at:.0f} s"
        return None if status.ready else (status.reason or "the worker is not ready")
