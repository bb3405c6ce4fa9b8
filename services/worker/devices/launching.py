"""The launch thread of a device that works on its own: it launches and goes on; another thread waits for rounds to end.

Same commands and outcomes as `services/worker/replay.py`, whose thread this is. Two rounds can therefore lie on the
device, one behind the other, while neither thread holds the interpreter's lock.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from services.worker.catalog import Catalog
from services.worker.devices.catalog import DeviceCatalog, Ends
from services.worker.replay import Crashed, Finished, LaunchThread, Reset, ResetDone


@dataclass(frozen=True, slots=True)
class _Launched:
    sequence: int
    graph: int
    queued_ns: int
    since: float


class DeviceLaunchThread(LaunchThread):
    """`prepare` gives a frozen catalog."""

    def __init__(self, prepare: Callable[[], DeviceCatalog]) -> None:
        # The base class does nothing with a catalog but hand it to `_serve`.
        super().__init__(cast(Callable[[], Catalog], prepare))
        self._launched: queue.SimpleQueue[_Launched | None] = queue.SimpleQueue()

    def _serve(self, catalog: Catalog) -> None:
        device = cast(DeviceCatalog, catalog)
        ends = device.ends
        room = threading.Semaphore(ends.depth - 1)
        waiter = threading.Thread(target=self._wait, args=(ends, room), name="rounds", daemon=True)
        waiter.start()
        while (command := self._commands.get()) is not None:
            if isinstance(command, Reset):
                self._drain(ends, room)
                device.reset()
                self._report(ResetDone(command.scheduler, device.counter))
                continue
            room.acquire()
            since = time.monotonic()
            sequence = device.counter
            ends.begin(sequence)
            device.replay(command.graph)
            ends.end(sequence)
            self._launched.put(_Launched(sequence, command.graph, command.queued_ns, since))
        self._launched.put(None)
        waiter.join()

    def _drain(self, ends: Ends, room: threading.Semaphore) -> None:
        """Returns when everything launched was reported."""
        for _ in range(ends.depth - 1):
            room.acquire()
        room.release(ends.depth - 1)

    def _wait(self, ends: Ends, room: threading.Semaphore) -> None:
        # The top of a thread: whatever ends it must reach the poller, which ends the process.
        try:
            last = time.perf_counter_ns()
            while (launched := self._launched.get()) is not None:
                self._since = launched.since
                ends.wait(launched.sequence)
                self._since = None
                took, idle = ends.device_ns(launched.sequence)
                lead = max(last - launched.queued_ns, 0)
                last = time.perf_counter_ns()
                self._report(Finished(launched.sequence, launched.graph, took, idle, lead))
                room.release()
        except BaseException as error:
            self._report(Crashed(error))
