"""The device's side of the mailbox: publish, ring, wait at a captured memory-wait node, collect."""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from tests.gpu import toy_rows
from tests.gpu.toy_words import LANES, ROW_SERVER, S_COLUMNS, S_PENDING, SLOT, SLOTS_HERE

RING = tl.constexpr(toy_rows.RING)
ANSWER = tl.constexpr(toy_rows.ANSWER)
TAG = tl.constexpr(toy_rows.TAG)
COUNT = tl.constexpr(toy_rows.COUNT)
IDS = tl.constexpr(toy_rows.IDS)
ROWS = tl.constexpr(toy_rows.ROWS)
ROW_WORDS = tl.constexpr(toy_rows.ROW_WORDS)
POISON = tl.constexpr(toy_rows.POISON)


@triton.jit
def publish_ids(plan: tl.tensor, faults: tl.tensor, slots: tl.tensor, mailbox: tl.tensor) -> None:
    """The pending token of each lane. A round that does nothing asks for no rows, but it asks: the wait node waits."""
    words = mailbox.to(tl.pointer_type(tl.int64))
    count = tl.where(tl.load(faults) == 0, tl.load(plan + LANES), 0)
    lane = tl.arange(0, SLOTS_HERE)
    slot = tl.load(plan + SLOT + lane, mask=lane < count, other=0)
    ids = tl.load(slots + slot * S_COLUMNS + S_PENDING)
    tl.store(words + IDS + lane, ids, mask=lane < count, cache_modifier=".wt")
    tl.store(words + COUNT, count, cache_modifier=".wt")


@triton.jit
def ring(sequence: tl.tensor, mailbox: tl.tensor) -> None:
    """After the ids, by a kernel of its own: the server sees both in this order."""
    words = mailbox.to(tl.pointer_type(tl.int64))
    tl.store(words + RING, tl.load(sequence) + 1, cache_modifier=".wt")


@triton.jit
def collect(sequence: tl.tensor, mailbox: tl.tensor, faults: tl.tensor, rows: tl.tensor) -> None:
    """Takes the rows if they are this round's, and clears the word for the next round's wait, unless it is poison."""
    words = mailbox.to(tl.pointer_type(tl.int64))
    now = tl.load(sequence)
    answer = tl.load(words + ANSWER, volatile=True)
    good = (answer != POISON) & (tl.load(words + TAG, volatile=True) == now + 1)
    fault = tl.load(faults)
    at = tl.arange(0, 64)
    inside = at < SLOTS_HERE * ROW_WORDS
    found = tl.load(words + ROWS + at, mask=inside, volatile=True)
    tl.store(rows + (now & 1) * SLOTS_HERE * ROW_WORDS + at, tl.where(good, found, -1), mask=inside)
    tl.debug_barrier()
    tl.store(faults, fault | tl.where(good, 0, ROW_SERVER))
    tl.store(words + ANSWER, tl.where(answer == POISON, POISON, 0).to(tl.int64), cache_modifier=".wt")
