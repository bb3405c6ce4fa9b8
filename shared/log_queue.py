"""Between a service and its log: a bounded queue, and the thread that empties it. Imported by every process.

Whoever logs only queues, and never waits for a disk or a terminal. The thread collects for a moment, then goes in small
slices, so that a loop that wakes up meanwhile soon has the interpreter. A loop that turns without sleep, and would have
to be made to let go of it, makes lines itself while it has nothing else to do. What finds the queue full is counted and
lost.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

COLLECT_S = 0.05
"""How long lines are collected; so a process that is killed loses the last 0.05 s, and a slice or two."""
SLICE_NS = 40_000
"""For so long lines are made before they are written and others get the interpreter, which they cannot have meanwhile:
short rounds of a GPU leave 0.15 ms between the end of one and the launch of the next but one (docs/adr/0013)."""
IDLE_NS = 10_000
"""The same of a loop that has nothing else to do, and looks for it again in between."""
BACKLOG, BACKLOG_NS = 250, 200_000
"""With so many entries queued a slice is longer, or a loop that never lets go of the interpreter costs lines."""
TURN_S = 0.0001
"""A pause between slices: who wants the interpreter gets it then, and not after the switch interval."""
WRITTEN = 256
"""Most lines that are written at once."""
MOST_UNWRITTEN = 2_000
"""Most lines that a loop makes ahead of a disk."""
MOST = 10_000
MOST_DEBUG = 1_000
"""Debug entries stop earlier, so that they keep nothing else out. An entry may be a round of many lanes."""


class Entry(NamedTuple):
    """One or several lines to be: `describe(subject)` gives the values of each. `at` is in nanoseconds since 1970."""

    at: int
    level: str
    event: str
    describe: Callable[[Any], Iterable[Mapping[str, Any]]]
    subject: Any
    lines: int = 1


class Writer(Protocol):
    """What the thread calls, and nobody else but for `made`."""

    def made(self, entry: Entry) -> Iterator[Any]:
        """The lines of an entry. Also called by a loop that turns, at the same time."""
        ...

    def write(self, lines: list[Any]) -> None:
        """Writes lines of several entries, in order. Never raises."""
        ...

    def lost(self, lines: int) -> None:
        """Tells that so many lines are missing."""
        ...


class LogQueue:
    """`put` and `flush` may be called by any thread, but not by a signal handler."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._queue: deque[Entry | threading.Event] = deque()
        self._filled = threading.Event()
        self._urgent = threading.Event()
        self._ending = False
        self._lost = 0
        self._waiting = 0
        self._lock = threading.Lock()
        self._awaited: threading.Event | None = None
        self._turn = threading.Lock()
        """Held while lines are made."""
        self._making: Iterator[Any] | None = None
        """What is left of the entry whose lines are being made."""
        self._lines: list[Any] = []
        """Lines that are made and not written."""
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def put(self, entry: Entry, urgent: bool = False) -> None:
        """Queues an entry. With `urgent` nothing is collected first."""
        if len(self._queue) >= (MOST_DEBUG if entry.level == "debug" else MOST):
            self._lose(entry.lines)
            return
        self._queue.append(entry)
        if not self._filled.is_set():
            self._filled.set()
        if urgent:
            self._urgent.set()

    def idle(self) -> None:
        """Makes a few lines in the calling thread, if there are any, and writes none: a disk is never waited for."""
        if not (self._queue or self._making) or len(self._lines) >= MOST_UNWRITTEN:
            return
        if self._turn.acquire(blocking=False):
            try:
                self._make(IDLE_NS)
            finally:
                self._turn.release()

    def flush(self, seconds: float) -> bool:
        """Waits until all that was queued is written, at most `seconds`; True if it is.

        While a wait that was in vain is still owed its end, nobody waits again: a disk that hangs costs once.
        """
        if not self._thread.is_alive() or (self._awaited is not None and not self._awaited.is_set()):
            return False
        written = threading.Event()
        with self._lock:
            self._waiting += 1
        self._queue.append(written)
        self._filled.set()
        self._urgent.set()
        done = written.wait(seconds)
        with self._lock:
            self._waiting -= 1
            self._awaited = None if done else written
        return done

    def close(self, seconds: float) -> None:
        """Flushes, and ends the thread."""
        self._ending = True
        self.flush(seconds)
        self._thread.join(seconds)

    def _lose(self, lines: int) -> None:
        with self._lock:
            self._lost += lines

    def _run(self) -> None:
        while not self._ending or self._queue or self._lines:
            self._filled.wait()
            self._urgent.wait(COLLECT_S)
            self._urgent.clear()
            self._filled.clear()  # what is queued from here on is for the next turn, unless this one meets it
            self._drain()
            with self._lock:
                lost, self._lost = self._lost, 0
            if lost:
                self._writer.lost(lost)

    def _drain(self) -> None:
        """Makes and writes lines until none are left."""
        while True:
            with self._turn:
                self._make(SLICE_NS if len(self._queue) < BACKLOG else BACKLOG_NS)
                lines, self._lines = self._lines[:WRITTEN], self._lines[WRITTEN:]
                flushed = self._flushed() if not self._lines else None
                more = bool(self._lines or self._making or self._queue)
            self._writer.write(lines)
            if flushed is not None:
                flushed.set()
            if not more:
                return
            if not self._waiting:
                time.sleep(TURN_S)

    def _flushed(self) -> threading.Event | None:
        """Who waits for what was queued until here, if that is all made."""
        head = self._queue[0] if self._making is None and self._queue else None
        if not isinstance(head, threading.Event):
            return None
        self._queue.popleft()
        return head

    def _make(self, nanoseconds: int) -> None:
        """Makes lines for so long, but not beyond somebody who waits for what is queued before."""
        end = time.perf_counter_ns() + nanoseconds
        while True:
            if self._making is None:
                head = self._queue[0] if self._queue else None
                if not isinstance(head, Entry):
                    return
                self._queue.popleft()
                self._making = self._made(head)
            for line in self._making:
                self._lines.append(line)
                if time.perf_counter_ns() >= end:
                    return
            self._making = None
            if time.perf_counter_ns() >= end:
                return  # entries may have no lines

    def _made(self, entry: Entry) -> Iterator[Any]:
        try:
            yield from self._writer.made(entry)
        except Exception:  # a mistake in one event must not end the log of all others; it is told as a lost line
            self._lose(1)
