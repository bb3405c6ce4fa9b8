"""An embedding table in the host's memory, where a GPU reads it: the core's file, read once into registered memory.

Runs in the worker, while a core loads. Private memory rather than a mapping of the file: pages of a file can go away
under a mapping, and not every file system lets a driver pin them.
"""

from __future__ import annotations

import mmap
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil

from recipes.components.table_file import TableFile
from shared.cuda_driver import CudaFailure, Driver
from shared.cuda_regions import address_of
from shared.errors import CheckpointError, MemoryRefused

_READERS, _PART = 4, 64 << 20
"""Threads that read, and bytes that each takes at once."""
_GROUP = Path("/sys/fs/cgroup")
_GIB = 1 << 30
OTHERWISE = (
    "take --embedding-table-storage disk, which reads rows as they are needed, or gpu, if the table fits beside "
    "the weights"
)


class PinnedRows:
    """`pointer` is the device address of the table's first row. Raises `MemoryRefused`, `CheckpointError`."""

    def __init__(self, name: str, file: TableFile, driver: Driver) -> None:
        self._driver, self._address = driver, 0
        room = free_memory()
        if file.nbytes > room:
            raise MemoryRefused(
                f"the table {name} takes {file.nbytes / _GIB:.1f} GiB of host memory, of which {room / _GIB:.1f} GiB "
                f"are free: {OTHERWISE}"
            )
        self._memory = mmap.mmap(-1, file.nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(OSError):  # fewer, larger pages are registered faster; not every kernel has them
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        _read(file, memoryview(self._memory))
        address = address_of(memoryview(self._memory))
        try:
            self.pointer = driver.register(address, file.nbytes)
        except CudaFailure as error:
            raise MemoryRefused(
                f"cannot register the {file.nbytes / _GIB:.1f} GiB of table {name} with CUDA: {error}; {OTHERWISE}"
            ) from error
        self._address = address

    def close(self) -> None:
        """Unregisters and frees; after the last round that reads it. Safe to call twice."""
        if self._address:
            address, self._address = self._address, 0
            self._driver.unregister(address)
            self._memory.close()


def _read(file: TableFile, memory: memoryview) -> None:
    """All rows of the file into `memory`. Raises `CheckpointError` for a file that ends early or cannot be read."""

    def part(start: int) -> None:
        end = min(start + _PART, file.nbytes)
        while start < end:
            count = os.preadv(opened.fileno(), [memory[start:end]], file.offset + start)
            if not count:
                raise CheckpointError(f"{file.path.name} ends within its rows: is it cut short?")
            start += count

    try:
        with file.path.open("rb") as opened, ThreadPoolExecutor(_READERS) as pool:
            for _ in pool.map(part, range(0, file.nbytes, _PART)):
                pass
    except OSError as error:
        raise CheckpointError(f"cannot read {file.path.name}: {error}") from error


def free_memory(group: Path = _GROUP) -> int:
    """Bytes that this process may still take: of the machine, and of the container that it runs in."""
    room: int = psutil.virtual_memory().available
    try:
        limit = (group / "memory.max").read_text().strip()
        used = int((group / "memory.current").read_text())
        held = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return room
    if limit == "max":
        return room
    # Pages of files give way.
    return min(room, int(limit) - used + int(held.get("inactive_file", 0)))
