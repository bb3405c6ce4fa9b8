"""`flare run --device cuda --embedding-table-storage`: one core, its table in each place, to real HTTP clients."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from shared import metrics
from shared.manifest import read
from tests.fixtures.harness import Event, Server, wait_until
from tests.system.scrapes import scrape
from tests.worker.devices.qwen38 import small_core

pytestmark = pytest.mark.gpu
TOKENS = 48
SOON_S = 30.0


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_core(tmp_path_factory.mktemp("served-tables"), (1, 4))


@contextmanager
def running(core: Path, storage: str, frames: str = "ipc") -> Iterator[Server]:
    options = ("--device", "cuda", "--frames", frames, "--speculative-fixed-width", "4")
    table = ("--embedding-table-storage", storage, "--embedding-table-cache-size", "64KiB")
    with Server(core, (*options, *table)) as server:
        server.wait_ready(120)
        yield server


def said(server: Server, seed: int) -> list[object]:
    """An answer's tokens, which bytes that are no text would hide."""
    fields = {"temperature": 2.0, "top_k": -1, "top_p": 1.0, "seed": seed, "max_tokens": TOKENS}
    choice = server.chat("why is the sky blue?", **fields, ignore_eos=True, logprobs=True)["choices"][0]
    return [entry["bytes"] for entry in choice["logprobs"]["content"]]


def row_servers(server: Server) -> list[psutil.Process]:
    return [process for process in server.tree() if "services.worker.rows_server" in process.cmdline()]


def lose_row_server(server: Server) -> Event:
    """Kills the row server while a stream runs; the error that this ends with."""
    [lost] = row_servers(server)
    with server.stream("tell me something long", max_tokens=180, ignore_eos=True, temperature=1.0) as stream:
        next(event for event in stream if event.text)
        lost.suspend()  # so that a round does wait
        time.sleep(0.2)
        lost.kill()
        failures = [event for event in stream if event.error is not None]
    wait_until(lambda: [process.pid for process in row_servers(server)] not in ([], [lost.pid]), SOON_S, "another")
    return failures[-1]


@pytest.mark.timeout(400)
def test_the_answers_are_the_same_wherever_the_table_lies_and_survive_its_server(core: Path) -> None:
    with running(core, "gpu") as server:
        wanted = [said(server, seed) for seed in (1, 2)]
        assert len(wanted[0]) == TOKENS
        assert said(server, 1) == wanted[0]
    with running(core, "ram", "host") as server:
        assert [said(server, seed) for seed in (1, 2)] == wanted
        assert row_servers(server) == []
    with running(core, "disk") as server:
        assert [said(server, seed) for seed in (1, 2)] == wanted
        worker, [table] = scrape(server, "worker"), read(core).embedding_tables
        misses = worker.total(metrics.ROW_CACHE_MISSES)
        assert misses > 0
        assert worker.total(metrics.ROWS_ASKED) == worker.total(metrics.ROW_CACHE_HITS) + misses
        assert worker.total(metrics.ROW_BYTES_READ) == misses * table.row_bytes
        assert worker.total(metrics.ROW_WAIT_SECONDS) > TOKENS / 4
        number = server.process("worker").pid
        failure = lose_row_server(server)
        assert failure.error is not None
        assert failure.error["code"] == "round_failed"
        assert "row server" in failure.error["message"]
        assert [said(server, seed) for seed in (1, 2)] == wanted
        assert server.process("worker").pid == number, "the worker stays"
        assert scrape(server, "worker").total(metrics.ROW_SERVER_RESTARTS) == 1
        assert server.stop() == 0
