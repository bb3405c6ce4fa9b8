"""A recording of rounds: what a bench replays in a worker alone to find the floor under the service.

The first entry tells what its worker had been told. Each other one holds a graph index, the plan frame it took and when
it ran. Plans decide everything a round does, so the same plans from a fresh catalog on give the same accepted counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from services.worker.config import WorkerConfig
from shared.manifest import Storage

_LENGTH_BYTES = 8
UNKNOWN = -1
"""Emitted tokens of a round whose completion frame was written again before it was read."""


class RecordedWorker(msgspec.Struct, frozen=True):
    """Those options of a worker that decide what its rounds do and how long they take."""

    device: Literal["cpu", "cuda"] = "cpu"
    threads: int | None = None
    deterministic: bool = False
    frames: Literal["ipc", "host"] = "ipc"
    storage: Storage | None = None
    """Of embedding tables; None: as the core says."""

    @classmethod
    def of(cls, config: WorkerConfig) -> RecordedWorker:
        """Those of a configuration."""
        return cls(config.device, config.threads, config.deterministic, config.frames, config.embedding_table_storage)

    def config(self, core: Path) -> WorkerConfig:
        """One that prepares the same rounds, without services around it."""
        return WorkerConfig(
            core=core,
            run_dir=core,
            device=self.device,
            threads=self.threads,
            deterministic=self.deterministic,
            frames=self.frames,
            embedding_table_storage=self.storage,
        )


class RecordedRound(msgspec.Struct, frozen=True):
    """Times in nanoseconds of the monotonic clock."""

    graph: int
    plan: bytes
    begin_ns: int
    end_ns: int
    emitted: int
    """Tokens of all its lanes, or `UNKNOWN`."""


class Recording:
    """Appends rounds to a file, length-prefixed, behind the entry of their worker."""

    def __init__(self, path: Path, worker: RecordedWorker) -> None:
        self._file = path.open("wb", buffering=1 << 20)
        self._encoder = msgspec.msgpack.Encoder()
        self._write(worker)
        self._file.flush()  # whoever waits for a ready server can read it then

    def append(self, entry: RecordedRound) -> None:
        """Adds one round."""
        self._write(entry)

    def _write(self, entry: RecordedWorker | RecordedRound) -> None:
        data = self._encoder.encode(entry)
        self._file.write(len(data).to_bytes(_LENGTH_BYTES, "little") + data)

    def close(self) -> None:
        """Flushes and closes the file."""
        self._file.close()


def rounds_of(path: Path) -> Iterator[RecordedRound]:
    """Every whole round of a recording, in order; a cut-off tail is left out."""
    decoder, entries = msgspec.msgpack.Decoder(RecordedRound), _entries(path)
    next(entries, None)
    for data in entries:
        yield decoder.decode(data)


def worker_of(path: Path) -> RecordedWorker:
    """What the worker of a recording had been told."""
    return msgspec.msgpack.decode(next(_entries(path)), type=RecordedWorker)


def _entries(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while len(prefix := file.read(_LENGTH_BYTES)) == _LENGTH_BYTES:
            data = file.read(size := int.from_bytes(prefix, "little"))
            if len(data) < size:
                return
            yield data
