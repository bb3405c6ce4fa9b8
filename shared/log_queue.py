"""Between a service and its log: a bounded queue, and the thread that empties it. Imported by every process.

Whoever logs only queues, and never waits for a disk or a terminal. The thread collects for a moment, then goes in small
slices, so that a loop that wakes up meanwhile soon has the interpreter. What finds the queue full is counted and lost.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

COLLECT_S = 0.05
"""How long lines are collected; so a process that is killed loses the last 0.05 s, and a slice or two."""
SLICE = 16
"""Lines made and written in one go, some 50 us on a quiet core."""
TURN_S = 0.0002
"""A pause between slices: who wants the interpreter gets it then, and not after the switch interval."""
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
    """What the thread calls, and nobody else."""

    def made(self, entry: Entry) -> Iterator[Any]:
        """The lines of an entry."""
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
        while not self._ending or self._queue:
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
        lines: list[Any] = []
        while self._queue:
            entry = self._queue.popleft()
            if isinstance(entry, threading.Event):
                self._writer.write(lines)
                lines = []
                entry.set()
                continue
            for line in self._made(entry):
                lines.append(line)
                if len(lines) >= SLICE:
                    self._writer.write(lines)
                    lines = []
                    if not self._waiting:
                        time.sleep(TURN_S)
        self._writer.write(lines)

    def _made(self, entry: Entry) -> Iterator[Any]:
        try:
            yield from self._writer.made(entry)
        except Exception:  # a mistake in one event must not end the log of all others; it is told as a lost line
            self._lose(1)
