"""The mailbox of rows that stay off the device, its server process, and the watchdog that poisons it. No torch here.

A round publishes ids, rings, and waits at `ANSWER`; the server writes the rows, the round's tag, and then the answer.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from shared.regions import Region, RegionHandle, open_region
from tests.gpu.toy_plans import SLOTS

ROW_WORDS = 12
"""96 bytes a row."""
RING = 0
"""Sequence + 1 of the round that asks."""
ANSWER = 8
TAG = 16
"""Sequence + 1 of the round that the rows are for."""
COUNT = 24
IDS = 32
ROWS = IDS + SLOTS
MAILBOX_WORDS = ROWS + SLOTS * ROW_WORDS

ANSWERED = 1
POISON = 2
"""Ends the wait like an answer does (the node waits for a value of at least `ANSWERED`), and fails the round."""

Words = NDArray[np.int64]


def words_of(region: Region) -> Words:
    """The mailbox as words."""
    return np.frombuffer(region.refresh(0, MAILBOX_WORDS * 8), dtype=np.int64)


def table_rows(ids: Sequence[int] | Words) -> Words:
    """The rows of the table: int64 [len(ids), ROW_WORDS]."""
    return np.asarray(ids, dtype=np.int64)[:, None] * 1009 + np.arange(ROW_WORDS, dtype=np.int64)


def serve_rows(handle: RegionHandle, dies_at: int) -> None:
    """The row server: polls, answers, and kills itself without a word when round `dies_at` rings."""
    region = open_region(handle)
    words, seen = words_of(region), 0
    while True:
        ring = int(words[RING])
        if ring == seen:
            continue
        if ring == dies_at + 1:
            os.kill(os.getpid(), signal.SIGKILL)
        count = int(words[COUNT])
        words[ROWS : ROWS + count * ROW_WORDS] = table_rows(words[IDS : IDS + count]).ravel()
        words[TAG] = ring
        words[ANSWER] = ANSWERED
        seen = ring


class Watchdog:
    """Poisons the mailbox for as long as the server is dead.

    Again and again: a round that clears its answer in the same instant would erase a single poison word.
    """

    def __init__(self, words: Words, alive: Callable[[], bool], deadline_s: float = 30.0) -> None:
        self._words, self._alive, self._deadline = words, alive, time.monotonic() + deadline_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.001):
            if not self._alive() or time.monotonic() > self._deadline:
                self._words[ANSWER] = POISON

    def close(self) -> None:
        """Stops watching."""
        self._stop.set()
        self._thread.join(5)
