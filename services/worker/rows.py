"""Where the embedding tables of a core lie for this worker: device memory, host memory, or behind a row server.

Runs in the worker. Decides nothing but what the operator chose; the bill says what each choice takes. Mailboxes are
made with the frames, everything else when the core is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import structlog
import torch

from recipes.components.embedding_rows import HeldRows, MappedRows, RowSource
from recipes.components.mailbox_rows import MailboxRows
from recipes.components.table_file import TableFile, locate
from services.worker.config import WorkerConfig
from services.worker.rows_server import Order, ServedTable
from services.worker.rows_watch import RowWatch
from shared import regions
from shared.errors import ProcessError
from shared.frames import FRAMES, Layout
from shared.histogram import Histogram
from shared.mailbox import Mailbox, Tally, mailbox, mailbox_layout
from shared.manifest import EmbeddingTable, Manifest, Storage, storages
from shared.metrics import ROW_WAIT_BOUNDS


@dataclass(frozen=True, slots=True)
class Box:
    """One table's mailbox: the memory, what lies where in it, and its words as this process sees them."""

    region: regions.PosixRegion
    layout: Layout
    words: Mailbox


class Tables:
    """The tables of one core. `bytes_by_storage` is what lies where. Raises `ProcessError` for a vain choice."""

    def __init__(self, config: WorkerConfig, manifest: Manifest, instance: int, servers: bool = True) -> None:
        self._config = config
        self._tables = manifest.embedding_tables
        self._storages = storages(manifest, config.embedding_table_storage)
        self._served: dict[str, MailboxRows] = {}
        self._regions: list[regions.PosixRegion] = []
        self._layouts: list[Layout] = []
        self._mailboxes: list[Mailbox] = []
        self._watch: RowWatch | None = None
        self.bytes_by_storage: dict[Storage, int] = dict.fromkeys(("gpu", "ram", "disk"), 0)
        for table in self._tables:
            storage = self._storages[table.name]
            self.bytes_by_storage[storage] += table.nbytes
            if storage == "disk" and not servers:
                raise ProcessError(f"table {table.name} lies on disk, and nobody here would end its row server")
            if storage == "disk":
                self._make_mailbox(table, instance)

    @property
    def rounds_in_flight(self) -> int:
        """Rounds that may be queued. One behind a row server, until two are measured to be safe on a card."""
        return 1 if self._served else FRAMES

    def open(self) -> Mapping[str, RowSource]:
        """The rows of each table by its name, for the CPU; starts the row server if one is needed. Called once.

        Raises `CheckpointError` for a file that is not what the manifest says, `ProcessError` without a row server.
        """
        files = self.start()
        return {name: self._served.get(name) or _source(self._storages[name], file) for name, file in files.items()}

    def start(self) -> Mapping[str, TableFile]:
        """The file of each table by its name; starts the row server if one is needed. Called once. Raises as `open`."""
        files = {table.name: locate(self._config.core, table) for table in self._tables}
        if self._served:
            self._start_server(files)
        for table in self._tables:
            structlog.get_logger().info(
                "worker.embedding_table",
                table=table.name,
                storage=self._storages[table.name],
                rows=table.rows,
                bytes=table.nbytes,
                server=self.server if table.name in self._served else None,
            )
        return files

    def storage(self, name: str) -> Storage:
        """Where table `name` lies."""
        return self._storages[name]

    def box(self, name: str) -> Box:
        """The mailbox of table `name`, which lies on disk."""
        chosen = list(self._served).index(name)
        return Box(self._regions[chosen], self._layouts[chosen], self._mailboxes[chosen])

    def stop(self) -> None:
        """Ends the row server: rounds that wait for rows do not get them. Mailboxes stay. Safe to call twice."""
        if self._watch is not None:
            self._watch.close()

    def close(self) -> None:
        """Ends the row server and removes the mailboxes; nothing has them registered any more."""
        self.stop()
        self._mailboxes.clear()
        for region in self._regions:
            region.close()

    @property
    def failure(self) -> BaseException | None:
        """Why there are no rows any more; None while all is well."""
        return None if self._watch is None else self._watch.failure

    @property
    def server(self) -> int | None:
        """Process id of the row server."""
        return None if self._watch is None else self._watch.process

    @property
    def restarts(self) -> int:
        """How often the row server was lost and replaced."""
        return 0 if self._watch is None else self._watch.restarts

    def tally(self, column: Tally) -> int:
        """What row servers have counted, over all tables."""
        return sum(int(words.tallies[column]) for words in self._mailboxes)

    @property
    def waits(self) -> Histogram:
        """Seconds that rounds waited for rows, over all tables."""
        total = Histogram(ROW_WAIT_BOUNDS)
        for source in self._served.values():
            total.add(source.waits)
        for words in self._mailboxes:
            found = Histogram(ROW_WAIT_BOUNDS)  # a device's own, which are zero on the CPU
            *found.counts, nanoseconds = words.waits.tolist()
            found.total = nanoseconds / 1e9
            total.add(found)
        return total

    def _make_mailbox(self, table: EmbeddingTable, instance: int) -> None:
        layout = mailbox_layout(table.mailbox_ids, table.row_bytes)
        region = regions.create(f"rows-{table.name}", layout.nbytes, instance)
        words = mailbox(layout, region.payload)
        self._regions.append(region)
        self._layouts.append(layout)
        self._mailboxes.append(words)
        self._served[table.name] = MailboxRows(table.name, words)

    def _start_server(self, files: Mapping[str, TableFile]) -> None:
        chosen = [table for table in self._tables if table.name in self._served]
        served = tuple(
            _served(table, files[table.name], region) for table, region in zip(chosen, self._regions, strict=True)
        )
        order = Order(served, self._config.embedding_table_cache_size)
        # A server is given up before the round that waits for it is.
        patience = min(self._config.embedding_row_timeout, self._config.round_timeout / 2)
        self._watch = RowWatch(order, tuple(self._mailboxes), patience)
        self._watch.launch()


def _served(table: EmbeddingTable, file: TableFile, region: regions.PosixRegion) -> ServedTable:
    path = str(file.path.absolute())
    return ServedTable(table.name, path, file.offset, table.rows, table.row_bytes, table.mailbox_ids, region.handle)


def _source(storage: Storage, file: TableFile) -> RowSource:
    rows = file.mapped()
    return MappedRows(rows) if storage == "ram" else HeldRows(torch.from_numpy(np.array(rows)))
