"""Asks a running scheduler how it is, as one more frontend on its channel: requests running, waiting, pages free."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import zmq

from shared.channel import Client, RunDirectory
from shared.errors import Unroutable
from shared.messages.common import new_instance
from shared.messages.frontend import FROM_SCHEDULER, FromScheduler, Status
from shared.messages.scheduler import FrontendHello, FrontendPing
from tests.fixtures.harness import Server

PATIENCE_S = 10.0


class Observer:
    """`status` may be asked as often as wanted; it outlives a scheduler."""

    def __init__(self, client: Client[FromScheduler]) -> None:
        self._client = client
        self._instance = new_instance()

    def status(self) -> Status:
        """What the scheduler says now. Raises `TimeoutError`."""
        deadline = time.monotonic() + PATIENCE_S
        while self._client.receive() is not None:
            pass  # what it said before
        asked = 0.0
        while time.monotonic() < deadline:
            if time.monotonic() - asked > 0.2:
                asked = time.monotonic()
                self._ask()
            found = self._client.receive()
            if isinstance(found, Status):
                return found
            time.sleep(0.005)
        raise TimeoutError("the scheduler does not answer")

    def idle(self, pages: int) -> bool:
        """Whether nothing runs or waits and `pages` are free."""
        found = self.status()
        return (found.running, found.waiting, found.free_pages) == (0, 0, pages)

    def _ask(self) -> None:
        try:
            self._client.send(FrontendHello(instance=self._instance))
            self._client.send(FrontendPing(instance=self._instance))
        except Unroutable:
            return


@contextmanager
def observing(server: Server) -> Iterator[Observer]:
    """An observer of a server's scheduler."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    client: Client[FromScheduler] = Client(context, RunDirectory(server.run_dir).frontends, FROM_SCHEDULER)
    try:
        yield Observer(client)
    finally:
        client.close()
        context.term()
