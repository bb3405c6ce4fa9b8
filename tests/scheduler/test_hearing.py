"""Frontends are heard beside a device that is always due: so many messages a turn as answer what was delivered."""

from __future__ import annotations

import time
from pathlib import Path

import zmq

from services.scheduler.controller import FixedWidth
from services.scheduler.frontend_side import FrontendSide
from services.scheduler.progress import Progress
from services.scheduler.tallies import Tallies
from services.scheduler.timing import Timing
from shared.channel import Client, RunDirectory, Server, waits
from shared.messages.common import new_instance
from shared.messages.frontend import FROM_SCHEDULER
from shared.messages.scheduler import FROM_FRONTEND, FrontendHello
from tests.scheduler.cores import manifest, mixing
from tests.scheduler.desk import Desk


def test_a_device_that_is_always_due_leaves_frontends_their_turn(tmp_path: Path) -> None:
    context, tallies = zmq.Context[zmq.Socket[bytes]](), Tallies()
    server = Server(context, RunDirectory(tmp_path / "run").ensure().frontends, FROM_FRONTEND)
    client = Client(context, server.address, FROM_SCHEDULER)
    roster = Desk(manifest(), mixing, FixedWidth()).roster
    side = FrontendSide(server, roster, tallies, Timing(tallies), Progress(), 1, 1, "digest")
    deadline = time.monotonic() + 20
    while not any(client.events()):
        assert time.monotonic() < deadline
    for _ in range(5):
        client.send(FrontendHello(instance=new_instance()))
    while not waits(server.socket):
        assert time.monotonic() < deadline
    time.sleep(0.5)
    assert side.receive(0.0, 3, lambda: True)
    left = 0
    while server.receive() is not None:
        left += 1
    assert left == 2
    client.close()
    server.close()
    context.term()
