"""Tables of random rows behind a real row server, as a worker has them: files, mailboxes, watchdog, process."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import torch
from torch import Tensor

from recipes.components.mailbox_rows import MailboxRows
from recipes.components.table_file import write_rows
from services.worker.config import WorkerConfig
from services.worker.rows import Tables
from shared.frames import Array
from shared.mailbox import Mailbox, Tally
from shared.manifest import EmbeddingTable, Manifest, read
from tests.fixtures.harness import wait_until
from tests.fixtures.scripted.recipe import make_core

INSTANCE = 0x5E21


def random_rows(seed: int, rows: int, row_bytes: int) -> Array:
    """uint8 [rows, row_bytes]; no two rows alike but by a chance that does not occur."""
    return np.random.default_rng(seed).integers(0, 256, (rows, row_bytes), dtype=np.uint8)


def table_core(folder: Path, *tables: EmbeddingTable) -> Manifest:
    """The manifest of a scripted core that has these tables; their files hold `random_rows` seeded by their order."""
    core = make_core(folder)
    manifest = msgspec.structs.replace(read(core), embedding_tables=tables)
    for seed, table in enumerate(tables):
        rows = random_rows(seed, table.rows, table.row_bytes)
        write_rows(core, table, np.array_split(rows, 3))
    return manifest


@dataclass
class RowDesk:
    """The tables of a core, opened as `storage` says. Closing it ends the server."""

    core: Path
    manifest: Manifest
    storage: str = "disk"
    cache: int = 1 << 20
    patience: float = 30.0
    tables: Tables = field(init=False)

    def __post_init__(self) -> None:
        config = msgspec.convert(
            {
                "core": self.core,
                "run_dir": self.core,
                "embedding_table_storage": self.storage,
                "embedding_table_cache_size": self.cache,
                "embedding_row_timeout": self.patience,
            },
            WorkerConfig,
        )
        self.tables = Tables(config, self.manifest, INSTANCE)

    def __enter__(self) -> RowDesk:
        try:
            self.sources = self.tables.open()
        except BaseException:
            self.tables.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.tables.close()

    def rows(self, name: str, ids: list[int] | Array) -> Array:
        """What a round gets."""
        found: Tensor = self.sources[name].ask(torch.tensor(ids, dtype=torch.int64)).take()
        return found.numpy()

    @property
    def server(self) -> int:
        """Process id of the row server that serves now, or will in a moment."""
        wait_until(lambda: self.tables.server is not None, 20.0, "a row server")
        assert self.tables.server is not None
        return self.tables.server

    def mailbox(self, name: str) -> Mailbox:
        source = self.sources[name]
        assert isinstance(source, MailboxRows)
        return source._mailbox

    def tallies(self) -> tuple[int, int, int, int]:
        """Rows asked, hits, misses, bytes read."""
        asked, hits, misses, read_ = (self.tables.tally(column) for column in Tally)
        return asked, hits, misses, read_


def expected(rows: Array, ids: list[int] | Array) -> Array:
    """The rows of `ids` from the table itself; zeros for absent ones."""
    places = np.asarray(ids, dtype=np.int64)
    return np.where((places >= 0)[:, None], rows[places.clip(0)], 0)
