"""The row server: a process beside the worker that answers the mailboxes of embedding tables from the core's files.

Started by the worker (`rows_watch.py`), which writes it what to serve and whose death it follows: standard input is its
lifeline. It answers signals to end with nothing, so that a worker that drains still has its rows. It knows rows and
bytes, never tokens' text, and imports no torch. Run as `python -m services.worker.rows_server`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import msgspec
import numpy as np

from services.worker.rows_cache import RowCache
from services.worker.rows_reader import RowReader
from shared.errors import FlareError
from shared.frames import Array
from shared.mailbox import Answer, Mailbox, Tally, mailbox, mailbox_layout
from shared.parent import end_with, prctl
from shared.regions import RegionHandle, open_region

_PR_SET_TIMERSLACK = 29
PAUSE_S, LONG_PAUSE_S = 2e-5, 2e-3
"""Between two looks at the mailboxes, at least and at most."""
PATIENCE = 64
"""A pause is this part of the time since the last ask, so that finding the next one late costs a round little."""
SLACK_NS = 1000
"""By how much the kernel may prolong a pause: 50 us otherwise, which is more than the pause."""


class ServedTable(msgspec.Struct, frozen=True):
    """One table: where its rows lie, and its mailbox for at most `ids` rows."""

    name: str
    path: str
    offset: int
    rows: int
    row_bytes: int
    ids: int
    region: RegionHandle


class Order(msgspec.Struct, frozen=True):
    """What the worker writes to its row server, as one line. `cache_bytes` are for all tables together."""

    tables: tuple[ServedTable, ...]
    cache_bytes: int


class Report(msgspec.Struct, frozen=True):
    """The row server's answer, as one line: it serves, or why it cannot."""

    failure: str = ""


class Desk:
    """Serves one table. Raises `CheckpointError` and `RegionError`."""

    def __init__(self, table: ServedTable, cache_bytes: int) -> None:
        self._reader = RowReader(Path(table.path), table.offset, table.rows, table.row_bytes)
        self._cache = RowCache(cache_bytes, table.row_bytes)
        self._region = open_region(table.region)
        layout = mailbox_layout(table.ids, table.row_bytes)
        self._words: Mailbox = mailbox(layout, self._region.refresh(0, layout.nbytes))
        self._seen = int(self._words.done[0])
        """Newest ask that needs no answer any more; one that waited for this process to start is served at once."""

    def serve(self) -> bool:
        """Answers the newest ask, if it has none yet; whether there was one.

        Not one that is over meanwhile: its answer would be found by the next ask, whose own would then be late too, and
        so on for ever.
        """
        number = int(self._words.ring[0])
        if number == self._seen or self._words.answer[0] >= Answer.POISON:
            return False
        count = int(self._words.count[0])
        self._fetch(self._words.ids[:count].copy(), self._words.rows[:count])
        if self._words.done[0] != number:
            self._words.reply(number)
        self._seen = number
        return True

    def _fetch(self, ids: Array, out: Array) -> None:
        """Rows of `ids` into `out`. A card does not sort out ids that it has twice."""
        unique, places = np.unique(ids, return_inverse=True)
        rows = np.empty((len(unique), out.shape[1]), dtype=np.uint8)
        missing = self._cache.look_up(unique, rows)
        found = rows[missing]
        self._reader.read(unique[missing], found, self._progressed)
        self._cache.insert(unique[missing], found)
        rows[missing] = found
        out[:] = rows[places]
        tallies = self._words.tallies
        tallies[Tally.ASKED] += len(unique)
        tallies[Tally.HITS] += len(unique) - len(missing)
        tallies[Tally.MISSES] += len(missing)
        tallies[Tally.READ] += found.nbytes

    def _progressed(self) -> None:
        self._words.progress[0] += 1


def serve(desks: tuple[Desk, ...]) -> None:
    """Answers for ever. A card cannot wake a process, so this one looks, less often the longer nothing came."""
    last = time.monotonic()
    while True:
        for desk in desks:
            if desk.serve():
                last = time.monotonic()
        idle = time.monotonic() - last
        time.sleep(min(max(idle / PATIENCE, PAUSE_S), LONG_PAUSE_S))


def _follow(parent: int) -> None:
    """Ends this process when its worker does: by the kernel, even while stopped, and by the end of its input."""
    end_with(parent, signal.SIGKILL)

    def watch() -> None:
        while os.read(0, 1):
            pass
        os._exit(0)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()


def _report(failure: str = "") -> None:
    sys.stdout.buffer.write(msgspec.json.encode(Report(failure)) + b"\n")
    sys.stdout.buffer.flush()


def main() -> int:
    """Takes the order, reports, serves until the worker goes or a file cannot be read."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=Order)
    _follow(int(sys.argv[1]))
    try:
        share = order.cache_bytes // max(len(order.tables), 1)
        desks = tuple(Desk(table, share) for table in order.tables)
        prctl(_PR_SET_TIMERSLACK, SLACK_NS)
        _report()
        serve(desks)
    except (FlareError, MemoryError) as error:
        _report(str(error) or type(error).__name__)
    return 1


if __name__ == "__main__":
    sys.exit(main())
