"""The embedding tables of a core on a GPU, as rounds ask them: in registered host memory, or behind a mailbox there.

Runs in the worker's launch thread while a core loads, and at the end. What lies in device memory is the recipe's to
load. Nothing here runs during a round: a memory-wait node waits for the row server.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from recipes.components.gpu.tables import DeviceTable, HeldTable, MailboxTable, MailboxTensors
from recipes.components.table_file import TableFile
from services.worker.devices.compiling import only_asked
from services.worker.devices.foreign import bytes_at
from services.worker.devices.pinned_rows import PinnedRows
from services.worker.rows import Tables
from shared.cuda_driver import Driver
from shared.cuda_regions import Registration, register_host
from shared.errors import ProcessError
from shared.frames import Layout
from shared.mailbox import Answer, Mailbox

_ALL = (1 << 64) - 1
PAUSE_S = 2e-5


def mailbox_tensors(memory: Tensor, layout: Layout) -> MailboxTensors:
    """Typed tensors over a mailbox that lies in `memory` uint8 [its bytes]."""

    def part(name: str) -> Tensor:
        [field] = [field for field in layout.fields if field.name == name]
        found = memory[field.offset : field.offset + field.nbytes]
        return found.view(field.shape) if field.dtype == "|u1" else found.view(torch.int64)

    return MailboxTensors(**{field.name: part(field.name) for field in fields(MailboxTensors)})


@dataclass(frozen=True, slots=True)
class HostWaits:
    """`recipes.components.gpu.tables.Waits` of rounds that this thread runs itself."""

    words: Mailbox

    def settled(self) -> None:
        """Sleeps while there is poison."""
        self._while(Answer.POISON)

    def answered(self) -> None:
        """Sleeps until there is an answer."""
        self._while(Answer.NONE)

    def _while(self, answer: Answer) -> None:
        while self.words.answer[0] == answer:
            time.sleep(PAUSE_S)


@dataclass(frozen=True, slots=True)
class CudaWaits:
    """`recipes.components.gpu.tables.Waits` by memory-wait nodes on the word at device address `answer`."""

    answer: int

    def settled(self) -> None:
        """Until the bit of poison is clear: NOR waits for any bit that neither the word nor its operand has."""
        from cuda.bindings import driver as cuda

        self._wait(_ALL ^ int(Answer.POISON), cuda.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_NOR)

    def answered(self) -> None:
        """Until the word is at least the lowest answer."""
        from cuda.bindings import driver as cuda

        self._wait(int(Answer.ROWS), cuda.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ)

    def _wait(self, value: int, flag: Any) -> None:
        if only_asked():
            return  # nobody has published an ask
        from cuda.bindings import driver as cuda

        stream = torch.cuda.current_stream().cuda_stream
        (status,) = cuda.cuStreamWaitValue64(stream, self.answer, cuda.cuuint64_t(value), flag.value)
        if int(status):
            raise ProcessError(
                f"this GPU cannot wait for a row server ({status}): take --embedding-table-storage ram or gpu"
            )


class CudaTables:
    """Whoever opens it closes it, after the last round and before the mailboxes go."""

    def __init__(self, tables: Tables, driver: Driver) -> None:
        self._tables, self._driver = tables, driver
        self._held: list[PinnedRows | Registration] = []

    def open(self) -> Mapping[str, DeviceTable]:
        """The tables that do not lie in device memory, by name; starts the row server if one is needed.

        Raises `CheckpointError`, `MemoryRefused` for host memory that there is not, `ProcessError` without a server.
        """
        found: dict[str, DeviceTable] = {}
        for name, file in self._tables.start().items():
            storage = self._tables.storage(name)
            if storage == "ram":
                found[name] = self._pinned(name, file)
            elif storage == "disk":
                found[name] = self._behind_mailbox(name)
        return found

    def _pinned(self, name: str, file: TableFile) -> DeviceTable:
        rows = PinnedRows(name, file, self._driver)
        self._held.append(rows)
        return HeldTable(bytes_at(rows.pointer, file.nbytes).view(file.rows, file.row_bytes))

    def _behind_mailbox(self, name: str) -> DeviceTable:
        box = self._tables.box(name)
        registered = register_host(box.region, self._driver)
        self._held.append(registered)
        waits = CudaWaits(registered.pointer + box.layout.offset_of("answer"))
        return MailboxTable(mailbox_tensors(bytes_at(registered.pointer, box.layout.nbytes), box.layout), waits)

    def close(self) -> None:
        """Unregisters what the device could read. Safe to call twice."""
        for held in self._held:
            held.close()
        self._held.clear()
