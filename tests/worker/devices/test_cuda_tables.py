"""What a GPU's rounds are given as tables: memory that the driver knows of, and nothing once they are closed."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor

from recipes.components.gpu.tables import HeldTable, MailboxTable
from services.worker.config import WorkerConfig
from services.worker.devices import tables as device_tables
from services.worker.devices.tables import CudaTables
from services.worker.rows import Tables
from shared.errors import MemoryRefused
from shared.manifest import EmbeddingTable, Storage
from tests.worker.row_desk import random_rows, table_core

TABLE = EmbeddingTable("ngrams", rows=500, row_bytes=96, mailbox_ids=64, storage="gpu")
ENGRAM = EmbeddingTable("engram.14", rows=70, row_bytes=272, mailbox_ids=32, storage="gpu")


class Registers:
    """As much of a driver as tables ask for. A device sees host memory where the host does."""

    device_uuid = "none"

    def __init__(self) -> None:
        self.registered: dict[int, int] = {}

    def register(self, host: int, nbytes: int) -> int:
        self.registered[host] = nbytes
        return host

    def unregister(self, host: int) -> None:
        del self.registered[host]


def host_bytes(pointer: int, count: int) -> Tensor:
    return torch.frombuffer((ctypes.c_uint8 * count).from_address(pointer), dtype=torch.uint8)


Opened = Callable[[Storage], "tuple[Tables, CudaTables, Registers]"]


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Opened]:
    """Tables of a core of two, closed in the order of a worker's end."""
    monkeypatch.setattr(device_tables, "bytes_at", host_bytes)
    core, made = tmp_path / "core", list[tuple[Tables, CudaTables]]()
    manifest = table_core(core, TABLE, ENGRAM)

    def make(storage: Storage) -> tuple[Tables, CudaTables, Registers]:
        driver, config = Registers(), WorkerConfig(core=core, run_dir=core, embedding_table_storage=storage)
        tables = Tables(config, manifest, 0x5E22)
        made.append((tables, CudaTables(tables, driver)))  # type: ignore[arg-type]
        return tables, made[-1][1], driver

    yield make
    for tables, on_device in made:
        with closing(tables):
            on_device.close()


@contextmanager
def closing(tables: Tables) -> Iterator[None]:
    tables.stop()
    yield
    tables.close()


def test_a_table_in_device_memory_is_the_recipes_to_load(opened: Opened) -> None:
    tables, on_device, driver = opened("gpu")
    assert on_device.open() == {}
    assert not driver.registered
    assert tables.rounds_in_flight == 2


def test_tables_in_host_memory_are_whole_and_registered_until_they_are_closed(opened: Opened) -> None:
    tables, on_device, driver = opened("ram")
    found = on_device.open()
    for seed, table in enumerate((TABLE, ENGRAM)):
        held = found[table.name]
        assert isinstance(held, HeldTable)
        assert (held.rows.numpy() == random_rows(seed, table.rows, table.row_bytes)).all()
    assert sorted(driver.registered.values()) == [ENGRAM.nbytes, TABLE.nbytes]
    assert tables.rounds_in_flight == 2
    on_device.close()
    assert not driver.registered


def test_a_mailbox_is_seen_by_the_device_where_its_server_sees_it(opened: Opened) -> None:
    tables, on_device, driver = opened("disk")
    found = on_device.open()
    assert tables.server is not None
    assert len(driver.registered) == 2
    assert tables.rounds_in_flight == 1
    for table in (TABLE, ENGRAM):
        behind, box = found[table.name], tables.box(table.name)
        assert isinstance(behind, MailboxTable)
        words, seen = behind._words, box.words
        words.ids[5], words.rows[3, 7], words.waits[1] = 41, 42, 43
        assert (int(seen.ids[5]), int(seen.rows[3, 7]), int(seen.waits[1])) == (41, 42, 43)
        seen.answer[0] = 4
        assert int(words.answer[0]) == 4
    assert tables.waits.count == 2 * 43
    tables.stop()
    on_device.close()
    assert not driver.registered


def test_what_was_registered_before_a_refusal_is_given_back(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    _, on_device, driver = opened("ram")
    rooms = iter((TABLE.nbytes, ENGRAM.nbytes - 1))
    monkeypatch.setattr("services.worker.devices.pinned_rows.free_memory", lambda: next(rooms))
    with pytest.raises(MemoryRefused, match=r"the table engram\.14 takes"):
        on_device.open()
    assert list(driver.registered.values()) == [TABLE.nbytes]
    on_device.close()
    assert not driver.registered
