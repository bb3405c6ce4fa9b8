"""The launch thread of a device that works on its own: it launches rounds, sees them end and tells the scheduler.

Two rounds can lie on the device, one behind the other. While one does, this thread turns without sleeping between the
end of the older round and the next `Replay`: a wake-up on either side would cost as much as a short round lasts.
Commands of `services/worker/replay.py` come through its queue; with a line, rounds neither come nor go through that.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, cast

import zmq

from services.worker.catalog import Catalog
from services.worker.devices.catalog import DeviceCatalog
from services.worker.devices.recorder import Recorder
from services.worker.replay import Finished, Launch, LaunchThread, Reset, ResetDone
from services.worker.rounds_line import RoundsLine
from shared.frames import FRAMES

TURNING_S = 0.001
"""How long it turns without sleep after something happened. Beyond it, it sleeps between looks: long rounds alone."""
NAP_S = 0.00005


@dataclass(frozen=True, slots=True)
class _Launched:
    sequence: int
    launch: Launch
    since: float


class _Flight:
    """Rounds that lie on the device, oldest first."""

    def __init__(self, device: DeviceCatalog, recorder: Recorder | None) -> None:
        self.rounds: deque[_Launched] = deque()
        self._device, self._ends, self._recorder = device, device.ends, recorder
        self.most = device.ends.depth - 1
        self._last = time.perf_counter_ns()

    @property
    def since(self) -> float | None:
        """When the oldest of them was launched, in seconds of the monotonic clock."""
        return self.rounds[0].since if self.rounds else None

    def launch(self, launch: Launch) -> None:
        """One more round, behind at most `most` - 1 others."""
        device, ends, sequence = self._device, self._ends, self._device.counter
        if self._recorder is not None:
            self._recorder.taken(sequence, launch.graph)
        self.rounds.append(_Launched(sequence, launch, time.monotonic()))
        ends.begin(sequence)
        device.replay(launch.graph)
        ends.end(sequence)

    def over(self, waiting: bool) -> bool:
        """Whether the oldest has ended; with `waiting` it returns when it has."""
        sequence = self.rounds[0].sequence
        if waiting:
            self._ends.wait(sequence)
            return True
        return self._ends.over(sequence)

    def finish(self) -> Finished:
        """Takes the oldest, which is over."""
        found = self.rounds.popleft()
        took, idle = self._ends.device_ns(found.sequence)
        lead = max(self._last - found.launch.queued_ns, 0)
        self._last = time.perf_counter_ns()
        return Finished(found.sequence, found.launch.graph, took, idle, lead, found.launch.requests)

    def note(self, done: Finished) -> None:
        """For the recording, if there is one. Before another round is launched, which may write the same frame."""
        if self._recorder is not None:
            self._recorder.ended(done.sequence, done.device_ns)


class DeviceLaunchThread(LaunchThread):
    """`prepare` gives a frozen catalog; after it `recorder`, if given, is asked for who notes its rounds."""

    speaks: ClassVar[bool] = True

    def __init__(
        self, prepare: Callable[[], DeviceCatalog], recorder: Callable[[], Recorder | None] = lambda: None
    ) -> None:
        # The base class does nothing with a catalog but hand it to `_serve`.
        super().__init__(cast(Callable[[], Catalog], prepare))
        self._recorder_of = recorder
        self._line: RoundsLine | None = None
        self._over = False
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller = zmq.Poller()
        self._poller.register(self._bell, zmq.POLLIN)

    def submit(self, command: Launch | Reset | RoundsLine | None) -> None:
        """Queues a command; None ends the thread after what is queued. A line's socket is then this thread's."""
        super().submit(command)
        os.eventfd_write(self._bell, 1)

    def _serve(self, catalog: Catalog) -> None:
        device = cast(DeviceCatalog, catalog)
        flight, quiet = _Flight(device, self._recorder_of()), 0.0
        while True:
            if self._turn(device, flight):
                quiet = time.monotonic() + TURNING_S
            elif self._over:
                return
            elif time.monotonic() > quiet:
                self._rest(flight)

    def _turn(self, device: DeviceCatalog, flight: _Flight) -> bool:
        """One look at everything that may have happened; whether anything had."""
        happened = False
        # With two rounds queued no third can come: the device is waited for, and the interpreter is others'.
        if flight.rounds and flight.over(waiting=len(flight.rounds) >= FRAMES and self._commands.empty()):
            self._end(flight)
            happened = True
        if self._line is not None and (launch := self._line.take(device.counter)) is not None:
            self._begin(launch, flight)
            happened = True
        if not self._commands.empty():
            self._obey(self._commands.get(), device, flight)
            happened = not self._over
        return happened

    def _obey(self, command: Launch | Reset | RoundsLine | None, device: DeviceCatalog, flight: _Flight) -> None:
        if isinstance(command, Launch):
            self._begin(command, flight)
        elif isinstance(command, RoundsLine):
            self._line = command
            self._poller.register(command.socket, zmq.POLLIN)
        else:
            self._drain(flight)
            if command is None:
                self._over = True
                return
            device.reset()
            if self._line is not None:
                self._line.attached(command.scheduler, device.counter, command.attempt)
            self._report(ResetDone(command.scheduler, device.counter, command.attempt))

    def _begin(self, launch: Launch, flight: _Flight) -> None:
        if len(flight.rounds) == flight.most and flight.over(waiting=True):
            self._end(flight)
        if self._since is None:
            self._since = time.monotonic()  # before the launch, which may hang as well
        flight.launch(launch)
        self._since = flight.since

    def _end(self, flight: _Flight) -> None:
        done = flight.finish()
        self._since = flight.since
        if self._line is None:
            self._report(done)
        else:
            self._line.done(done)
        flight.note(done)

    def _drain(self, flight: _Flight) -> None:
        """Returns when everything launched was reported."""
        while flight.rounds and flight.over(waiting=True):
            self._end(flight)

    def _rest(self, flight: _Flight) -> None:
        """Sleeps for a moment beside a long round; without one, until something comes."""
        if flight.rounds:
            time.sleep(NAP_S)
            return
        self._poller.poll()
        try:
            os.eventfd_read(self._bell)
        except BlockingIOError:
            return  # a round came by the line
