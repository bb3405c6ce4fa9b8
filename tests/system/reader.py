"""A client that reads one stream in a thread, for tests in which something happens to the server meanwhile."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event

from tests.fixtures import harness
from tests.fixtures.harness import Server

LONG = "tell me a long story"


class Reader:
    """Reads one stream in a thread: `begun` after its first text, `ended` when, `result` its events."""

    def __init__(self, server: Server, pool: ThreadPoolExecutor, text: str, **fields: object) -> None:
        self.begun = Event()
        self.ended = 0.0
        self._server, self._text, self._fields = server, text, fields
        self.result: Future[list[harness.Event]] = pool.submit(self._read)

    def _read(self) -> list[harness.Event]:
        found = []
        try:
            with self._server.stream(self._text, **self._fields) as events:
                for event in events:
                    found.append(event)
                    if event.text:
                        self.begun.set()
        finally:
            self.ended = time.monotonic()
            self.begun.set()
        return found

    def text(self, seconds: float = 60) -> str:
        """The whole text, of a stream that ended as it should. Raises `RuntimeError` for any other."""
        found = self.result.result(seconds)
        if found[-1].data is not None:
            raise RuntimeError(f"the stream ended with {found[-1]}")
        return "".join(event.text for event in found)
