"""What a raw client may do to a connection: early answers, pipelining, upgrades, malformed requests (B24, B55)."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable

import orjson
import pytest

from services.frontend import connection as http
from shared.messages.scheduler import Cancel, Submit
from tests.frontend.client import MESSAGES, PATH
from tests.frontend.conftest import Deployment
from tests.frontend.scripted_scheduler import Script
from tests.frontend.small_core import END
from tests.frontend.test_limits import connect, read_all
from tests.frontend.test_refusals import check_error

HEALTH = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"


def chat(body: bytes | None = None, *headers: bytes, length: int | None = None) -> bytes:
    """A chat request; `length` announces more than comes."""
    body = orjson.dumps({"messages": MESSAGES, "max_tokens": 3}) if body is None else body
    lines = (b"POST %s HTTP/1.1" % PATH.encode(), b"host: x", *headers)
    announced = b"content-length: %d" % (len(body) if length is None else length)
    return b"\r\n".join((*lines, announced, b"", b"")) + body


def read_until(connection: socket.socket, done: Callable[[bytes], bool]) -> bytes:
    """Reads until there is enough. Raises `TimeoutError`."""
    data = b""
    while not done(data):
        part = connection.recv(65536)
        if not part:
            break
        data += part
    return data


@pytest.mark.parametrize(
    "kind", ["application/x-www-form-urlencoded", "text/plain", "application/jsonp", "multipart/form-data", "json",
             "application/json; charset=latin-1", "application/json, text/plain"],
)  # fmt: skip
def test_a_body_of_another_kind(served: Deployment, kind: str) -> None:
    response = served.chat.client.post(PATH, content=b'{"messages": []}', headers={"content-type": kind})
    check_error(response, 415, "unsupported_media_type", None)
    message = response.json()["error"]["message"]
    assert "Content-Type: application/json" in message
    assert ("charset UTF-8" in message) == ("charset" in kind)


@pytest.mark.parametrize(
    "kind", [None, "application/json", "Application/JSON;charset=UTF-8", 'application/json; charset="utf-8"; v=1'],
)  # fmt: skip
def test_json_by_whatever_name(served: Deployment, kind: str | None) -> None:
    content = orjson.dumps({"messages": MESSAGES, "max_tokens": 1})
    headers = {} if kind is None else {"content-type": kind}
    assert served.chat.client.post(PATH, content=content, headers=headers).status_code == 200


@pytest.mark.parametrize(("coding", "status"), [("gzip", 415), ("br, gzip", 415), ("x", 415), ("identity", 200)])
def test_compressed_bodies(served: Deployment, coding: str, status: int) -> None:
    content = orjson.dumps({"messages": MESSAGES, "max_tokens": 1})
    response = served.chat.client.post(PATH, content=content, headers={"content-encoding": coding})
    assert response.status_code == status


def test_an_early_answer_leaves_the_connection_usable(served: Deployment) -> None:
    """The body of a refused request comes after the refusal, and must not be taken for the next request."""
    with connect(served) as connection:
        for _ in range(3):
            body = HEALTH * 5000
            head = chat(b"", b"content-type: text/plain", length=len(body))
            connection.sendall(head)
            assert read_until(connection, lambda data: data.endswith(b"}}")).startswith(b"HTTP/1.1 415 ")
            connection.sendall(body)
        connection.sendall(HEALTH)
        answer = read_until(connection, lambda data: b'"alive"' in data)
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert answer.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize("closing", [(), (b"connection: close",)])
def test_an_unwanted_body_that_never_ends(served: Deployment, closing: tuple[bytes, ...]) -> None:
    """The answer can be read, and the connection does not stay for ever."""
    with connect(served) as connection:
        connection.sendall(chat(b"", b"content-type: text/plain", *closing, length=1 << 30))
        started, taken = time.monotonic(), 0
        connection.settimeout(5)
        try:
            while time.monotonic() - started < 10:
                taken += connection.send(b"x" * 65536)
        except OSError:
            pass
        assert time.monotonic() - started < 5
        assert taken < (64 << 20)


def test_the_answer_survives_a_flood_behind_it(served: Deployment) -> None:
    """Closing on unread data would reset the connection, and the client would see no answer."""
    with connect(served) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)  # so that the server must read all of it
        connection.sendall(chat(b"x" * (4 << 20), b"connection: close", length=1 << 30))
        assert read_until(connection, lambda data: data.endswith(b"}}")).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize(
    "data",
    [
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x00\x01\x02\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\nbad header\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\nx: \x00\r\n\r\n",
        b"GET \xff\xfe HTTP/1.1\r\nhost: x\r\n\r\n",
        b"CONNECT example.org:443 HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET http:// HTTP/1.1\r\nhost: x\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: -5\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n",
        b"POST %s HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n" % PATH.encode(),
        b"POST %s HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n%s\r\n" % (PATH.encode(), b"f" * 20),
        b"POST %s HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{}}}}\r\n" % PATH.encode(),
    ],
)
def test_what_is_not_http(served: Deployment, data: bytes) -> None:
    with connect(served) as connection:
        connection.sendall(data)
        head, _, body = read_all(connection).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 4")
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}


def test_an_options_request_for_the_whole_server(served: Deployment) -> None:
    with connect(served) as connection:
        connection.sendall(b"OPTIONS * HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert read_all(connection).startswith(b"HTTP/1.1 4")


def test_nonsense_in_the_midst_of_a_stream_ends_it(served: Deployment) -> None:
    """An error answer there would be read as a part of the stream."""
    served.scheduler.script = Script(tuple(b"x" * 500), pause_s=0.02)
    with connect(served) as connection:
        connection.sendall(chat(orjson.dumps({"messages": MESSAGES, "stream": True})))
        first = read_until(connection, lambda data: b"data: " in data)
        connection.sendall(b"nonsense\r\n\r\n")
        rest = read_all(connection)
    assert first.startswith(b"HTTP/1.1 200 ")
    assert b"HTTP/1.1 400" not in rest
    served.scheduler.wait_for(Cancel)


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("behind", [HEALTH, HEALTH * 10, chat(), chat(b"x" * 60_000), HEALTH[:12]])
def test_a_client_that_pipelines_and_goes(served: Deployment, behind: bytes, stream: bool, together: bool) -> None:
    """What waits behind a request must not hide from it that the client is gone."""
    served.scheduler.script = Script(tuple(b"x" * 500), pause_s=0.05)
    with connect(served) as connection:
        connection.sendall(chat(orjson.dumps({"messages": MESSAGES, "stream": stream})) + behind * together)
        served.scheduler.wait_for(Submit)
        time.sleep(0.1)
        if not together:
            connection.sendall(behind)
            time.sleep(0.1)
    served.scheduler.wait_for(Cancel)
    assert len(served.scheduler.of(Submit)) == 1


def test_pipelined_requests_are_answered_in_order(served: Deployment) -> None:
    served.scheduler.script = Script((*b"abc", END), (1,), pause_s=0.05)
    with connect(served) as connection:
        connection.sendall(chat() + HEALTH + chat() + HEALTH.replace(b"/health", b"/nothing"))
        answer = read_until(connection, lambda data: b"not_found" in data)
    kinds = [answer.find(b"abc"), answer.find(b"alive"), answer.rfind(b"abc"), answer.find(b"not_found")]
    assert kinds == sorted(kinds)
    assert kinds[0] < kinds[2]
    assert answer.count(b"HTTP/1.1 200") == 3


@pytest.mark.parametrize("flood", [HEALTH * 500, chat(b"x" * (1 << 20))])
def test_pipelining_without_bound(served: Deployment, flood: bytes) -> None:
    served.scheduler.script = Script(tuple(b"x" * 500), pause_s=0.05)
    with connect(served) as connection:
        connection.sendall(chat(orjson.dumps({"messages": MESSAGES})))
        served.scheduler.wait_for(Submit)
        try:
            connection.sendall(flood)
        except OSError:
            pass
        assert read_all(connection) == b""
    served.scheduler.wait_for(Cancel)


def test_an_offered_upgrade_is_ignored(served: Deployment) -> None:
    """Java's client offers HTTP/2 with each request; it is answered in HTTP/1.1, twice on one connection."""
    offer = (b"connection: Upgrade, HTTP2-Settings", b"upgrade: h2c", b"http2-settings: AAEAAEAAAAIAAAAB")
    with connect(served) as connection:
        for _ in range(2):
            connection.sendall(chat(None, *offer))
            answer = read_until(connection, lambda data: b'"finish_reason"' in data)
            assert answer.startswith(b"HTTP/1.1 200 "), answer


def test_slow_headers_between_two_requests(served: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "HEADER_TIMEOUT_S", 0.3)
    with connect(served) as connection:
        connection.sendall(chat(b"", b"content-type: text/plain", length=10))
        read_until(connection, lambda data: data.endswith(b"}}"))
        connection.sendall(b"x" * 10 + HEALTH)
        read_until(connection, lambda data: b"alive" in data)
        started = time.monotonic()
        for piece in (b"GET /hea", b"lth HTTP/1.1\r\n", b"x: y\r\n"):
            connection.sendall(piece)
        assert read_all(connection) == b""
        assert time.monotonic() - started < 8


def test_what_is_not_http_does_not_fill_the_log(served: Deployment, capfd: pytest.CaptureFixture[str]) -> None:
    """The level is debug: whoever scans the port writes no line that an operator must read."""
    for _ in range(5):
        with connect(served) as connection:
            connection.sendall(b"nonsense\r\n\r\n")
            read_all(connection)
    assert "Invalid HTTP" not in "".join(capfd.readouterr())
