"""Any process may die: who lost state gets one clear error soon, who waits is served, and nobody is left behind."""

from __future__ import annotations

import signal
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Event

import psutil
import pytest

from compose.restarts import MOST_DEATHS
from tests.fixtures import harness
from tests.fixtures.harness import Server, wait_until

LONG = "tell me a long story"


class Reader:
    """Reads one stream in a thread: `begun` after its first text, `result` its events."""

    def __init__(self, server: Server, pool: ThreadPoolExecutor, text: str, **fields: object) -> None:
        self.begun = Event()
        self._server, self._text, self._fields = server, text, fields
        self.result: Future[list[harness.Event]] = pool.submit(self._read)

    def _read(self) -> list[harness.Event]:
        found = []
        try:
            with self._server.stream(self._text, **self._fields) as events:
                for event in events:
                    found.append(event)
                    if event.text:
                        self.begun.set()
        finally:
            self.begun.set()
        return found


def test_a_killed_worker_costs_four_streams_and_not_the_fifth(slow: Server) -> None:
    with ThreadPoolExecutor(8) as pool:
        running = [Reader(slow, pool, f"{LONG} {i}", max_tokens=900) for i in range(4)]
        assert all(reader.begun.wait(20) for reader in running)
        queued = Reader(slow, pool, "say:the fifth", max_tokens=50)
        time.sleep(0.3)
        killed = slow.kill("worker")
        at = time.monotonic()
        for reader in running:
            last = reader.result.result(20)[-1]
            assert last.error is not None, last
            assert last.error["code"] == "state_lost"
            assert last.at - at < 1.5
        found = queued.result.result(40)
    assert "".join(event.text for event in found) == "the fifth"
    assert found[-1].data is None
    slow.wait_ready()
    assert slow.process("worker").pid != killed
    assert not [process for process in slow.tree() if process.status() == psutil.STATUS_ZOMBIE]
    assert slow.chat("say:on", max_tokens=9)["choices"][0]["message"]["content"] == "on"


def test_a_killed_scheduler_costs_what_it_held(slow: Server) -> None:
    worker = slow.process("worker").pid
    with ThreadPoolExecutor(8) as pool:
        reader = Reader(slow, pool, LONG, max_tokens=900)
        assert reader.begun.wait(20)
        slow.kill("scheduler")
        at = time.monotonic()
        last = reader.result.result(20)[-1]
    assert last.error is not None
    assert last.at - at < 1.5
    slow.wait_ready()
    assert slow.chat("say:on", max_tokens=9)["choices"][0]["message"]["content"] == "on"
    assert slow.process("worker").pid == worker


def test_a_killed_frontend_returns_at_its_port_and_frees_the_lanes(slow: Server) -> None:
    url = slow.url
    with ThreadPoolExecutor(8) as pool:
        readers = [Reader(slow, pool, f"{LONG} {i}", max_tokens=900) for i in range(4)]
        assert all(reader.begun.wait(20) for reader in readers)
        slow.kill("frontend")
        for reader in readers:
            assert reader.result.exception(20) is not None
    wait_until(slow.ready, 20, "ready again")
    assert slow.url == url
    began = time.monotonic()
    assert slow.chat("say:on", max_tokens=9)["choices"][0]["message"]["content"] == "on"
    assert time.monotonic() - began < 5, "the dead frontend's requests still hold the lanes"


def test_an_exception_in_the_model_ends_the_request_and_restarts_the_worker(slow: Server) -> None:
    with slow.client() as client:
        body = {"messages": [{"role": "user", "content": "crash;say:x"}], "max_tokens": 5}
        answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code in (500, 503)
    assert "error" in answer.json()
    slow.wait_ready()
    assert slow.chat("say:on", max_tokens=9)["choices"][0]["message"]["content"] == "on"


def test_everything_ends_when_the_supervisor_is_killed(slow: Server) -> None:
    with ThreadPoolExecutor(8) as pool:
        reader = Reader(slow, pool, LONG, max_tokens=900)
        assert reader.begun.wait(20)
        children = [process for process in slow.tree() if process.pid != slow.processes["run"].pid]
        assert len(children) == 3
        slow.processes["run"].kill()
        slow.processes["run"].wait()
        _, alive = psutil.wait_procs(children, timeout=8)
        assert not alive
        reader.result.exception(10)


def test_a_supervisor_killed_while_loading_leaves_nobody(core: Path) -> None:
    with Server(core) as server:
        wait_until(lambda: len(server.tree()) >= 2, 20, "a child")
        children = server.tree()[1:]
        server.processes["run"].kill()
        server.processes["run"].wait()
        _, alive = psutil.wait_procs(children, timeout=8)
        assert not alive


@pytest.mark.parametrize("name", ["scheduler", "worker"])
def test_a_stopped_service_turns_readiness_off_and_recovers(slow: Server, name: str) -> None:
    slow.signal(name, signal.SIGSTOP)
    try:
        wait_until(lambda: not slow.ready(), 15, "503")
        with slow.client() as client:
            assert client.get("/health").status_code == 200
            assert client.get("/ready").json()["reason"]
    finally:
        slow.signal(name, signal.SIGCONT)
    slow.wait_ready()
    assert slow.chat("say:on", max_tokens=9)["choices"][0]["message"]["content"] == "on"


def test_a_worker_that_never_gets_ready_again_is_given_up(slow: Server) -> None:
    supervisor, killed = slow.processes["run"], {0}

    def over() -> bool:
        try:
            worker = slow.process("worker")
        except LookupError:
            return supervisor.poll() is not None
        if worker.pid not in killed:
            killed.add(worker.pid)
            worker.kill()
        return False

    wait_until(over, 30, "given up")
    assert supervisor.returncode == 1
    assert MOST_DEATHS <= len(killed) - 1 <= MOST_DEATHS + 1  # one may fall before the supervisor saw readiness
    assert "supervisor.gave_up" in slow.log


def test_a_crash_between_many_neighbours_is_survived_repeatedly(slow: Server) -> None:
    for _ in range(3):
        barrier = Barrier(3)

        def ask(text: str, gate: Barrier = barrier) -> int:
            gate.wait(10)
            with slow.client() as client:
                body = {"messages": [{"role": "user", "content": text}], "max_tokens": 20, "temperature": 0}
                return client.post("/v1/chat/completions", json=body).status_code

        with ThreadPoolExecutor(4) as pool:
            codes = list(pool.map(ask, ["say:one", "crash;", "say:two"]))
        assert codes[1] in (500, 503)
        slow.wait_ready()
