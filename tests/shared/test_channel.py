"""Typed channels over real sockets: losses are seen, the unroutable raises, garbage is counted and dropped (B63)."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
import zmq

from shared.channel import MAXIMUM_BYTES, Client, RunDirectory, Server
from shared.errors import ProcessError, Unroutable
from shared.messages.frontend import FROM_SCHEDULER, FromScheduler, Welcome
from shared.messages.scheduler import FROM_FRONTEND, FromFrontend, FrontendHello

Found = TypeVar("Found")


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    made = zmq.Context()
    yield made
    made.destroy(linger=0)


@pytest.fixture
def server(context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path) -> Iterator[Server[FromFrontend]]:
    made = Server(context, RunDirectory(tmp_path / "run").ensure().frontends, FROM_FRONTEND)
    yield made
    made.close()


def until(probe: Callable[[], Found | None]) -> Found:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if found := probe():
            return found
        time.sleep(0.005)
    raise AssertionError("nothing came within five seconds")


def connected(context: zmq.Context[zmq.Socket[bytes]], server: Server[FromFrontend]) -> Client[FromScheduler]:
    client = Client(context, server.address, FROM_SCHEDULER)
    assert until(client.events) == (True,)
    return client


def test_both_ways_and_the_loss(context: zmq.Context[zmq.Socket[bytes]], server: Server[FromFrontend]) -> None:
    client = connected(context, server)
    client.send(FrontendHello(instance=3))
    peer, message = until(server.receive)
    assert message == FrontendHello(instance=3)
    server.send(peer, Welcome(instance=9, manifest_digest="d"))
    assert until(client.receive) == Welcome(instance=9, manifest_digest="d")
    client.close()
    assert until(server.losses) == 1

    def refused() -> bool:
        # The monitor may speak a moment before the socket drops the route.
        try:
            server.send(peer, Welcome(instance=9, manifest_digest="d"))
        except Unroutable:
            return True
        return False

    assert until(refused)


def test_a_client_without_a_server_cannot_send(context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path) -> None:
    client = Client(context, RunDirectory(tmp_path / "run").ensure().frontends, FROM_SCHEDULER)
    with pytest.raises(Unroutable, match="not connected"):
        client.send(FrontendHello(instance=1))
    client.close()


def test_a_thousand_random_frames_are_counted_and_the_next_message_arrives(
    context: zmq.Context[zmq.Socket[bytes]], server: Server[FromFrontend]
) -> None:
    noise, chance = context.socket(zmq.DEALER), random.Random(4)
    noise.connect(server.address)
    for _ in range(1000):
        noise.send_multipart([chance.randbytes(chance.randrange(200)) for _ in range(chance.randrange(1, 4))])
        server.receive()
    until(lambda: server.receive() is None and server.refused.count == 1000)
    client = connected(context, server)
    client.send(FrontendHello(instance=3))
    assert until(server.receive)[1] == FrontendHello(instance=3)
    client.close()
    noise.close()


def test_an_oversized_frame_ends_its_connection_and_nothing_else(
    context: zmq.Context[zmq.Socket[bytes]], server: Server[FromFrontend]
) -> None:
    client = connected(context, server)
    noise = context.socket(zmq.DEALER)
    noise.connect(server.address)
    noise.send(bytes(MAXIMUM_BYTES + 1))
    assert until(server.losses)
    noise.close(0)
    client.send(FrontendHello(instance=3))
    assert until(server.receive)[1] == FrontendHello(instance=3)
    client.close()


def test_sockets_lie_in_a_folder_that_others_cannot_enter(tmp_path: Path) -> None:
    folder = RunDirectory(tmp_path / "run").ensure().path
    assert folder.stat().st_mode & 0o777 == 0o700
    os.chmod(folder, 0o755)
    with pytest.raises(ProcessError, match="mode 0700"):
        RunDirectory(folder).ensure()
    with pytest.raises(ProcessError, match="too long"):
        RunDirectory(tmp_path / ("x" * 100)).ensure()


def test_a_folder_has_one_scheduler_at_a_time(tmp_path: Path) -> None:
    """The library would hand the socket file, and all peers, to the second one without a word."""
    folder = RunDirectory(tmp_path / "run").ensure()
    first = folder.claim()
    with pytest.raises(ProcessError, match="another scheduler"):
        folder.claim()
    os.close(first)
    os.close(folder.claim())
