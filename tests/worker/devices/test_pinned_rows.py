"""A table that a GPU reads in host memory: read whole, registered once; refused with the way out if it does not fit."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest

from recipes.components.table_file import TableFile, locate, table_path
from services.worker.devices import pinned_rows
from services.worker.devices.pinned_rows import PinnedRows, free_memory
from shared.cuda_driver import CudaFailure
from shared.errors import CheckpointError, MemoryRefused
from shared.manifest import EmbeddingTable
from tests.worker.row_desk import random_rows, table_core

TABLE = EmbeddingTable("ngrams", rows=3000, row_bytes=96, mailbox_ids=64, storage="ram")


class Registers:
    """As much of a driver as a table asks for: what is registered, by address."""

    device_uuid = "none"

    def __init__(self, refuses: bool = False) -> None:
        self._refuses = refuses
        self.registered: dict[int, int] = {}

    def register(self, host: int, nbytes: int) -> int:
        if self._refuses:
            raise CudaFailure(2, "CUDA_ERROR_OUT_OF_MEMORY")
        self.registered[host] = nbytes
        return host + (1 << 40)

    def unregister(self, host: int) -> None:
        del self.registered[host]


def open_table(file: TableFile, driver: Registers) -> PinnedRows:
    return PinnedRows("ngrams", file, driver)  # type: ignore[arg-type]


@pytest.fixture
def file(tmp_path: Path) -> TableFile:
    table_core(tmp_path / "core", TABLE)
    return locate(tmp_path / "core", TABLE)


@pytest.mark.parametrize("part", [1 << 20, 4096, 1000])
def test_every_row_lies_in_registered_memory_until_the_table_is_closed(
    file: TableFile, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pinned_rows, "_PART", part)
    driver = Registers()
    rows = open_table(file, driver)
    [(address, nbytes)] = driver.registered.items()
    assert (rows.pointer, nbytes) == (address + (1 << 40), file.nbytes)
    assert ctypes.string_at(address, nbytes) == random_rows(0, TABLE.rows, TABLE.row_bytes).tobytes()
    rows.close()
    assert not driver.registered
    rows.close()


def test_a_table_that_is_larger_than_free_memory_is_refused_before_it_is_read(
    file: TableFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pinned_rows, "free_memory", lambda: file.nbytes - 1)
    with pytest.raises(MemoryRefused, match=r"--embedding-table-storage disk, .* or gpu"):
        open_table(file, Registers())


def test_memory_that_cannot_be_registered_is_an_error_with_the_way_out(file: TableFile) -> None:
    with pytest.raises(MemoryRefused, match=r"cannot register .* .CUDA_ERROR_OUT_OF_MEMORY.*--embedding-table-storage"):
        open_table(file, Registers(refuses=True))


def test_a_file_that_shrinks_while_it_is_read_is_no_table(file: TableFile, tmp_path: Path) -> None:
    os.truncate(table_path(tmp_path / "core", "ngrams"), file.offset + file.nbytes - 1)
    with pytest.raises(CheckpointError, match="is it cut short"):
        open_table(file, Registers())


def test_a_container_has_what_its_limit_leaves_and_the_pages_of_files_that_it_holds(tmp_path: Path) -> None:
    machine = free_memory(tmp_path)
    assert machine > 0
    for name, text in {"memory.max": "1000000\n", "memory.current": "700000\n"}.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "memory.stat").write_text("anon 5\ninactive_file 200000\nactive_file 3\n")
    assert free_memory(tmp_path) == 500_000
    (tmp_path / "memory.max").write_text("max\n")
    assert free_memory(tmp_path) > 1_000_000
