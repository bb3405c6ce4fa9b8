"""The rows of an embedding table in a core: one file of whole rows, so that a row is one read wherever it lies.

`ignition` writes it, the worker and its row server read it; no torch. A row holds all that belongs to it, values and
scales, and is padded to ROW_UNIT bytes, which a gather on a device can load in wide pieces.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from recipes.components.safetensors_headers import Entry, encode_header, read_header
from shared.errors import CheckpointError
from shared.frames import Array
from shared.manifest import EmbeddingTable

ROW_UNIT = 16
"""Bytes."""


def tensor_name(table: str) -> str:
    """The name of the one tensor, uint8 [rows, row bytes], in the file of a table."""
    return f"{table}.rows"


def padded(nbytes: int) -> int:
    """Bytes of a row that holds `nbytes` of payload."""
    return -(-nbytes // ROW_UNIT) * ROW_UNIT


@dataclass(frozen=True, slots=True)
class TableFile:
    """Where the rows lie: row i at byte `offset + i * row_bytes` of `path`."""

    path: Path
    offset: int
    rows: int
    row_bytes: int

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return self.rows * self.row_bytes

    def mapped(self) -> Array:
        """The rows uint8 [rows, row_bytes] as a read-only shared mapping: what is not touched takes no memory."""
        shape = (self.rows, self.row_bytes)
        return np.memmap(self.path, dtype=np.uint8, mode="r", offset=self.offset, shape=shape)


def table_path(core: Path, name: str) -> Path:
    """The file of table `name` in a core folder."""
    return core / f"{name}.rows.safetensors"


def locate(core: Path, table: EmbeddingTable) -> TableFile:
    """The table's file, checked against the manifest. Raises `CheckpointError` for another shape or a cut file."""
    path = table_path(core, table.name)
    entries, payload = read_header(path)
    found, shape = entries.get(tensor_name(table.name)), (table.rows, table.row_bytes)
    if found is None or len(entries) != 1 or found.dtype != "U8" or found.shape != shape:
        raise CheckpointError(
            f"{path.name} does not hold the table {table.name} of {table.rows} rows of {table.row_bytes} bytes"
        )
    return TableFile(path, payload, table.rows, table.row_bytes)


def write_rows(core: Path, table: EmbeddingTable, parts: Iterable[Array]) -> None:
    """Writes `parts`, each uint8 [n, row_bytes], as the rows of a new file. Raises `CheckpointError`."""
    entry = Entry("U8", (table.rows, table.row_bytes), (0, table.nbytes))
    written = 0
    with table_path(core, table.name).open("xb") as opened:
        opened.write(encode_header({tensor_name(table.name): entry}))
        for part in parts:
            opened.write(np.ascontiguousarray(part).data)
            written += part.nbytes
    if written != table.nbytes:
        raise CheckpointError(f"the table {table.name} has {written} bytes, not {table.nbytes}")
