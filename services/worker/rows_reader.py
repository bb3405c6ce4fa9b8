"""Reads rows of a core's file by id, several at a time. In the row server's process; nothing is mapped.

Rows are scattered, so each is one read of its own, and only many at once keep a disk busy: a thread's read leaves the
interpreter to the others.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from shared.errors import CheckpointError
from shared.frames import Array

READERS = 16
SHARE = 32
"""Fewest rows that are worth a reader of their own."""


class RowReader:
    """The rows of one file. Raises `CheckpointError` if it is shorter than `rows` need."""

    def __init__(self, path: Path, offset: int, rows: int, row_bytes: int) -> None:
        self._path, self._offset, self._rows, self._row_bytes = path, offset, rows, row_bytes
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise CheckpointError(f"cannot open {path}: {error.strerror}") from error
        size, needed = os.fstat(self._file).st_size, offset + rows * row_bytes
        if size < needed:
            raise CheckpointError(f"{path} has {size} bytes, its {rows} rows need {needed}: is it cut short?")
        # Reading ahead of a row that nobody asked for would cost a disk's time and push rows out of the page cache.
        os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_RANDOM)
        self._pool = ThreadPoolExecutor(READERS, "rows")

    def read(self, ids: Array, out: Array, progressed: Callable[[], None]) -> None:
        """Rows of `ids` int64 [n] into `out` uint8 [n, row_bytes]; `progressed` is called now and then meanwhile.

        Raises `CheckpointError` for an id outside of the table, and for a file that cannot be read.
        """
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < self._rows:
            raise CheckpointError(f"{self._path.name} has no row {int(ids.min())} or {int(ids.max())}")
        # Neighbours in the file go to one reader. A share stays small, so that progress shows on a slow disk too.
        parts = [slice(start, start + SHARE) for start in range(0, len(ids), SHARE)]
        if len(parts) <= 1:
            self._read(ids, out)
            return
        for _ in self._pool.map(lambda part: self._read(ids[part], out[part]), parts):
            progressed()

    def _read(self, ids: Array, out: Array) -> None:
        for row, target in zip(ids.tolist(), out, strict=True):
            at = self._offset + row * self._row_bytes
            try:
                count = os.preadv(self._file, [target.data], at)
            except OSError as error:
                raise CheckpointError(f"cannot read {self._path} at byte {at}: {error.strerror}") from error
            if count != self._row_bytes:
                raise CheckpointError(f"{self._path} ends at byte {at + count}, inside row {row}")
