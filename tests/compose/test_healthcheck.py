"""The health check follows the address that a service has bound, is bounded in time, and says why in one line."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from compose import healthcheck
from tests.compose.compose_file import ROOT

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


def refusal(body: bytes) -> bytes:
    return b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


@contextmanager
def answering(answer: Callable[[socket.socket, bytes], None], host: str = "127.0.0.1") -> Iterator[int]:
    """A listener at `host` that does `answer` with each connection and what it asked; its port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listening:
        listening.bind((host, 0))
        listening.listen()

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    answer(connection, connection.recv(4096))

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


def says(data: bytes) -> Callable[[socket.socket, bytes], None]:
    return lambda connection, asked: connection.sendall(data)


def tell(folder: Path, service: str, host: str, port: int) -> None:
    file, _ = healthcheck.QUESTIONS[service]
    (folder / file).write_text(json.dumps({"host": host, "port": port, "pid": 1}))


def run(service: str, folder: Path) -> tuple[int, str]:
    """The check as a container runs it: its exit code and its line."""
    command = (sys.executable, "-m", "compose.healthcheck", service)
    environment = {**os.environ, "FLARE_RUN_DIR": str(folder)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=30, check=False)
    assert not done.stderr
    assert len(done.stdout.splitlines()) == 1
    return done.returncode, done.stdout


@pytest.mark.parametrize("bound", ["127.0.0.1", "0.0.0.0", "::1", "::"])
def test_it_asks_where_the_service_listens(bound: str, tmp_path: Path) -> None:
    with answering(says(OK), {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(bound, bound)) as port:
        tell(tmp_path, "frontend", bound, port)
        assert healthcheck.check("frontend", tmp_path) == ""


@pytest.mark.parametrize(("service", "path"), [("frontend", "/ready"), ("scheduler", "/health"), ("worker", "/health")])
def test_a_frontend_is_asked_for_readiness_and_the_others_for_life(service: str, path: str, tmp_path: Path) -> None:
    asked: list[bytes] = []

    def answer(connection: socket.socket, request: bytes) -> None:
        asked.append(request)
        connection.sendall(OK)

    with answering(answer) as port:
        tell(tmp_path, service, "127.0.0.1", port)
        assert run(service, tmp_path) == (0, f"{service}: well\n")
    assert asked[0].startswith(f"GET {path} HTTP".encode())


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"status": "not ready", "reason": "no worker is attached"}', "503 no worker is attached"),
        (b"out of order\nfor long", "503 out of order for long"),
        (b"x" * 9000, "503 xxx"),
    ],
)
def test_a_refusal_is_unhealthy_and_its_reason_one_short_line(body: bytes, words: str, tmp_path: Path) -> None:
    with answering(says(refusal(body))) as port:
        tell(tmp_path, "worker", "127.0.0.1", port)
        code, line = run("worker", tmp_path)
    assert code == 1
    assert words in line
    assert len(line) < 300


def test_a_service_that_has_not_said_its_address_is_unhealthy(tmp_path: Path) -> None:
    code, line = run("scheduler", tmp_path)
    assert code == 1
    assert "scheduler.metrics.json" in line


def test_the_address_of_a_dead_service_is_unhealthy(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        tell(tmp_path, "worker", "127.0.0.1", unused.getsockname()[1])
        code, line = run("worker", tmp_path)
    assert code == 1
    assert "refused" in line


def test_an_answer_that_drips_in_counts_as_none(tmp_path: Path) -> None:
    done = threading.Event()

    def drip(connection: socket.socket, asked: bytes) -> None:
        for byte in OK[:-2] * 100:
            try:
                connection.sendall(bytes([byte]))
            except OSError:
                return
            if done.wait(0.2):
                return

    with answering(drip) as port:
        tell(tmp_path, "worker", "127.0.0.1", port)
        started = time.monotonic()
        code, line = run("worker", tmp_path)
        done.set()
    assert code == 1
    assert "no answer within" in line
    assert time.monotonic() - started < healthcheck.LIMIT_S + 10


def test_an_unknown_service_is_a_mistake() -> None:
    command = (sys.executable, "-m", "compose.healthcheck", "holder")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert "usage" in done.stderr
