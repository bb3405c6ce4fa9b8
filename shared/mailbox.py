"""The mailbox of an embedding table: its layout as data, and what each of its three parties may write in it.

A round writes `ids` and `count`, rings, and waits on the word `answer`; the row server writes rows and tag and then the
answer; the worker's watchdog writes the poison that ends the wait of a round whose server is gone. The round clears the
word, unless it is poison. A captured memory-wait node does the waiting on a card, a sleeping loop on the CPU
(architecture.md, section 2; docs/adr/0003). Every word has a cache line of its own. Numpy only, no torch.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, fields
from enum import IntEnum

from shared.errors import ContractBreach
from shared.frames import Array, Layout, arranged
from shared.metrics import ROW_WAIT_BOUNDS

_LINE = 8
"""Words of a cache line."""
WAITS = len(ROW_WAIT_BOUNDS) + 2


class Answer(IntEnum):
    """Values of the word that a round waits on."""

    NONE = 0
    ROWS = 1
    POISON = 2
    """There will be no answer: the rounds that wait fail, and later ones have a new server."""
    GONE = 4
    """There will be no answer any more. Without the bit of POISON, whose end a round awaits before it asks."""


class Tally(IntEnum):
    """What a row server counts, in words that outlive it, by column of `tallies`."""

    ASKED = 0
    HITS = 1
    MISSES = 2
    READ = 3
    """Bytes."""


@dataclass(frozen=True, slots=True)
class Mailbox:
    """Views of one mailbox. Asks are numbered from one; two queued rounds use it in turn.

    `ids` int64 [n], the most ids of a round; `rows` uint8 [n, row bytes], row i being that of `ids[i]`.
    """

    ring: Array
    """Number of the newest ask; a round writes it."""
    done: Array
    """Number of the newest ask that is over; the round writes it when it has taken its rows or given up."""
    count: Array
    answer: Array
    tag: Array
    """Number of the ask that the rows are for; the row server's."""
    progress: Array
    """Changes while the row server reads: it is busy, not dead."""
    tallies: Array
    waits: Array
    """How long rounds waited, where a device tells: counts by bucket of `ROW_WAIT_BOUNDS`, then the sum in ns."""
    ids: Array
    rows: Array

    @property
    def waiting(self) -> bool:
        """Whether a round waits for rows."""
        return bool(self.ring[0] != self.done[0])

    def publish(self, ids: Array) -> int:
        """Asks for the rows of `ids` int64 [n]; returns the ask's number. Raises `ContractBreach` for too many."""
        if self.waiting:
            raise ContractBreach(f"ask {int(self.ring[0])} of the mailbox is not over")
        if len(ids) > len(self.ids):
            raise ContractBreach(f"{len(ids)} rows do not fit into a mailbox for {len(self.ids)}")
        self.ids[: len(ids)] = ids
        self.count[0] = len(ids)
        _fence()
        self.ring[0] += 1
        return int(self.ring[0])

    def take(self, number: int) -> bool:
        """Ends ask `number`, whose wait is over; whether the rows are those that it asked for.

        An answer to another ask is as bad as none. Poison stays: a second queued round must not wait in vain.
        """
        _fence()
        poisoned = self.answer[0] >= Answer.POISON
        good = not poisoned and self.tag[0] == number
        if not poisoned:
            self.answer[0] = Answer.NONE
        return bool(good)

    def finish(self, number: int) -> None:
        """The rows of ask `number` are not looked at any more."""
        _fence()
        self.done[0] = number

    def reply(self, number: int) -> None:
        """Answers ask `number`, whose rows have been written."""
        self.tag[0] = number
        _fence()
        self.answer[0] = Answer.ROWS


def mailbox_layout(ids: int, row_bytes: int) -> Layout:
    """Layout of a mailbox for at most `ids` rows of `row_bytes` bytes each."""
    shapes = {"waits": (WAITS,), "ids": (ids,)}
    named = [field.name for field in fields(Mailbox)][:-1]
    words = ((name, "<i8", shapes.get(name, (_LINE,))) for name in named)
    return arranged((*words, ("rows", "|u1", (ids, row_bytes))))


def mailbox(layout: Layout, buffer: memoryview) -> Mailbox:
    """The views over a region's payload."""
    arrays = layout.arrays(buffer, 0)
    return Mailbox(**{field.name: arrays[field.name] for field in fields(Mailbox)})


_ORDER = threading.Lock()


def _fence() -> None:
    """Writes before this are seen before those after it, on processors too that reorder them (ARM).

    A lock is the only means that Python has: nothing crosses both a release and the acquisition after it.
    """
    for _ in range(2):
        _ORDER.acquire()
        _ORDER.release()
