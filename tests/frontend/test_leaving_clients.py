"""Clients that leave: their requests are cancelled, and nothing leaks."""

from __future__ import annotations

import socket
import struct
import time

import orjson
import pytest

from shared.messages.scheduler import Cancel, Submit
from tests.frontend.client import MESSAGES, PATH
from tests.frontend.conftest import Deployment
from tests.frontend.scripted_scheduler import SLOW, SOON_S, STUCK, Script
from tests.frontend.small_core import END


def post_raw(served: Deployment, **fields: object) -> socket.socket:
    url = served.chat.client.base_url
    connection = socket.create_connection((url.host, url.port or 80), timeout=SOON_S)
    body = orjson.dumps({"messages": MESSAGES, **fields})
    head = b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (PATH.encode(), len(body))
    connection.sendall(head + body)
    return connection


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("script", [SLOW, STUCK, Script(tuple(b"x"), hang_after=0)])
def test_a_client_that_leaves_is_cancelled(served: Deployment, reset: bool, stream: bool, script: Script) -> None:
    served.scheduler.script = script
    connection = post_raw(served, stream=stream)
    [submit] = served.scheduler.wait_for(Submit)
    time.sleep(0.05)
    if reset:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    left = time.monotonic()
    connection.close()
    [cancel] = served.scheduler.wait_for(Cancel)
    assert cancel.request == submit.request
    assert time.monotonic() - left < 3


def test_many_clients_that_leave(served: Deployment) -> None:
    served.scheduler.script = SLOW
    connections = [post_raw(served, stream=bool(i % 2)) for i in range(60)]
    served.scheduler.wait_for(Submit, 60)
    for connection in connections:
        connection.close()
    served.scheduler.wait_for(Cancel, 60)
    served.scheduler.script = Script((*b"ok", END))
    assert served.chat.whole().text == "ok"
