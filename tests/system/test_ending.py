"""The limits of a drain: its time, a second signal, a signal while loading. Who finishes is in `test_draining.py`."""

from __future__ import annotations

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.fixtures.harness import Server, wait_until
from tests.system.conftest import SLOW
from tests.system.reader import LONG, Reader


def test_the_drain_limit_ends_a_stream_with_an_error_frame(core: Path) -> None:
    with Server(core, ("--drain-timeout", "1"), environment={"T1_FORWARD_SECONDS": "0.05"}) as server:
        server.wait_ready()
        with ThreadPoolExecutor(2) as pool:
            reader = Reader(server, pool, LONG, max_tokens=900)
            assert reader.begun.wait(20)
            began = time.monotonic()
            assert server.stop() == 0
            assert time.monotonic() - began < 8
            last = reader.result.result(20)[-1]
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
