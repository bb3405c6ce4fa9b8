"""Triton kernels of a mailbox's device side: ids and count go out, then the ring; the answer is judged, rows come.

Each is a kernel of its own where the other process must see two things in order: a kernel's stores are there when the
next one begins. Words of the mailbox lie in host memory and are read volatile, past every cache.
"""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import globaltimer

from shared.frames import Fault
from shared.mailbox import Answer

NONE, POISON = tl.constexpr(int(Answer.NONE)), tl.constexpr(int(Answer.POISON))
ROW_SERVER = tl.constexpr(int(Fault.ROW_SERVER))


@triton.jit
def publish_ids(
    ids: tl.tensor, slots: tl.tensor, counts: tl.tensor, box: tl.tensor, count: tl.tensor, asked: tl.tensor,
    W: tl.tensor, LANES: tl.tensor, HEADS: tl.constexpr, BL: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """Ids of the rows before and at the last one that is not masked into `box`; how many, to the server and to us."""
    lane = tl.arange(0, BL)
    slot = tl.load(slots + lane, mask=lane < LANES, other=-1)
    own = tl.load(counts + lane, mask=lane < LANES, other=0)
    number = tl.max(tl.where((slot >= 0) & (own > 0), lane * W + own, 0), 0) * HEADS
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(box + at, tl.load(ids + at, mask=at < number, other=0), mask=at < number)
    if tl.program_id(0) == 0:
        tl.store(count, number)
        tl.store(asked + 1, number)


@triton.jit
def ring(asked: tl.tensor, bell: tl.tensor) -> None:
    """The number of this ask, which tells the server that there is one."""
    number = tl.load(asked) + 1
    tl.debug_barrier()
    tl.store(asked, number)
    tl.store(bell, number)


@triton.jit
def note_time(since: tl.tensor) -> None:
    """When the wait began, in nanoseconds of the device's clock."""
    tl.store(since, globaltimer())


@triton.jit
def judge(
    answer: tl.tensor, tag: tl.tensor, done: tl.tensor, asked: tl.tensor, good: tl.tensor, slots: tl.tensor,
    faults: tl.tensor, since: tl.tensor, bounds: tl.tensor, waits: tl.tensor, shown: tl.tensor, LANES: tl.tensor,
    BL: tl.constexpr, BOUNDS: tl.constexpr, BB: tl.constexpr, CLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """Whether the rows are those of this ask; every lane's fault if not. Ends the ask and clears the answer.

    Poison stays: it is the watchdog's, which may be taking it away at this moment. With a `CLOCK` the wait `since` is
    counted in `waits`: by bucket and, behind those, in nanoseconds.
    """
    number, word = tl.load(asked), tl.load(answer, volatile=True)
    right = (word < POISON) & (tl.load(tag, volatile=True) == number)
    tl.store(good, right.to(tl.int32))
    lane = tl.arange(0, BL)
    slot = tl.load(slots + lane, mask=lane < LANES, other=-1)
    lost = (slot >= 0) & (right == 0)
    bits = tl.load(faults + slot, mask=lost, other=0)
    tl.store(faults + slot, bits | ROW_SERVER, mask=lost)
    tl.store(answer, tl.full([], NONE, tl.int64), mask=word < POISON)
    tl.store(done, number)
    if CLOCK:
        waited = globaltimer() - tl.load(since)
        at = tl.arange(0, BB)
        bucket = tl.sum((waited > tl.load(bounds + at, mask=at < BOUNDS, other=1 << 62)).to(tl.int32), 0)
        count, total = tl.load(waits + bucket) + 1, tl.load(waits + BOUNDS + 1) + waited
        tl.debug_barrier()
        tl.store(waits + bucket, count)
        tl.store(waits + BOUNDS + 1, total)
        tl.store(shown + bucket, count)
        tl.store(shown + BOUNDS + 1, total)


@triton.jit
def copy_lines(
    box: tl.tensor, lines: tl.tensor, asked: tl.tensor, good: tl.tensor, N: tl.tensor, LINE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """`N` words of rows out of the mailbox: zeros beyond those asked for, and instead of rows that did not come."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    wanted = (at < tl.load(asked + 1) * LINE) & (tl.load(good) != 0)
    tl.store(lines + at, tl.load(box + at, mask=wanted & (at < N), other=0, volatile=True), mask=at < N)
