"""Rows of embedding tables inside captured rounds: from device memory, from registered host memory, or by mailbox.

Runs in the worker. A round asks as soon as it knows its tokens and takes the rows where it needs them. Memory that CUDA
maps is read where it lies; behind a mailbox the rest of the round waits at a memory-wait node, which a server's answer
or the watchdog's poison ends. Same order and same words as `mailbox_rows.py`, the reference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from recipes.components.device_model import DeviceRows
from recipes.components.gpu.launch import power_above, runs_triton
from shared.errors import ContractBreach
from shared.frames import Fault
from shared.mailbox import WAITS, Answer
from shared.metrics import ROW_WAIT_BOUNDS

_COPIED, _PUBLISHED = 2048, 1024
"""Words that one program copies of rows, and of ids."""


@dataclass(frozen=True, slots=True)
class Lines:
    """What a kernel reads: `rows` uint8 [n, row bytes]; those of a round at `places` int64, shaped as its ids were."""

    rows: Tensor
    places: Tensor


class AskedLines(Protocol):
    """Rows that a round asked for."""

    def take(self, faults: Tensor) -> Lines:
        """Where they lie now. `faults` int32 [slots + 1] gets `Fault.ROW_SERVER` for every lane if they did not come.

        Call it once, behind everything that can do without the rows.
        """
        ...


class DeviceTable(Protocol):
    """A table of rows, asked inside rounds."""

    def ask(self, ids: Tensor, rows: DeviceRows) -> AskedLines:
        """Asks for rows `ids` int64 [B * W, h] of a round's tokens. Rows of masked tokens are never looked at."""
        ...


@dataclass(frozen=True, slots=True)
class HeldTable:
    """`gpu` and `ram`: `rows` uint8 [n, row bytes] that kernels reach by themselves."""

    rows: Tensor

    def ask(self, ids: Tensor, rows: DeviceRows) -> AskedLines:
        """They are there already."""
        return _Held(Lines(self.rows, ids))


@dataclass(frozen=True, slots=True)
class _Held:
    lines: Lines

    def take(self, faults: Tensor) -> Lines:
        return self.lines


@dataclass(frozen=True, slots=True)
class MailboxTensors:
    """`shared.mailbox.Mailbox` as a device sees it: words int64 [8], `waits` int64 [WAITS], `ids` int64 [n], `rows`
    uint8 [n, row bytes]."""

    ring: Tensor
    done: Tensor
    count: Tensor
    answer: Tensor
    tag: Tensor
    waits: Tensor
    ids: Tensor
    rows: Tensor


class Waits(Protocol):
    """Holds up what a round does next, on the device that runs it."""

    def settled(self) -> None:
        """Until the word `answer` is no poison: that of an earlier round, which the watchdog is about to take away."""
        ...

    def answered(self) -> None:
        """Until the word `answer` is anything but `Answer.NONE`."""
        ...


@dataclass(frozen=True, slots=True)
class _Own:
    """What stays on the device: `asked` int64 [2], number and rows of the newest ask; `good` int32 [1], whether its
    rows came; `rows` as in the mailbox, `places` int64 [n] counting up; `since` int64 [1], when a wait began;
    `waits` as in the mailbox, and their `bounds` int64 in nanoseconds."""

    asked: Tensor
    good: Tensor
    rows: Tensor
    places: Tensor
    since: Tensor
    waits: Tensor
    bounds: Tensor


def has_clock(tensor: Tensor) -> bool:
    """Whether kernels on `tensor` can tell the time."""
    return tensor.is_cuda


class MailboxTable:
    """`disk`: a table behind a mailbox. One ask at a time; asks are numbered from one, by the device."""

    def __init__(self, words: MailboxTensors, waits: Waits) -> None:
        self._words, self._waits = words, waits
        device = words.ids.device
        self._own = _Own(
            torch.zeros(2, dtype=torch.int64, device=device),
            torch.zeros(1, dtype=torch.int32, device=device),
            torch.zeros(words.rows.shape, dtype=torch.uint8, device=device),
            torch.arange(len(words.ids), device=device),
            torch.zeros(1, dtype=torch.int64, device=device),
            torch.zeros(WAITS, dtype=torch.int64, device=device),
            torch.tensor([int(bound * 1e9) for bound in ROW_WAIT_BOUNDS], device=device),
        )

    def ask(self, ids: Tensor, rows: DeviceRows) -> AskedLines:
        """Publishes the ids up to the last row that is not masked, as they are: the server sorts out equal ones.

        A round that does nothing asks too, for no rows: its wait is captured like every other's. Raises
        `ContractBreach` for more ids than the mailbox holds.
        """
        words, own = self._words, self._own
        if ids.numel() > len(words.ids):
            raise ContractBreach(f"{ids.numel()} rows do not fit into a mailbox for {len(words.ids)}")
        self._waits.settled()
        if runs_triton(ids):
            from recipes.components.gpu.tables_kernels import publish_ids, ring

            lanes = len(rows.slots)
            publish_ids[(-(-ids.numel() // _PUBLISHED),)](
                ids, rows.slots, rows.counts, words.ids, words.count, own.asked, rows.width, lanes, ids.shape[1],
                power_above(lanes), _PUBLISHED,
            )  # fmt: skip
            ring[(1,)](own.asked, words.ring, num_warps=1)
        else:
            lane = torch.arange(len(rows.slots), device=ids.device)
            ends = torch.where((rows.slots >= 0) & (rows.counts > 0), lane * rows.width + rows.counts, 0)
            own.asked[1:] = words.count[:1] = ends.max() * ids.shape[1]
            words.ids[: ids.numel()] = ids.flatten()
            own.asked[:1] += 1
            words.ring[:1] = own.asked[:1]
        return _Published(self, ids.shape, rows.slots)

    def take(self, shape: torch.Size, slots: Tensor, faults: Tensor) -> Lines:
        """Waits for the newest ask's rows, judges them and copies them: the server's memory is not read any more."""
        words, own = self._words, self._own
        if has_clock(slots):
            from recipes.components.gpu.tables_kernels import note_time

            note_time[(1,)](own.since, num_warps=1)
        self._waits.answered()
        if runs_triton(slots):
            from recipes.components.gpu.tables_kernels import copy_lines, judge

            lanes, line = len(slots), own.rows.shape[1] // 8
            judge[(1,)](
                words.answer, words.tag, words.done, own.asked, own.good, slots, faults, own.since, own.bounds,
                own.waits, words.waits, lanes, power_above(lanes), len(own.bounds), power_above(len(own.bounds)),
                has_clock(slots), num_warps=1,
            )  # fmt: skip
            copy_lines[(-(-shape.numel() * line // _COPIED),)](
                words.rows.view(torch.int64), own.rows.view(torch.int64), own.asked, own.good, shape.numel() * line,
                line, _COPIED,
            )  # fmt: skip
        else:
            self._judge(slots, faults)
            wanted = (own.places < own.asked[1]) & (own.good != 0)
            own.rows.copy_(torch.where(wanted[:, None], words.rows, 0))
        return Lines(own.rows, own.places[: shape.numel()].view(shape))

    def _judge(self, slots: Tensor, faults: Tensor) -> None:
        words, own = self._words, self._own
        poisoned = words.answer[:1] >= int(Answer.POISON)
        good = ~poisoned & (words.tag[:1] == own.asked[:1])
        own.good.copy_(good)
        lost = torch.where((slots >= 0) & ~good, slots, len(faults) - 1)
        faults[lost] |= torch.where(lost < len(faults) - 1, int(Fault.ROW_SERVER), 0).int()
        # Poison is the watchdog's to take away.
        words.answer[:1] = torch.where(poisoned, words.answer[:1], int(Answer.NONE))
        words.done[:1] = own.asked[:1]


@dataclass(frozen=True, slots=True)
class _Published:
    table: MailboxTable
    shape: torch.Size
    slots: Tensor

    def take(self, faults: Tensor) -> Lines:
        return self.table.take(self.shape, self.slots, faults)
