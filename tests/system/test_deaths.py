"""Deaths that come again or take others along: errors in the model, supervisors, workers that never get ready.

The plain death or stop of each service is in `test_signals.py`.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import psutil

from compose.restarts import MOST_DEATHS
from tests.fixtures.harness import Server, wait_until
from tests.system.reader import LONG, Reader


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
