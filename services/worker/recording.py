"""A recording of rounds: what a bench replays in a worker alone to find the floor under the service.

Each entry holds a graph index, the plan frame it took and when it ran. Plans decide everything a round does, so the
same plans from a fresh catalog on give the same accepted counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

_LENGTH_BYTES = 8
UNKNOWN = -1
"""Emitted tokens of a round whose completion frame was written again before it was read."""


class RecordedRound(msgspec.Struct, frozen=True):
    """Times in nanoseconds of the monotonic clock."""

    graph: int
    plan: bytes
    begin_ns: int
    end_ns: int
    emitted: int
    """Tokens of all its lanes, or `UNKNOWN`."""


class Recording:
    """Appends rounds to a file, length-prefixed."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=1 << 20)
        self._encoder = msgspec.msgpack.Encoder()

    def append(self, entry: RecordedRound) -> None:
        """Adds one round."""
        data = self._encoder.encode(entry)
        self._file.write(len(data).to_bytes(_LENGTH_BYTES, "little") + data)

    def close(self) -> None:
        """Flushes and closes the file."""
        self._file.close()


def rounds_of(path: Path) -> Iterator[RecordedRound]:
    """Every whole round of a recording, in order; a cut-off tail is left out."""
    decoder = msgspec.msgpack.Decoder(RecordedRound)
    with path.open("rb") as file:
        while len(prefix := file.read(_LENGTH_BYTES)) == _LENGTH_BYTES:
            data = file.read(size := int.from_bytes(prefix, "little"))
            if len(data) < size:
                return
            yield decoder.decode(data)
