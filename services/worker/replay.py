"""The launch thread: it replays graphs in order and does nothing else.

Commands come through a queue from the polling thread, completions go back through another, with an eventfd that wakes
the poller. Two rounds may wait here; the device never waits for Python between them.
"""

from __future__ import annotations

import contextvars
import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from services.worker.catalog import Catalog
from services.worker.recording import RecordedRound, Recording
from shared.errors import ContractBreach

if TYPE_CHECKING:
    from services.worker.rounds_line import RoundsLine


@dataclass(frozen=True, slots=True)
class Launch:
    """Replay graph `graph`. When it was queued is of the performance counter, in nanoseconds.

    `requests` are in the round, if the scheduler names them for the log.
    """

    graph: int
    requests: tuple[str, ...] = ()
    queued_ns: int = field(default_factory=time.perf_counter_ns)


@dataclass(frozen=True, slots=True)
class Reset:
    """After all queued rounds: empty the slots for scheduler `scheduler`, whose handshake has number `attempt`."""

    scheduler: int
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class Finished:
    """A round that is over; times in nanoseconds. `lead_ns` is how long it was queued before the last one ended."""

    sequence: int
    graph: int
    device_ns: int
    idle_ns: int
    lead_ns: int
    requests: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ResetDone:
    """The slots are empty; the next round is `sequence`."""

    scheduler: int
    sequence: int
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class Crashed:
    """The launch thread ended with an error: the worker cannot go on."""

    error: BaseException


Outcome = Finished | ResetDone | Crashed


class LaunchThread(threading.Thread):
    """Owns the catalog from `prepare` on: captured graphs are replayed by the thread that captured them."""

    speaks: ClassVar[bool] = False
    """Whether rounds come and go through a line of its own, once it has one. Others go through the polling thread."""

    def __init__(self, prepare: Callable[[], Catalog], recording: Recording | None = None) -> None:
        super().__init__(name="launch", daemon=True)
        self._prepare = prepare
        self._recording = recording
        self._commands: queue.SimpleQueue[Launch | Reset | RoundsLine | None] = queue.SimpleQueue()
        self._outcomes: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        self.wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.ready = threading.Event()
        self._since: float | None = None
        self._context = contextvars.copy_context()  # its log lines name the service too

    def submit(self, command: Launch | Reset | RoundsLine | None) -> None:
        """Queues a command; None ends the thread after what is queued."""
        self._commands.put(command)

    def outcomes(self) -> list[Outcome]:
        """Everything that happened since the last call."""
        try:
            os.eventfd_read(self.wake)
        except BlockingIOError:
            return []
        return [self._outcomes.get() for _ in range(self._outcomes.qsize())]

    def age(self, now: float) -> float:
        """For how many seconds what is running has run; 0 if nothing is. `now` is of the monotonic clock."""
        since = self._since
        return 0.0 if since is None else max(now - since, 0.0)

    def _report(self, outcome: Outcome) -> None:
        self._outcomes.put(outcome)
        os.eventfd_write(self.wake, 1)

    def run(self) -> None:
        self._context.run(self._live)

    def _live(self) -> None:
        # The top of a process loop: whatever ends this thread must reach the poller, which ends the process.
        try:
            catalog = self._prepare()
            self.ready.set()
            self._serve(catalog)
        except BaseException as error:
            self._report(Crashed(error))
        finally:
            self.ready.set()

    def _serve(self, catalog: Catalog) -> None:
        last = time.perf_counter_ns()
        while (command := self._commands.get()) is not None:
            self._since = time.monotonic()
            if isinstance(command, Reset):
                catalog.reset()
                self._since = None
                self._report(ResetDone(command.scheduler, catalog.counter, command.attempt))
                continue
            if not isinstance(command, Launch):
                raise ContractBreach("this launch thread has no line of its own")
            begin = time.perf_counter_ns()
            sequence = catalog.replay(command.graph)
            end = time.perf_counter_ns()
            self._since = None
            lead = max(last - command.queued_ns, 0)
            self._report(Finished(sequence, command.graph, end - begin, begin - last, lead, command.requests))
            last = end
            if self._recording is not None:
                self._recording.append(
                    RecordedRound(command.graph, catalog.taken_plan, begin, end, catalog.emitted_by(sequence))
                )
