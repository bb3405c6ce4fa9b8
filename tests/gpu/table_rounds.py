"""Rounds that ask a real table of a core by numbers of their own: captured on a card, in a launch thread on the CPU.

Round r asks rows (`STEP` * r + lane * 101 + h) of the table and leaves them, with its faults, in page r & 1.
"""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import numpy as np
import torch

from recipes.components.device_model import DeviceRows
from recipes.components.gpu.tables import DeviceTable, MailboxTable
from services.worker.devices.tables import HostWaits, mailbox_tensors
from services.worker.rows import Tables
from shared.frames import Array

LANES, HEADS, STEP = 3, 16, 977
SLOTS = 4
SLOT_OF_LANE = (2, -1, 0)


class Device(Protocol):
    """Where rounds run."""

    device: torch.device

    def table(self, tables: Tables, name: str) -> DeviceTable:
        """The opened table."""
        ...

    def freeze(self, body: Callable[[], object]) -> Callable[[], object]:
        """What queues one more round of `body`."""
        ...

    def settle(self) -> None:
        """Returns when everything queued is over."""
        ...

    def close(self) -> None: ...


class Host:
    """Rounds one after another in a thread."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self._thread, self._last = ThreadPoolExecutor(1), Future[object]()
        self._last.set_result(None)

    def table(self, tables: Tables, name: str) -> DeviceTable:
        tables.start()
        box = tables.box(name)
        memory = torch.frombuffer(box.region.payload, dtype=torch.uint8)
        return MailboxTable(mailbox_tensors(memory, box.layout), HostWaits(box.words))

    def freeze(self, body: Callable[[], object]) -> Callable[[], object]:
        def queue() -> None:
            self._last = self._thread.submit(body)

        return queue

    def settle(self) -> None:
        self._last.result()

    def close(self) -> None:
        self._thread.shutdown()


class Card:
    """Rounds as replays of one CUDA graph."""

    device = torch.device("cuda")

    def __init__(self) -> None:
        from services.worker.devices.tables import CudaTables
        from shared.cuda_driver import bind

        torch.cuda.init()
        self.stream = torch.cuda.Stream()
        self._made = CudaTables
        self._driver = bind()
        self._tables: CudaTables | None = None

    def table(self, tables: Tables, name: str) -> DeviceTable:
        self._tables = self._made(tables, self._driver)
        return self._tables.open()[name]

    def freeze(self, body: Callable[[], object]) -> Callable[[], object]:
        torch.cuda.synchronize()
        with torch.cuda.stream(self.stream):
            body()
        self.stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream):
            body()

        def queue() -> None:
            with torch.cuda.stream(self.stream):
                graph.replay()

        return queue

    def settle(self) -> None:
        self.stream.synchronize()

    def close(self) -> None:
        self.settle()
        if self._tables is not None:
            self._tables.close()


class Rounds:
    """One graph over one table of `rows` rows."""

    def __init__(self, device: Device, table: DeviceTable, rows: int, row_bytes: int) -> None:
        self._device, self._table, self._rows = device, table, rows
        where = device.device
        whole = torch.zeros(LANES, dtype=torch.int64, device=where)
        self._lanes = DeviceRows(
            whole, torch.tensor(SLOT_OF_LANE, device=where), whole, whole + 1,
            torch.zeros(LANES, 1, dtype=torch.int32, device=where), 1,
        )  # fmt: skip
        self._offsets = (torch.arange(LANES)[:, None] * 101 + torch.arange(HEADS)).to(where)
        self._counter = torch.zeros(1, dtype=torch.int64, device=where)
        self.faults = torch.zeros(SLOTS + 1, dtype=torch.int32, device=where)
        self._kept = torch.zeros(2, SLOTS + 1, dtype=torch.int32, device=where)
        self._pages = torch.zeros(2, LANES, HEADS, row_bytes, dtype=torch.uint8, device=where)
        self.queue = device.freeze(self._body)
        device.settle()
        self._counter.zero_()
        if where.type == "cuda":
            torch.cuda.synchronize()
        self.count = 0

    def _body(self) -> None:
        ids = (self._counter * STEP + self._offsets) % self._rows
        lines = self._table.ask(ids, self._lanes).take(self.faults)
        page = self._counter & 1
        self._pages.index_copy_(0, page, lines.rows[lines.places][None])
        self._kept.index_copy_(0, page, self.faults[None])
        self.faults.zero_()
        self._counter.add_(1)

    def launch(self) -> int:
        """Queues a round; its number."""
        self.queue()
        self.count += 1
        return self.count - 1

    def ids(self, number: int) -> Array:
        """What round `number` asks, [LANES, HEADS]."""
        return (number * STEP + np.arange(LANES)[:, None] * 101 + np.arange(HEADS)) % self._rows

    def found(self, number: int) -> tuple[Array, list[int]]:
        """The rows that round `number`, one of the last two, got, and its faults by slot."""
        self._device.settle()
        return self._pages[number & 1].cpu().numpy(), self._kept[number & 1, :SLOTS].tolist()


def fault_of(bit: int) -> list[int]:
    """Faults by slot of a round that failed so."""
    return [bit if slot in SLOT_OF_LANE else 0 for slot in range(SLOTS)]


def events(card: Card, launch: Callable[[], object], count: int) -> list[float]:
    """Microseconds of each of `count` rounds that `launch` queues, one at a time, sorted."""
    found = []
    for _ in range(count):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record(card.stream)
        launch()
        end.record(card.stream)
        end.synchronize()
        found.append(start.elapsed_time(end) * 1000)
    return sorted(found)
