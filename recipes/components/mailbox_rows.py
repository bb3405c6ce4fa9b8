"""`disk`: rows that a row server reads, reached through a mailbox. Runs in the worker's launch thread on the CPU.

What a card does in captured nodes is done here in the same order: publish ids, ring, wait on the word, check the tag,
take the rows, clear the word. Nothing of the server runs in this process, and whoever waits is woken by an answer or by
the watchdog's poison alone.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from recipes.components.embedding_rows import Asked
from shared.errors import RowsLost
from shared.frames import Array
from shared.histogram import Histogram
from shared.mailbox import Answer, Mailbox
from shared.metrics import ROW_WAIT_BOUNDS

FIRST_PAUSE_S, LONGEST_PAUSE_S = 2e-5, 1e-3


class MailboxRows:
    """A table behind `mailbox`. One ask at a time; a round that has asked must take before the next one asks."""

    def __init__(self, name: str, mailbox: Mailbox) -> None:
        self._name = name
        self._mailbox = mailbox
        self.waits = Histogram(ROW_WAIT_BOUNDS)
        """Seconds that rounds waited for their rows, not counting what they did meanwhile."""

    def ask(self, ids: Tensor) -> Asked:
        """Publishes each id once, absent ones not at all. Raises `ContractBreach` for more than the mailbox holds."""
        unique, places = np.unique(ids.numpy(), return_inverse=True)
        absent = int(np.searchsorted(unique, 0))
        self._wait(Answer.POISON)  # that of an earlier round: the watchdog is about to take it away
        number = self._mailbox.publish(unique[absent:])
        return _Published(self, number, absent, places)

    def receive(self, number: int, absent: int, places: Array) -> Tensor:
        """The rows of ask `number`, in the order of its ids. Raises `RowsLost`."""
        words, begin = self._mailbox, time.perf_counter()
        self._wait(Answer.NONE)
        self.waits.observe(time.perf_counter() - begin)
        good = words.take(number)
        try:
            if not good:
                raise RowsLost(f"the row server did not give the rows of {self._name} that a round asked for")
            found = np.zeros((absent + int(words.count[0]), words.rows.shape[1]), dtype=np.uint8)
            found[absent:] = words.rows[: len(found) - absent]
        finally:
            words.finish(number)
        return torch.from_numpy(found[places])

    def _wait(self, while_it_is: Answer) -> None:
        pause = FIRST_PAUSE_S
        while self._mailbox.answer[0] == while_it_is:
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)


@dataclass(frozen=True, slots=True)
class _Published:
    source: MailboxRows
    number: int
    absent: int
    places: Array

    def take(self) -> Tensor:
        return self.source.receive(self.number, self.absent, self.places)
