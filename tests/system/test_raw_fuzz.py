"""A thousand and more connections of bytes that no client library would send, against a whole server (B24, B48, B55).

Seeded. No answer may be a 5xx, no process may die or grow, no request may stay behind, and a stream beside keeps its
pace.
"""

from __future__ import annotations

import random
import re
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.fixtures.harness import Server, wait_until
from tests.system.pace import PROMPT, idle, memory, streaming_beside

SEED = 20261130
CASES = 800
CLIENTS = 4
GROWTH_MIB = 64
"""What a service may gain. A leak of one unread body in each case would be hundreds."""

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
PATHS = (
    CHAT,
    COMPLETIONS,
    "/tokenize",
    "/detokenize",
    "/v1/models",
    "/health",
    "/metrics",
    "/",
    "/openapi.json",
    "/no",
)
BODY = b'{"messages": [{"role": "user", "content": "say:hello"}], "max_tokens": 5}'
STREAM = BODY[:-1] + b', "stream": true}'
GOOD = (
    (CHAT, BODY),
    (CHAT, STREAM),
    (COMPLETIONS, b'{"prompt": [[115, 97, 121], [58, 104]], "n": 2, "max_tokens": 3, "logprobs": 1, "stream": true}'),
    ("/tokenize", b'{"prompt": "some text", "add_special_tokens": true}'),
    ("/detokenize", b'{"tokens": [104, 101, 108]}'),
)
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")


def request(body: bytes = BODY, path: str = CHAT, *lines: bytes, length: int | None = None) -> bytes:
    """A request whose announced length may be wrong."""
    announced = b"content-length: %d" % (len(body) if length is None else length)
    head = (b"POST %s HTTP/1.1" % path.encode(), b"host: x", b"content-type: application/json", announced, *lines)
    return b"\r\n".join((*head, b"", b"")) + body


def chunked(*chunks: bytes, path: str = CHAT) -> bytes:
    head = b"POST %s HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" % path.encode()
    return head + b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)


def noise(source: random.Random) -> bytes:
    return source.randbytes(source.randint(1, 4000))


def changed(source: random.Random) -> bytes:
    """A good request with some bytes turned over."""
    data = bytearray(request(source.choice((BODY, STREAM)), source.choice(PATHS)))
    for _ in range(source.randint(1, 8)):
        data[source.randrange(len(data))] = source.randrange(256)
    return bytes(data)


def changed_body(source: random.Random) -> bytes:
    """Good HTTP around JSON with some bytes turned over, taken out or put in."""
    path, good = source.choice(GOOD)
    body = bytearray(good)
    for _ in range(source.randint(1, 5)):
        place = source.randrange(len(body))
        match source.randrange(3):
            case 0:
                body[place] = source.randrange(256)
            case 1:
                del body[place]
            case _:
                body[place:place] = source.choice((b'"', b"}", b"\\u", b"\\ud800", b"[", b"1e999", b"\x00", b"NaN"))
    return request(bytes(body), path)


def torn(source: random.Random) -> bytes:
    data = request(source.choice((BODY, STREAM)))
    return data[: source.randrange(len(data))]


def wrong_length(source: random.Random) -> bytes:
    return request(source.choice((BODY, STREAM)), length=source.choice((0, 1, 50, 100, 10_000, 1 << 31, 1 << 70)))


def pipelined(source: random.Random) -> bytes:
    kinds = (request(), request(STREAM), b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n", request(b"{}"), changed(source))
    return b"".join(source.choice(kinds) for _ in range(source.randint(2, 12)))


def huge_headers(source: random.Random) -> bytes:
    count, size = source.choice(((1, 200_000), (5000, 10), (300, 300), (1, 60_000), (20, 2000)))
    lines = [b"x-%d: %s" % (i, bytes(source.choices(b"abc \t\xff\x80", k=size))) for i in range(count)]
    return request(BODY, CHAT, *lines)


def strange_headers(source: random.Random) -> bytes:
    value = bytes(source.choices(range(1, 256), k=source.randint(0, 60))).replace(b"\n", b"").replace(b"\r", b"")
    name = source.choice(
        (b"x-request-id", b"authorization", b"content-type", b"expect", b"connection", b"upgrade", b"host",
         b"content-encoding", b"transfer-encoding", b"origin", b"accept", b"traceparent", b"cookie")
    )  # fmt: skip
    return request(BODY, CHAT, name + b": " + value)


def bad_chunks(source: random.Random) -> bytes:
    good = chunked(BODY[:20], BODY[20:])
    match source.randrange(6):
        case 0:
            return good  # never ends
        case 1:
            return good + b"0\r\n\r\n"
        case 2:
            return good + b"0\r\nx: y\r\n\r\n" + noise(source)
        case 3:
            return good.replace(b"14\r\n", source.choice((b"-1\r\n", b"zz\r\n", b"ffffffffffffffff\r\n", b"13\r\n")), 1)
        case 4:
            return good + b"5;" + b"x" * source.randint(1, 70_000)
        case _:
            return chunked(*(bytes((byte,)) for byte in BODY)) + b"0\r\n\r\n"


def strange_target(source: random.Random) -> bytes:
    target = source.choice(
        (b"*", b"http://x/health", b"//", b"/%", b"/%00", b"/%ff%fe", b"/v1/models/" + b"a" * 999, b"/?" + b"a=&" * 999,
         b"/../../etc/passwd", b"/v1/models/%0d%0aSet-Cookie:%20a", b"?", b"/\xc3\xa9", b"/h#x", b"http://[", b"x:1")
    )  # fmt: skip
    method = source.choice(
        (b"GET", b"POST", b"OPTIONS", b"HEAD", b"DELETE", b"PATCH", b"TRACE", b"CONNECT", b"PRI", b"M")
    )
    return method + b" " + target + b" HTTP/1.1\r\nhost: x\r\n\r\n"


def nested(source: random.Random) -> bytes:
    depth = source.choice((100, 2_000, 100_000))
    start = source.choice((b'{"messages": ', b'{"logit_bias": ', b'{"nobody": ', b""))
    return request(start + source.choice((b"[", b'{"a":')) * depth)


def numbers(source: random.Random) -> bytes:
    """Numbers that JSON does not have, or that no field takes."""
    name = source.choice(("temperature", "top_p", "min_p", "frequency_penalty", "seed", "max_tokens", "top_k", "n"))
    value = source.choice(
        ("NaN", "Infinity", "-Infinity", "1e999", "-0", "0.5e", "1" * 5000, "true", '"1"', "1.0", "[]")
    )
    return request(BODY[:-1].replace(b', "max_tokens": 5', b"") + f', "max_tokens": 5, "{name}": {value}}}'.encode())


KINDS: tuple[Callable[[random.Random], bytes], ...] = (
    noise, changed, changed_body, torn, wrong_length, pipelined, huge_headers, strange_headers, bad_chunks,
    strange_target, nested, numbers,
)  # fmt: skip


def send(connection: socket.socket, data: bytes, source: random.Random) -> None:
    """In one piece, or torn at random places with pauses."""
    if source.random() < 0.7:
        connection.sendall(data)
        return
    cuts = sorted(source.randrange(len(data) + 1) for _ in range(source.randint(1, 5)))
    for start, end in zip((0, *cuts), (*cuts, len(data)), strict=True):
        connection.sendall(data[start:end])
        time.sleep(source.random() / 100)


def converse(port: int, kind: Callable[[random.Random], bytes], source: random.Random) -> bytes:
    """One connection, ended in one of four ways; returns what was answered."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout=source.choice((0.02, 0.3))) as connection:
        ending = source.choice(("wait", "half", "close", "reset"))
        try:
            send(connection, kind(source), source)
            if ending == "half":
                connection.shutdown(socket.SHUT_WR)
            while ending in ("wait", "half") and (part := connection.recv(65536)):
                answer += part
        except OSError:
            pass  # time is up, or the server has closed, as it may
        if ending == "reset":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return answer


@pytest.mark.parametrize("cases", [CASES, pytest.param(10 * CASES, marks=pytest.mark.slow)])
def test_raw_bytes(server: Server, cases: int, capsys: pytest.CaptureFixture[str]) -> None:
    expected = server.chat(PROMPT)["choices"][0]["message"]["content"]
    server.chat("say:warm")
    port = int(server.url.rsplit(":", 1)[1])
    pids = {name: server.process(name).pid for name in ("frontend", "scheduler", "worker")}
    before, logged = memory(server), len(server.log)

    def one(number: int) -> tuple[str, list[int]]:
        source = random.Random(SEED + number)
        kind = KINDS[number % len(KINDS)]
        return kind.__name__, [int(status) for status in _STATUS.findall(converse(port, kind, source))]

    started = time.monotonic()
    with streaming_beside(server, expected) as pace, ThreadPoolExecutor(CLIENTS) as clients:
        outcomes = list(clients.map(one, range(cases)))
    seconds, after = time.monotonic() - started, memory(server)

    statuses = Counter(status for _, found in outcomes for status in found)
    failed = [(number, kind) for number, (kind, found) in enumerate(outcomes) if any(status >= 500 for status in found)]
    with capsys.disabled():
        print(f"\nraw fuzz: {cases} connections in {seconds:.0f} s, {dict(statuses)}; {pace}; MiB {before} to {after}")
    assert not failed, f"5xx for cases {failed[:5]}"
    assert not [line for line in server.log[logged:].splitlines() if "fault" in line or "warning" in line]
    assert {name: server.process(name).pid for name in pids} == pids, "a service died"
    pace.check()
    assert statuses[200] > cases / 50, "hardly anything was understood: the fuzz misses its aim"
    for name in pids:
        assert after[name] - before[name] < GROWTH_MIB, name
    wait_until(lambda: idle(server), 10, "no request left behind")
    assert server.ready()
    assert server.chat(PROMPT)["choices"][0]["message"]["content"] == expected


def test_floods_cost_no_memory(server: Server) -> None:
    """300 MB in one body, announced or not, from several clients at once: 413 soon, and nothing of it is kept."""
    port = int(server.url.rsplit(":", 1)[1])
    before = memory(server)["frontend"]
    piece = b"10000\r\n" + b" " * (1 << 16) + b"\r\n"

    def flood(announced: bool) -> bytes:
        head = request(b"", length=300_000_000) if announced else chunked()
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            connection.sendall(head)
            connection.settimeout(0.01)
            for _ in range(300_000_000 // len(piece)):
                try:
                    connection.sendall(piece)
                    return connection.recv(65536)
                except TimeoutError:
                    continue  # it is not read any more, or not answered yet
                except OSError:
                    break
            return b""

    with ThreadPoolExecutor(8) as clients:
        answers = list(clients.map(flood, (True, False) * 8))
    assert sum(answer.startswith(b"HTTP/1.1 413 ") for answer in answers) > len(answers) / 2
    assert memory(server)["frontend"] - before < GROWTH_MIB
    wait_until(lambda: idle(server), 10, "no request left behind")
