"""`flare run --embedding-table-storage`: the same answers from device memory, host memory and disk, and a row server
that dies, hangs, or is left behind by its worker."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from recipes.declaration import PreparationConfig
from recipes.qwen38.recipe import Qwen38
from recipes.qwen38.tiny import tiny_architecture, write_tiny
from shared import metrics
from shared.manifest import read
from tests.fixtures.harness import Event, Server, wait_until
from tests.system.scrapes import scrape

TEXTS = ("hello", "tell me something long " * 8)
BUDGET = 32
SOON_S = 30.0


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables-served")
    write_tiny(folder / "checkpoint", tiny_architecture(), seed=2)
    config = PreparationConfig(context_length=1024, speculative_widths=(1, 4), prefill_buckets=(32, 128))
    Qwen38().export(folder / "checkpoint", folder / "core", config, lambda what, done, total: None)
    return folder / "core"


@contextmanager
def running(core: Path, storage: str, *options: str) -> Iterator[Server]:
    """A ready server whose arithmetic does not depend on what else runs."""
    arguments = ("--deterministic", "--threads", "1", "--embedding-table-storage", storage, *options)
    with Server(core, arguments) as server:
        server.wait_ready()
        yield server


@pytest.fixture(scope="module")
def served(core: Path) -> Iterator[Server]:
    """Rows from disk; a server that hangs is missed after a second."""
    with running(core, "disk", "--embedding-row-timeout", "1", "--embedding-table-cache-size", "64KiB") as server:
        yield server


def answers(server: Server) -> list[str]:
    """Greedy ones; what an answer says is its tokens, which bytes that are no text would hide."""
    found = []
    for text in TEXTS:
        choice = server.chat(text, max_tokens=BUDGET, ignore_eos=True, logprobs=True)["choices"][0]
        found.append("".join(str(entry["bytes"]) for entry in choice["logprobs"]["content"]))
    return found


def row_servers(server: Server) -> list[psutil.Process]:
    """The row servers among the server's processes."""
    return [process for process in server.tree() if "services.worker.rows_server" in process.cmdline()]


def only_row_server(server: Server) -> psutil.Process:
    wait_until(lambda: len(row_servers(server)) == 1, SOON_S, "one row server")
    return row_servers(server)[0]


@pytest.fixture(scope="module")
def wanted(core: Path) -> list[str]:
    """What the core says with its table in device memory."""
    with running(core, "gpu") as server:
        assert "storage=gpu" in server.log or '"storage":"gpu"' in server.log
        assert row_servers(server) == []
        return answers(server)


def test_a_table_in_host_memory_gives_the_same_answers(core: Path, wanted: list[str]) -> None:
    with running(core, "ram") as server:
        assert answers(server) == wanted
        assert row_servers(server) == []


def test_a_table_on_disk_gives_the_same_answers_and_counts_its_rows(
    core: Path, served: Server, wanted: list[str]
) -> None:
    assert answers(served) == wanted
    worker, [table] = scrape(served, "worker"), read(core).embedding_tables
    asked, hits = worker.total(metrics.ROWS_ASKED), worker.total(metrics.ROW_CACHE_HITS)
    misses = worker.total(metrics.ROW_CACHE_MISSES)
    assert asked == hits + misses
    assert misses > 0
    assert worker.total(metrics.ROW_BYTES_READ) == misses * table.row_bytes
    assert worker.total(metrics.ROW_WAIT_SECONDS) > BUDGET / 4
    assert worker.total(metrics.TABLE_BYTES, storage="disk") == table.nbytes == worker.total(metrics.TABLE_BYTES)
    assert worker.total(metrics.ROW_SERVER_RESTARTS) == 0


@pytest.mark.parametrize("fault", ["kill", "hang"])
def test_a_lost_row_server_costs_the_requests_that_waited_for_it_and_no_later_one(
    served: Server, wanted: list[str], fault: str
) -> None:
    before = scrape(served, "worker").total(metrics.ROW_SERVER_RESTARTS)
    lost = only_row_server(served)
    worker = served.process("worker").pid
    with served.stream(TEXTS[1], max_tokens=600, ignore_eos=True) as stream:
        next(event for event in stream if event.text)
        lost.suspend()  # so that a round does wait
        if fault == "kill":
            time.sleep(0.2)
            lost.kill()
        failure = last_error(stream)
    assert failure.error is not None
    assert failure.error["code"] == "round_failed"
    assert "row server" in failure.error["message"]
    assert answers(served) == wanted
    assert not lost.is_running()
    assert served.process("worker").pid == worker, "the worker stays"
    assert scrape(served, "worker").total(metrics.ROW_SERVER_RESTARTS) == before + 1


def last_error(stream: Iterator[Event]) -> Event:
    return [event for event in stream if event.error is not None][-1]


def test_a_row_server_goes_with_its_killed_worker_and_the_next_worker_has_its_own(
    served: Server, wanted: list[str]
) -> None:
    left = only_row_server(served)
    left.suspend()
    killed = served.kill("worker")
    wait_until(lambda: not left.is_running(), SOON_S, "the end of the row server")
    wait_until(lambda: not psutil.pid_exists(killed), SOON_S, "the end of the worker")
    served.wait_ready()
    assert answers(served) == wanted
    assert only_row_server(served).pid != left.pid


def test_a_server_that_is_told_to_end_still_has_its_rows(served: Server) -> None:
    """Its row server is told too, as service managers do: the running stream ends whole. `served` ends with this."""
    rows = only_row_server(served)
    with served.stream("hello", max_tokens=100, ignore_eos=True) as stream:
        next(event for event in stream if event.text)
        for number in (signal.SIGTERM, signal.SIGINT):
            rows.send_signal(number)
        served.processes["run"].terminate()
        told = list(stream)
    assert told[-1].data is None, "the stream ends with [DONE]"
    assert not [event for event in told if event.error]
    wait_until(lambda: not rows.is_running(), SOON_S, "the end of the row server")
