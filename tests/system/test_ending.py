"""SIGTERM drains: readiness turns off at once, running streams finish, and the exit code is 0."""

from __future__ import annotations

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.fixtures.harness import Server, wait_until
from tests.system.conftest import SLOW
from tests.system.reader import LONG, Reader


def test_running_streams_finish_and_new_work_is_refused(slow: Server) -> None:
    with ThreadPoolExecutor(8) as pool:
        readers = [Reader(slow, pool, f"{LONG} {i}", max_tokens=200) for i in range(3)]
        assert all(reader.begun.wait(20) for reader in readers)
        slow.processes["run"].send_signal(signal.SIGTERM)
        wait_until(lambda: not slow.ready(), 2, "not ready")
        with slow.client() as client:
            body = {"messages": [{"role": "user", "content": "say:x"}]}
            assert client.post("/v1/chat/completions", json=body).status_code == 503
        for reader in readers:
            found = reader.result.result(30)
            assert [event.finish for event in found if event.finish] == ["length"]
            assert found[-1].data is None
    assert slow.stop() == 0


def test_the_drain_limit_ends_a_stream_with_an_error_frame(core: Path) -> None:
    with Server(core, ("--drain-timeout", "1"), environment={"T1_FORWARD_SECONDS": "0.05"}) as server:
        server.wait_ready()
        with ThreadPoolExecutor(2) as pool:
            reader = Reader(server, pool, LONG, max_tokens=900)
            assert reader.begun.wait(20)
            began = time.monotonic()
            assert server.stop() == 0
            assert time.monotonic() - began < 8
            last = reader.result.result(5)[-1]
    assert last.error is not None
    assert last.error["code"] == "service_unavailable"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_it_quickly(core: Path, number: signal.Signals) -> None:
    with Server(core, ("--drain-timeout", "60"), environment=SLOW) as server:
        server.wait_ready()
        with ThreadPoolExecutor(2) as pool:
            reader = Reader(server, pool, LONG, max_tokens=950)
            assert reader.begun.wait(20)
            server.processes["run"].send_signal(number)
            time.sleep(0.5)
            server.processes["run"].send_signal(number)
            began = time.monotonic()
            server.processes["run"].wait(10)
            assert time.monotonic() - began < 6
            reader.result.exception(5)


def test_a_signal_while_loading_ends_cleanly(core: Path) -> None:
    with Server(core) as server:
        wait_until(lambda: len(server.tree()) >= 3, 20, "children")
        assert server.stop() == 0


def test_an_idle_keep_alive_connection_does_not_hold_it_up(core: Path) -> None:
    with Server(core) as server:
        server.wait_ready()
        with httpx.Client(base_url=server.url, trust_env=False) as client:
            assert client.get("/health").status_code == 200
            began = time.monotonic()
            assert server.stop() == 0
            assert time.monotonic() - began < 8
