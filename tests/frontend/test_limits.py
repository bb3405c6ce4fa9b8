"""Bounds at the HTTP end: body and header size, time to send them, clients that do not read (B55)."""

from __future__ import annotations

import random
import select
import socket
import time
from collections.abc import Iterator

import orjson
import pytest

from services.frontend import connection as http
from services.frontend.api import body
from tests.frontend.client import MESSAGES, PATH
from tests.frontend.conftest import Deployment
from tests.frontend.scripted_scheduler import SOON_S, Script
from tests.frontend.small_core import CONTEXT, END


def connect(served: Deployment) -> socket.socket:
    url = served.chat.client.base_url
    return socket.create_connection((url.host, url.port or 80), timeout=SOON_S)


def read_all(connection: socket.socket) -> bytes:
    """Everything until the server closes."""
    parts = []
    try:
        while part := connection.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def test_limit_follows_the_context() -> None:
    assert body.body_limit(CONTEXT) == 1 << 20
    assert body.body_limit(131_072) == 8 << 20


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_above_the_limit(served: Deployment, chunked: bool) -> None:
    data = b"x" * ((1 << 20) + 1)
    pieces: Iterator[bytes] = (data[i : i + 65536] for i in range(0, len(data), 65536))
    response = served.chat.client.post(PATH, content=pieces if chunked else data)
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "body_too_large"
    assert served.chat.whole(max_tokens=1).finish == "length"


def test_a_body_at_the_limit_is_read(served: Deployment) -> None:
    request = orjson.dumps({"messages": MESSAGES, "max_tokens": 1})
    response = served.chat.client.post(PATH, content=request.ljust(1 << 20))
    assert response.status_code == 200


def test_an_announced_flood_is_refused_before_it_comes(served: Deployment) -> None:
    with connect(served) as connection:
        connection.sendall(b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-length: 300000000\r\n\r\n" % PATH.encode())
        started = time.monotonic()
        assert read_all(connection).startswith(b"HTTP/1.1 413 ")
        assert time.monotonic() - started < 8


def test_a_body_that_never_ends(served: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "READ_TIMEOUT_S", 0.2)
    with connect(served) as connection:
        connection.sendall(
            b"POST %s HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{ \r\n" % PATH.encode()
        )
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"body_timeout" in answer


def test_many_large_bodies_at_once(served: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is within its own limit; together they would fill the memory."""
    monkeypatch.setattr(body, "MAXIMUM_BODY_BYTES", 2 << 20)
    head = b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n" % PATH.encode()
    connections = [connect(served) for _ in range(4)]
    for connection in connections:
        connection.sendall(head + b" " * 700_000)
    readable, _, _ = select.select(connections, [], [], 5)
    refused = readable[0].recv(65536)
    assert refused.startswith(b"HTTP/1.1 429 ")
    assert b"retry-after: " in refused
    for connection in connections:
        connection.close()
    deadline = time.monotonic() + SOON_S
    while served.chat.post(max_tokens=1, user="x" * 900_000).status_code != 200:
        assert time.monotonic() < deadline, "what the others held was not given back"
        time.sleep(0.05)


def test_headers_that_never_end(served: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "HEADER_TIMEOUT_S", 0.2)
    with connect(served) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\nx: ")
        assert read_all(connection) == b""


@pytest.mark.parametrize("complete", [False, True])
@pytest.mark.parametrize("head", [b"".join(b"x%d: y\r\n" % i for i in range(20_000)), b"x: " + b"y" * 70_000 + b"\r\n"])
def test_headers_without_bound(served: Deployment, head: bytes, complete: bool) -> None:
    """Whether they come in one piece or in many, and whether they end or not."""
    with connect(served) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\n" + head + b"\r\n" * complete)
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert b"headers_too_large" in answer


def test_a_connection_serves_many_requests(served: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """The header clock must run for each request of a connection, and only until its headers are there."""
    monkeypatch.setattr(http, "HEADER_TIMEOUT_S", 0.3)
    served.scheduler.script = Script((*b"abcdef", END), (1,), pause_s=0.1)
    request = orjson.dumps({"messages": MESSAGES})
    head = b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n" % (PATH.encode(), len(request))
    with connect(served) as connection:
        for _ in range(2):
            connection.sendall(head + b"\r\n" + request)
            assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
        connection.sendall(b"GET /health HTTP/1.1\r\nhost:")
        assert read_all(connection) == b""


def test_nonsense_on_the_wire(served: Deployment) -> None:
    with connect(served) as connection:
        connection.sendall(b"\x16\x03\x01 nonsense\r\n\r\n")
        assert read_all(connection).startswith(b"HTTP/1.1 400 ")


def test_random_bytes_never_end_the_server(served: Deployment) -> None:
    source = random.Random(3)
    start = (
        b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-length: 40\r\n\r\n" % PATH.encode()
        + b'{"messages": [], "max_tokens": 5}        '
    )
    for _ in range(150):
        data = bytearray(start)
        for _ in range(source.randint(1, 6)):
            data[source.randrange(len(data))] = source.randrange(256)
        with connect(served) as connection:
            connection.sendall(data[: source.randint(1, len(data))])
            connection.shutdown(socket.SHUT_WR)
            assert not read_all(connection).startswith(b"HTTP/1.1 5")
    assert served.chat.whole(max_tokens=1).finish == "length"
