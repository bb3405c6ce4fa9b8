"""The row server and its watchdog, with real processes and files: right rows, and every way to lose the server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from recipes.components.table_file import table_path
from shared import regions
from shared.errors import CheckpointError, ContractBreach, ProcessError, RowsLost
from shared.mailbox import Answer
from shared.manifest import EmbeddingTable
from tests.fixtures.harness import wait_until
from tests.worker.row_desk import RowDesk, expected, random_rows, table_core

NGRAMS = EmbeddingTable("ngrams", rows=3000, row_bytes=96, mailbox_ids=1024, storage="disk")
ENGRAM = EmbeddingTable("engram.14", rows=700, row_bytes=272, mailbox_ids=256, storage="disk")
"""Rows of DeepSeek's size: 256 values and 8 scales, padded."""
SOON_S = 20.0


@pytest.fixture(autouse=True)
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Shared memory of this test's own; nothing may be left in it."""
    folder = tmp_path / "memory"
    folder.mkdir()
    monkeypatch.setenv("FLARE_SHM_DIR", str(folder))
    yield folder
    assert not list(folder.iterdir())


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[RowDesk]:
    with RowDesk(tmp_path / "core", table_core(tmp_path / "core", NGRAMS, ENGRAM)) as found:
        yield found


def held_back(desk: RowDesk, ids: list[int]) -> threading.Thread:
    """Stops the server, asks for rows it has not read yet in a thread of its own; returns once a round waits."""
    os.kill(desk.server, signal.SIGSTOP)
    words = desk.mailbox("ngrams")

    def ask() -> None:
        with pytest.raises(RowsLost, match="ngrams"):
            desk.rows("ngrams", ids)

    thread = threading.Thread(target=ask)
    thread.start()
    wait_until(lambda: words.waiting, SOON_S, "a round that waits")
    return thread


def test_random_asks_get_the_rows_of_their_ids_whatever_the_cache_holds(desk: RowDesk) -> None:
    chance = np.random.default_rng(3)
    tables = {table.name: random_rows(i, table.rows, table.row_bytes) for i, table in enumerate((NGRAMS, ENGRAM))}
    for turn in range(60):
        table = (NGRAMS, ENGRAM)[turn % 2]
        ids = chance.integers(-2, table.rows // (1 + turn % 3), chance.integers(0, table.mailbox_ids))
        assert (desk.rows(table.name, ids) == expected(tables[table.name], ids)).all()


@pytest.mark.parametrize("storage", ["gpu", "ram"])
def test_the_other_storages_give_the_same_rows_without_a_server(tmp_path: Path, storage: str) -> None:
    with RowDesk(tmp_path / "core", table_core(tmp_path / "core", NGRAMS), storage) as desk:
        ids = [5, -1, 2999, 0, 5, 5]
        assert (desk.rows("ngrams", ids) == expected(random_rows(0, 3000, 96), ids)).all()
        assert desk.tables.server is None
        assert desk.tables.rounds_in_flight == 2


def test_each_row_is_asked_once_a_round_and_an_absent_one_never(desk: RowDesk) -> None:
    desk.rows("ngrams", [7, 7, -1, 9, 7, -5, 9])
    assert desk.tallies() == (2, 0, 2, 2 * 96)
    desk.rows("ngrams", [9, 11, 9])
    assert desk.tallies() == (4, 1, 3, 3 * 96)
    desk.rows("ngrams", [-1, -1])
    assert desk.tallies() == (4, 1, 3, 3 * 96)
    assert desk.tables.waits.count == 3


def test_a_server_reads_an_id_once_that_a_mailbox_holds_twice(desk: RowDesk) -> None:
    """A card publishes ids as it has them."""
    words, table = desk.mailbox("ngrams"), random_rows(0, 3000, 96)
    for ids in ([5, 3, 5, 5, 8], [8, 8, 5, 1]):
        number = words.publish(np.array(ids))
        wait_until(lambda: words.answer[0] == Answer.ROWS, SOON_S, "an answer")
        assert words.take(number)
        assert (words.rows[: len(ids)] == table[ids]).all()
        words.finish(number)
    assert desk.tallies() == (3 + 3, 2, 4, 4 * 96)


def test_a_cache_of_no_bytes_reads_every_row_anew(tmp_path: Path) -> None:
    with RowDesk(tmp_path / "core", table_core(tmp_path / "core", NGRAMS), cache=0) as desk:
        for _ in range(3):
            assert (desk.rows("ngrams", [4, 2]) == expected(random_rows(0, 3000, 96), [4, 2])).all()
        assert desk.tallies() == (6, 0, 6, 6 * 96)


def test_more_ids_than_the_mailbox_holds_are_a_breach_of_the_contract(desk: RowDesk) -> None:
    with pytest.raises(ContractBreach, match="1025 rows do not fit"):
        desk.sources["ngrams"].ask(torch.arange(1025))
    assert len(desk.rows("ngrams", list(range(1024)))) == 1024


def test_a_killed_server_fails_the_round_that_waits_and_the_next_is_served(desk: RowDesk) -> None:
    first = desk.server
    waiting = held_back(desk, [1, 2])
    os.kill(first, signal.SIGKILL)
    waiting.join(SOON_S)
    assert not waiting.is_alive()
    assert (desk.rows("ngrams", [1, 2]) == expected(random_rows(0, 3000, 96), [1, 2])).all()
    assert desk.tables.restarts == 1
    assert desk.server != first


def test_a_server_that_hangs_is_replaced_after_its_patience(tmp_path: Path) -> None:
    with RowDesk(tmp_path / "core", table_core(tmp_path / "core", NGRAMS), patience=0.5) as desk:
        first, began = psutil.Process(desk.server), time.monotonic()
        held_back(desk, [3]).join(SOON_S)
        assert time.monotonic() - began > 0.5
        assert (desk.rows("ngrams", [3]) == expected(random_rows(0, 3000, 96), [3])).all()
        assert not first.is_running()
        assert desk.tables.restarts == 1


def test_an_idle_server_is_not_taken_for_one_that_hangs(tmp_path: Path) -> None:
    with RowDesk(tmp_path / "core", table_core(tmp_path / "core", NGRAMS), patience=0.2) as desk:
        desk.rows("ngrams", [3])
        time.sleep(0.6)
        desk.rows("ngrams", [3])
        assert desk.tables.restarts == 0


def test_a_round_that_asks_while_no_server_is_there_waits_for_the_next(desk: RowDesk) -> None:
    """The loss of a server costs the rounds that waited for it, and no round after them."""
    os.kill(desk.server, signal.SIGKILL)
    wait_until(lambda: desk.tables.restarts == 1, SOON_S, "the loss")
    assert (desk.rows("ngrams", [8]) == expected(random_rows(0, 3000, 96), [8])).all()


def test_rows_for_another_ask_fail_the_round_and_not_the_next(desk: RowDesk) -> None:
    """Also asks that follow at once: each answer that is late would make the next one late."""
    words = desk.mailbox("ngrams")
    for _ in range(5):
        os.kill(desk.server, signal.SIGSTOP)
        wait_until(lambda: psutil.Process(desk.server).status() == psutil.STATUS_STOPPED, SOON_S, "a stopped server")
        asked = desk.sources["ngrams"].ask(torch.tensor([1]))
        words.tag[0], words.answer[0] = words.ring[0] - 1, Answer.ROWS
        with pytest.raises(RowsLost):
            asked.take()
        assert words.answer[0] == Answer.NONE
        os.kill(desk.server, signal.SIGCONT)
        assert any(answered_again(desk) for _ in range(200))


def answered_again(desk: RowDesk) -> bool:
    """Whether a round gets its rows: the server may have been about to answer the one that failed before."""
    try:
        found = desk.rows("ngrams", [2])
    except RowsLost:
        return False
    return bool((found == expected(random_rows(0, 3000, 96), [2])).all())


def test_a_round_right_behind_a_failed_one_does_not_find_its_poison(desk: RowDesk) -> None:
    for number in range(4):
        waiting = held_back(desk, [number])
        os.kill(desk.server, signal.SIGKILL)
        waiting.join(SOON_S)
        assert (desk.rows("ngrams", [number]) == expected(random_rows(0, 3000, 96), [number])).all()
    assert desk.tables.restarts == 4
    assert desk.tables.failure is None


def test_a_server_that_keeps_dying_ends_the_worker_with_the_reason(desk: RowDesk) -> None:
    for losses in range(1, 7):
        os.kill(desk.server, signal.SIGKILL)
        wait_until(lambda: desk.tables.restarts == losses, SOON_S, "its loss")  # noqa: B023
    wait_until(lambda: desk.tables.failure is not None, SOON_S, "the end")
    assert isinstance(desk.tables.failure, ProcessError)
    assert "lost 6 times within 60 s: it ended with code -9" in str(desk.tables.failure)
    with pytest.raises(RowsLost):
        desk.rows("ngrams", [1])


def test_a_file_that_was_cut_while_it_is_served_ends_the_worker_with_the_reason(desk: RowDesk, tmp_path: Path) -> None:
    path = table_path(tmp_path / "core", "ngrams")
    os.truncate(path, path.stat().st_size - 96 * 10)
    with pytest.raises(RowsLost):
        desk.rows("ngrams", [2995])
    wait_until(lambda: desk.tables.failure is not None, SOON_S, "the end")
    assert "its 3000 rows need" in str(desk.tables.failure)


@pytest.mark.parametrize("storage", ["gpu", "ram", "disk"])
def test_a_cut_a_missing_and_a_foreign_file_are_refused_before_anything_is_served(tmp_path: Path, storage: str) -> None:
    core = tmp_path / "core"
    manifest = table_core(core, NGRAMS)
    path = table_path(core, "ngrams")
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(CheckpointError, match="is it cut short"), RowDesk(core, manifest, storage):
        pass
    path.unlink()
    with pytest.raises(CheckpointError, match=r"ngrams\.rows\.safetensors"), RowDesk(core, manifest, storage):
        pass
    table_core(tmp_path / "other", EmbeddingTable("ngrams", 3000, 80, 8))
    path.write_bytes(table_path(tmp_path / "other", "ngrams").read_bytes())
    with pytest.raises(CheckpointError, match="3000 rows of 96 bytes"), RowDesk(core, manifest, storage):
        pass


def test_a_server_that_cannot_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it is: here the mailbox has gone before the server could open it."""
    manifest = table_core(tmp_path / "core", NGRAMS)
    desk = RowDesk(tmp_path / "core", manifest)
    for region in Path(os.environ["FLARE_SHM_DIR"]).iterdir():
        region.unlink()
    with pytest.raises(ProcessError, match="the row server cannot serve: cannot open region"), desk:
        pass


def test_it_starts_without_torch_and_without_recipes() -> None:
    """A process beside the worker may not cost what a worker does, neither in memory nor in time to be replaced."""
    look = "import sys, services.worker.rows_server; print({'torch', 'recipes'} & set(sys.modules))"
    done = subprocess.run((sys.executable, "-c", look), capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "set()"


def test_a_choice_of_storage_for_a_core_without_tables_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProcessError, match="no embedding table"):
        RowDesk(tmp_path / "core", table_core(tmp_path / "core"))


_WORKER = """
import sys, time
from pathlib import Path
from tests.worker.row_desk import RowDesk, table_core
from tests.worker.test_row_server import NGRAMS
core = Path(sys.argv[1])
with RowDesk(core, table_core(core, NGRAMS)) as desk:
    print(desk.server, flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("stopped", [False, True])
def test_the_server_dies_with_its_worker_also_while_it_is_stopped(tmp_path: Path, stopped: bool) -> None:
    worker = subprocess.Popen(
        (sys.executable, "-c", _WORKER, str(tmp_path / "core")), stdout=subprocess.PIPE, text=True
    )
    assert worker.stdout is not None
    server = psutil.Process(int(next(line for line in worker.stdout if line.strip().isdigit())))
    for number in (signal.SIGTERM, signal.SIGINT):
        server.send_signal(number)  # it drains with its worker, whoever else is told to end
    if stopped:
        server.suspend()
    assert server.is_running()
    worker.kill()
    worker.wait()
    worker.stdout.close()
    wait_until(lambda: not server.is_running(), SOON_S, "the end of the server")
    assert len(regions.sweep()) == 1
