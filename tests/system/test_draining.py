"""SIGTERM in every order: whoever is told to end first, no stream is lost that could have finished (B60)."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import orjson
import pytest

from tests.fixtures.harness import SERVICES, Server, wait_until
from tests.system.conftest import SLOW
from tests.system.observer import observing
from tests.system.reader import LONG, Reader

BODY = {"messages": [{"role": "user", "content": "say:new"}]}


class Work:
    """Four streams that run and two requests that wait, and what they must bring."""

    def __init__(self, server: Server, pool: ThreadPoolExecutor, label: str) -> None:
        self._label = label
        with observing(server) as observer:
            self.running = [Reader(server, pool, f"{LONG} {label} {i}", max_tokens=300) for i in range(4)]
            assert all(reader.begun.wait(20) for reader in self.running)
            self.queued = [Reader(server, pool, f"say:queued {label} {i}", max_tokens=60) for i in range(2)]
            wait_until(lambda: observer.status().waiting == 2, 10, "two wait")

    def running_finish(self) -> None:
        for reader in self.running:
            reader.text()
            assert [event.finish for event in reader.result.result() if event.finish] == ["length"]

    def queued_finish(self) -> None:
        for i, reader in enumerate(self.queued):
            assert reader.text() == f"queued {self._label} {i}"


@pytest.fixture(scope="module")
def apart(core: Path) -> Iterator[Server]:
    """Services that nobody supervises, as in compose; a test leaves all three running."""
    with Server(core, ("--drain-timeout", "40"), supervised=False, environment=SLOW) as running:
        running.wait_ready()
        yield running


def end(server: Server, *names: str) -> None:
    """Waits for a clean end of each."""
    for name in names:
        assert server.processes[name].wait(60) == 0, server.log


def again(server: Server, *names: str) -> None:
    """Starts services anew."""
    for name in names:
        server.start(name)
    server.wait_ready()


@pytest.mark.parametrize(
    "order",
    [
        pytest.param(("worker", "scheduler", "frontend"), id="worker first"),
        pytest.param(("scheduler", "frontend", "worker"), id="scheduler first", marks=pytest.mark.slow),
        pytest.param(("frontend", "worker", "scheduler"), id="frontend first", marks=pytest.mark.slow),
    ],
)
def test_told_all_at_once_they_finish_what_runs_and_what_waits(apart: Server, order: tuple[str, ...]) -> None:
    with ThreadPoolExecutor(8) as pool:
        work = Work(apart, pool, order[0])
        for name in order:
            apart.processes[name].send_signal(signal.SIGTERM)
        wait_until(lambda: not apart.ready(), 3, "not ready")
        work.running_finish()
        work.queued_finish()
    end(apart, *SERVICES)
    again(apart, *SERVICES)


def test_a_worker_that_is_told_alone_finishes_what_it_has_and_the_queue_waits_for_the_next(apart: Server) -> None:
    with ThreadPoolExecutor(8) as pool:
        work = Work(apart, pool, "worker")
        apart.processes["worker"].send_signal(signal.SIGTERM)
        wait_until(lambda: not apart.ready(), 3, "not ready")
        work.running_finish()
        end(apart, "worker")
        assert not any(reader.result.done() for reader in work.queued)
        again(apart, "worker")
        work.queued_finish()


def test_a_scheduler_that_is_told_alone_finishes_all_and_takes_nothing_new(apart: Server) -> None:
    with ThreadPoolExecutor(8) as pool:
        work = Work(apart, pool, "scheduler")
        apart.processes["scheduler"].send_signal(signal.SIGTERM)
        wait_until(lambda: not apart.ready(), 3, "not ready")
        with apart.client() as client:
            refused = client.post("/v1/chat/completions", json=BODY)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "service_unavailable")
        work.running_finish()
        work.queued_finish()
        end(apart, "scheduler")
    again(apart, "scheduler")
    assert apart.chat("say:on", max_tokens=9)["choices"][0]["message"]["content"] == "on"


def test_the_whole_server_finishes_its_queue_beside_idle_and_stuck_connections(core: Path) -> None:
    """Whoever does not read is given up at the drain limit; whoever is idle is not waited for."""
    with Server(core, ("--drain-timeout", "20"), environment=SLOW) as server, ThreadPoolExecutor(8) as pool:
        server.wait_ready()
        with httpx.Client(base_url=server.url, trust_env=False) as idle:
            assert idle.get("/health").status_code == 200
            work = Work(server, pool, "whole")
            server.processes["run"].send_signal(signal.SIGTERM)
            wait_until(lambda: not server.ready(), 3, "not ready")
            with server.client() as client:
                assert client.post("/v1/chat/completions", json=BODY).status_code == 503
            work.running_finish()
            work.queued_finish()
            assert server.stop() == 0


def test_a_client_that_does_not_read_holds_the_end_up_no_longer_than_the_limit(core: Path) -> None:
    with Server(core, ("--drain-timeout", "2")) as server:
        server.wait_ready()
        url = httpx.URL(server.url)
        stuck = socket.socket()
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stuck.connect((url.host, url.port or 80))
        fields = {"stream": True, "logprobs": True, "top_logprobs": 20, "max_tokens": 900, "n": 4}
        body = orjson.dumps({"messages": [{"role": "user", "content": LONG}], **fields})
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        stuck.sendall(head + b"content-length: %d\r\n\r\n" % len(body) + body)
        try:
            with observing(server) as observer:
                wait_until(lambda: observer.status().running > 0, 10, "running")
                wait_until(lambda: observer.status().running == 0, 60, "generated")
            began = time.monotonic()
            assert server.stop() == 0
            assert 1.5 < time.monotonic() - began < 10, "it was stuck, and it was given up"
        finally:
            stuck.close()
