"""The watchdog of the row server, a thread of the worker: starts it, fails the rounds of a lost one, replaces it.

A server is lost when it has ended, or when a round waits and it neither answers nor reads on. The rounds that wait then
get poison; one that asks later waits for the successor. Only this thread starts the server, since the kernel ties a
child to the thread that made it (`rows_server.py`).
"""

from __future__ import annotations

import contextvars
import os
import select
import subprocess
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass

import msgspec
import structlog

from services.worker.rows_server import Order, Report
from shared.errors import ProcessError
from shared.mailbox import Answer, Mailbox

LOOK_S = 0.05
"""Between two looks at the mailboxes; an end is seen at once."""
START_S, END_S = 30.0, 2.0
LOSSES, WITHIN_S = 5, 60.0
"""More losses than this within so many seconds are no accident: the worker gives up."""


@dataclass(slots=True)
class _Wait:
    """For how long a round has waited in one mailbox while nothing changed there, in seconds."""

    state: tuple[int, int] | None = None
    seconds: float = 0.0

    def note(self, mailbox: Mailbox, elapsed: float) -> float:
        unanswered = mailbox.waiting and mailbox.answer[0] == Answer.NONE
        state = (int(mailbox.ring[0]), int(mailbox.progress[0])) if unanswered else None
        self.seconds = self.seconds + elapsed if state is not None and state == self.state else 0.0
        self.state = state
        return self.seconds


class RowWatch(threading.Thread):
    """`patience` in seconds: a server that makes no progress for so long while a round waits is replaced."""

    def __init__(self, order: Order, mailboxes: tuple[Mailbox, ...], patience: float) -> None:
        super().__init__(name="row-watch", daemon=True)
        self._order, self._mailboxes, self._patience = order, mailboxes, patience
        self._ready, self._told = threading.Event(), threading.Event()
        self._losses: deque[float] = deque(maxlen=LOSSES)
        self._log = structlog.get_logger()
        self._context = contextvars.copy_context()  # its log lines name the service too
        self.restarts = 0
        """Losses that are behind: whoever asks once one is counted waits for the successor."""
        self.process: int | None = None
        """Process id of the server that serves now."""
        self.failure: BaseException | None = None
        """Why there will be no row server any more; the worker cannot go on."""

    def launch(self) -> None:
        """Starts thread and server; returns once that serves. Raises `ProcessError` with the reason if it cannot."""
        self.start()
        self._ready.wait()
        if self.failure is not None:
            raise self.failure

    def close(self) -> None:
        """Ends the server. Rounds that wait for it then get poison. Safe to call twice, and before `launch`."""
        self._told.set()
        if self.is_alive():
            self.join()

    def run(self) -> None:
        self._context.run(self._live)

    def _live(self) -> None:
        # The top of a thread: whatever ends it must reach the polling thread, which ends the worker.
        try:
            self._mind()
        except BaseException as error:
            self.failure = error
        finally:
            self._write(Answer.GONE)
            self._ready.set()

    def _mind(self) -> None:
        while not self._told.is_set():
            with _Server(self._order) as server:
                server.wait_until_it_serves(self._told)
                self.process = server.pid
                self._ready.set()
                reason = self._loss(server)
                self.process = None
            if reason:
                self._replace(reason)

    def _loss(self, server: _Server) -> str:
        """Why the server is lost; empty when this thread was told to end."""
        waits = [_Wait() for _ in self._mailboxes]
        last = time.monotonic()
        while not self._told.is_set():
            ended = server.ended(LOOK_S)
            if ended:
                return ended
            now = time.monotonic()
            # What goes beyond is time in which this process did not run, and the server perhaps neither.
            elapsed, last = min(now - last, 2 * LOOK_S), now
            longest = max(wait.note(words, elapsed) for wait, words in zip(waits, self._mailboxes, strict=True))
            if longest > self._patience:
                return f"it made no progress for {self._patience:g} s"
        return ""

    def _replace(self, reason: str) -> None:
        """Fails the rounds that wait; afterwards a successor may start. Raises `ProcessError` if that is hopeless."""
        lost_at = time.monotonic()
        self._log.warning("rows.server_lost", reason=reason, restarts=self.restarts + 1)
        # Again and again: a round that clears its answer in the same instant would erase a single poison word.
        while not self._told.is_set() and any(words.waiting for words in self._mailboxes):
            self._write(Answer.POISON)
            time.sleep(0.001)
        self._write(Answer.NONE)
        self.restarts += 1
        if len(self._losses) == LOSSES and lost_at - self._losses[0] < WITHIN_S:
            raise ProcessError(f"the row server was lost {LOSSES + 1} times within {WITHIN_S:g} s: {reason}")
        self._losses.append(lost_at)

    def _write(self, answer: Answer) -> None:
        for words in self._mailboxes:
            words.answer[0] = answer


class _Server:
    """One row server process. Left, it is gone."""

    def __init__(self, order: Order) -> None:
        command = (sys.executable, "-m", "services.worker.rows_server", str(os.getpid()))
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        self._order = order

    def __enter__(self) -> _Server:
        return self

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until_it_serves(self, told: threading.Event) -> None:
        """Raises `ProcessError` with the reason if it will not."""
        try:
            self._write(msgspec.json.encode(self._order) + b"\n")
        except BrokenPipeError:
            pass  # it has ended, and the code will tell
        deadline = time.monotonic() + START_S
        while not told.is_set():
            report = self._report(LOOK_S)
            if report == Report():
                return
            if report is not None:
                raise ProcessError(f"the row server cannot serve: {report.failure}")
            if time.monotonic() > deadline:
                raise ProcessError(f"the row server did not start within {START_S:g} s")

    def ended(self, timeout: float) -> str:
        """Waits so many seconds for an end; says why it came, or nothing."""
        report = self._report(timeout)
        return "" if report is None else report.failure or "it wrote what nobody asked for"

    def _report(self, timeout: float) -> Report | None:
        """The next line of the server; its end counts as a report of failure. None if nothing came."""
        output, poller = self._process.stdout, select.poll()
        if output is None:
            return None
        poller.register(output, select.POLLIN)
        if not poller.poll(timeout * 1000):
            return None
        line = output.readline()
        if not line:
            return Report(f"it ended with code {self._process.wait()}")
        return msgspec.json.decode(line, type=Report)

    def _write(self, data: bytes) -> None:
        if self._process.stdin is not None:
            self._process.stdin.write(data)

    def __exit__(self, *error: object) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        # Nothing of it is worth waiting for: a hung one does not end by itself, and mailboxes are the worker's.
        self._process.kill()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired as expired:
            raise ProcessError(f"the row server {self.pid} does not end: is its disk gone?") from expired
