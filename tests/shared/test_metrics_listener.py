"""The metrics port: what it answers, that nobody can block it, and where it says that it is."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from prometheus_client.core import Metric

from shared import metrics, metrics_listener
from shared.errors import ProcessError
from shared.exposition import ALIVE_S, Exposition, number, standing
from shared.metrics_address import check_address, notice
from shared.metrics_listener import AT_ONCE, served
from shared.pulse import Pulse


@dataclass
class Body:
    """What a service would say of itself."""

    alive: str = ""
    ready: str = ""
    broken: bool = False

    def exposition(self) -> Exposition:
        def collect() -> Iterator[Metric]:
            if self.broken:
                raise RuntimeError("a fault in the numbers")
            yield number(metrics.REQUESTS_WAITING, 7)

        return Exposition(collect, lambda: self.ready, lambda: "m", lambda: self.alive)


@contextmanager
def running(tmp_path: Path, body: Body, host: str = "127.0.0.1", port: int = 0) -> Iterator[httpx.Client]:
    run_dir = tmp_path / "run"
    with served(body.exposition(), "worker", host, port, run_dir):
        at = json.loads(notice(run_dir, "worker").read_bytes())
        shown = f"[{at['host']}]" if ":" in at["host"] else at["host"]
        assert at["pid"] == os.getpid()
        with httpx.Client(base_url=f"http://{shown}:{at['port']}", trust_env=False, timeout=20) as client:
            yield client
    assert not notice(run_dir, "worker").exists()


def test_life_and_readiness_are_told_apart(tmp_path: Path) -> None:
    body = Body(ready="the worker is loading")
    with running(tmp_path, body) as client:
        assert client.get("/health").json() == {"status": "alive"}
        loading = client.get("/ready")
        assert (loading.status_code, loading.json()["reason"]) == (503, "the worker is loading")
        body.ready = ""
        assert (client.get("/ready").status_code, client.get("/ready").json()) == (200, {"status": "ready"})
        body.alive = "the main loop has stood still for 12 s"
        for path in ("/health", "/ready"):
            answer = client.get(path)
            assert (answer.status_code, answer.json()["reason"]) == (503, body.alive)
        assert client.get("/health?verbose=1").status_code == 503
        assert client.get("/").status_code == client.get("/metrics/x").status_code == 404
        assert client.post("/metrics").status_code == 501
        assert "flare:num_requests_waiting" in client.get("/metrics").text


def test_a_fault_costs_one_answer(tmp_path: Path) -> None:
    body = Body(broken=True)
    with running(tmp_path, body) as client:
        with pytest.raises(httpx.RemoteProtocolError):
            client.get("/metrics")
        assert client.get("/health").status_code == 200
        body.broken = False
        assert client.get("/metrics").status_code == 200


def test_silent_clients_block_nobody_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_listener._Answers, "timeout", 0.3)
    with running(tmp_path, Body()) as client, contextlib.ExitStack() as stack:
        address = (client.base_url.host, client.base_url.port)
        for _ in range(AT_ONCE):
            stack.enter_context(socket.create_connection(address)).sendall(b"GET /met")
        deadline, answered = time.monotonic() + 20, False
        while not answered and time.monotonic() < deadline:
            try:
                answered = client.get("/health").status_code == 200
            except httpx.TransportError:
                time.sleep(0.05)
        assert answered


def test_garbage_is_answered_or_dropped(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    lines = b"".join(b"x%d: y\r\n" % n for n in range(200))
    with running(tmp_path, Body()) as client:
        for data in (
            b"\x00\xff\r\n\r\n",
            b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
            b"GET / HTTP/1.1\r\n" + lines + b"\r\n",
        ):
            address = (client.base_url.host, client.base_url.port)
            with socket.create_connection(address) as connection, contextlib.suppress(OSError):
                connection.sendall(data)
                connection.recv(100)
        assert client.get("/health").status_code == 200
    assert "x199" not in "".join(capfd.readouterr())


def test_addresses_that_cannot_be_had_are_said(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ProcessError, match="for metrics"), running(tmp_path, Body(), port=port):
            pass
    assert not notice(tmp_path / "run", "worker").exists()
    for host, port in (("127.0.0.1", 1 << 16), ("127.0.0.1", -1), ("", 9101)):
        with pytest.raises(ProcessError):
            check_address(host, port)


def test_it_listens_where_it_is_told(tmp_path: Path) -> None:
    with running(tmp_path, Body(), host="0.0.0.0") as client:
        assert client.base_url.host == "0.0.0.0"
        assert client.get("/health").status_code == 200
    if socket.has_ipv6:
        with running(tmp_path, Body(), host="::1") as client:
            assert client.get("/health").status_code == 200


def test_no_port_serves_nothing(tmp_path: Path) -> None:
    before = threading.active_count()
    with served(Body().exposition(), "worker", "127.0.0.1", None, tmp_path / "run"):
        assert threading.active_count() == before
    assert not (tmp_path / "run").exists()


def test_a_successors_notice_stays(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with served(Body().exposition(), "worker", "127.0.0.1", 0, run_dir):
        notice(run_dir, "worker").write_text(json.dumps({"host": "127.0.0.1", "port": 1, "pid": 1}))
    assert json.loads(notice(run_dir, "worker").read_bytes())["pid"] == 1


def test_a_loop_that_stands_still_is_not_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.exposition.PULSE", pulse := Pulse())
    assert standing(1e9) == "", "it has not begun to turn"
    pulse.at = 100.0
    assert standing(100.0 + ALIVE_S) == ""
    assert "stood still for 31 s" in standing(131.0)
