"""A table behind a mailbox, as a round asks it: kernels and their reference, with a clerk in the server's place."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch import Tensor

from recipes.components.device_model import DeviceRows
from recipes.components.gpu.tables import HeldTable, Lines, MailboxTable, Waits
from services.worker.devices.tables import HostWaits, mailbox_tensors
from services.worker.rows import Box
from shared.errors import ContractBreach
from shared.frames import Array, Fault
from shared.mailbox import Answer, mailbox, mailbox_layout
from shared.regions import create
from tests.gpu.places import Place, card, interpreter

IDS, HEADS, ROW_BYTES, SLOTS = 40, 4, 96, 6
WIDTH = 3
_instances = itertools.count(0x7AB0)
SOON_S = 20.0


@dataclass(eq=False)
class Clerk(threading.Thread):
    """Answers asks as `reply` says, and keeps their ids; `reply` None answers like a row server does."""

    box: Box
    table: Array
    reply: Callable[[int], None] | None = None
    asked: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(daemon=True)
        self.over = threading.Event()

    def run(self) -> None:
        words, seen = self.box.words, 0
        while not self.over.wait(1e-4):
            number = int(words.ring[0])
            if number == seen:
                continue
            seen = number
            count = int(words.count[0])
            self.asked.append(words.ids[:count].tolist())
            words.rows[:count] = self.table[words.ids[:count]]
            (self.reply or words.reply)(number)


@dataclass
class Office:
    """A mailbox table on one place, with its clerk."""

    place: Place
    run: Callable[..., Lines]
    box: Box
    table: MailboxTable
    clerk: Clerk
    faults: Tensor

    def ask(self, ids: Tensor, rows: DeviceRows) -> Lines:
        """What a round gets."""
        device = self.place.device
        slots, counts = rows.slots.to(device), rows.counts.to(device)
        there = DeviceRows(rows.tokens, slots, rows.first, counts, rows.tables, rows.width)
        lines: Lines = self.run(lambda: self.table.ask(ids.to(device), there).take(self.faults))
        return Lines(lines.rows.cpu(), lines.places.cpu())


def _plain(operator: Callable[..., Lines]) -> Lines:
    return operator()


@pytest.fixture(params=["reference", "interpreter", pytest.param("card", marks=pytest.mark.gpu)])
def office(request: pytest.FixtureRequest) -> Iterator[Office]:
    """A mailbox for `IDS` rows, and somebody who answers."""
    torch.manual_seed(3)
    layout = mailbox_layout(IDS, ROW_BYTES)
    region = create("rows-test", layout.nbytes, next(_instances))
    box = Box(region, layout, mailbox(layout, region.payload))
    table = np.random.default_rng(5).integers(0, 256, (1000, ROW_BYTES), dtype=np.uint8)
    clerk = Clerk(box, table)
    closing: list[Callable[[], None]] = [region.close]
    waits: Waits = HostWaits(box.words)
    memory = torch.frombuffer(region.payload, dtype=torch.uint8)
    if request.param == "card":
        from services.worker.devices.foreign import bytes_at
        from services.worker.devices.tables import CudaWaits
        from shared.cuda_regions import register_host

        place = card()
        torch.cuda.init()  # type: ignore[no-untyped-call]
        registered = register_host(region)
        closing.insert(0, registered.close)
        memory = bytes_at(registered.pointer, layout.nbytes)
        waits = CudaWaits(registered.pointer + layout.offset_of("answer"))
    else:
        place = interpreter() if request.param == "interpreter" else Place(torch.device("cpu"), torch.float32, 0.0)
    run: Callable[..., Lines] = _plain if request.param == "reference" else place.run
    faults = torch.zeros(SLOTS + 1, dtype=torch.int32, device=place.device)
    clerk.start()
    yield Office(place, run, box, MailboxTable(mailbox_tensors(memory, layout), waits), clerk, faults)
    clerk.over.set()
    clerk.join()
    del memory
    for close in closing:
        close()


def rows_of(slots: list[int], counts: list[int]) -> DeviceRows:
    lanes = len(slots)
    nothing = torch.zeros(lanes, dtype=torch.int64)
    tokens, tables = torch.zeros(lanes * WIDTH, dtype=torch.int64), torch.zeros(lanes, 1, dtype=torch.int32)
    return DeviceRows(tokens, torch.tensor(slots), nothing, torch.tensor(counts), tables, WIDTH)


def ids_of(rows: DeviceRows) -> Tensor:
    """Random ids, zero where a row is masked."""
    live = (torch.arange(WIDTH) < rows.counts[:, None]) & (rows.slots >= 0)[:, None]
    return torch.where(live.flatten()[:, None], torch.randint(0, 1000, (len(rows.tokens), HEADS)), 0)


def found(lines: Lines) -> Array:
    """uint8 [B * W, HEADS, ROW_BYTES]."""
    return lines.rows[lines.places].numpy()


def live_rows(rows: DeviceRows) -> list[int]:
    return [
        lane * WIDTH + row
        for lane, (slot, count) in enumerate(zip(rows.slots.tolist(), rows.counts.tolist(), strict=True))
        for row in range(count if slot >= 0 else 0)
    ]


@pytest.mark.parametrize(
    ("slots", "counts"), [([2, -1, 0], [3, 3, 2]), ([4], [1]), ([1, 3, -1], [1, 0, 2]), ([-1, -1, -1], [3, 1, 0])]
)
def test_rows_of_every_live_token_come_and_none_behind_them_are_asked(
    office: Office, slots: list[int], counts: list[int]
) -> None:
    rows = rows_of(slots, counts)
    for turn in (1, 2):
        ids = ids_of(rows)
        lines = office.ask(ids, rows)
        last = max(live_rows(rows), default=-1) + 1
        assert office.clerk.asked[-1] == ids.flatten()[: last * HEADS].tolist()
        assert lines.places.shape == ids.shape
        for row in live_rows(rows):
            assert (found(lines)[row] == office.clerk.table[ids[row]]).all()
        assert not found(lines)[last:].any()
        words = office.box.words
        assert (int(words.ring[0]), int(words.done[0]), int(words.answer[0])) == (turn, turn, Answer.NONE)
    assert not office.faults.any()


def lost(office: Office) -> list[int]:
    return office.faults.tolist()


def test_an_answer_to_another_ask_is_as_bad_as_none(office: Office) -> None:
    rows = rows_of([2, -1, 5], [2, 3, 3])
    office.clerk.reply = lambda number: office.box.words.reply(number - 1)
    lines = office.ask(ids_of(rows), rows)
    assert lost(office) == [Fault.ROW_SERVER if slot in (2, 5) else 0 for slot in range(SLOTS + 1)]
    assert not lines.rows.any()
    assert office.box.words.answer[0] == Answer.NONE
    office.clerk.reply = None
    office.faults.zero_()
    ids = ids_of(rows)
    assert (found(office.ask(ids, rows))[0] == office.clerk.table[ids[0]]).all()
    assert not office.faults.any()


def test_poison_stays_and_the_next_ask_waits_until_it_is_taken_away(office: Office) -> None:
    rows, words = rows_of([0], [1]), office.box.words

    def poison(number: int) -> None:
        words.tag[0] = number  # even a right tag does not help
        words.answer[0] = Answer.POISON

    office.clerk.reply = poison
    assert not office.ask(ids_of(rows), rows).rows.any()
    assert lost(office)[0] == Fault.ROW_SERVER
    assert words.answer[0] == Answer.POISON
    assert not words.waiting
    office.clerk.reply = None
    office.faults.zero_()
    ids, lines = ids_of(rows), list[Lines]()
    later = threading.Thread(target=lambda: lines.append(office.ask(ids, rows)))
    later.start()
    time.sleep(0.3)
    assert len(office.clerk.asked) == 1
    assert not words.waiting
    words.answer[0] = Answer.NONE
    later.join(SOON_S)
    assert (found(lines[0])[0] == office.clerk.table[ids[0]]).all()
    assert not office.faults.any()


def test_nobody_waits_for_an_answer_that_will_never_come(office: Office) -> None:
    rows, words = rows_of([0], [1]), office.box.words
    office.clerk.reply = lambda number: None
    words.answer[0] = Answer.GONE
    for _ in range(2):
        assert not office.ask(ids_of(rows), rows).rows.any()
        assert lost(office)[0] == Fault.ROW_SERVER
        assert words.answer[0] == Answer.GONE


def test_more_rows_than_a_mailbox_holds_are_refused(office: Office) -> None:
    rows = rows_of([0, 1, 2, 3], [3, 3, 3, 3])
    with pytest.raises(ContractBreach, match="48 rows do not fit into a mailbox for 40"):
        office.ask(ids_of(rows), rows)


def test_rows_that_the_device_reaches_by_itself_are_read_where_they_lie() -> None:
    table, rows = torch.arange(320, dtype=torch.uint8).view(20, 16), rows_of([0], [1])
    ids, faults = torch.tensor([[3, 9]]), torch.zeros(2, dtype=torch.int32)
    lines = HeldTable(table).ask(ids, rows).take(faults)
    assert lines.rows is table
    assert lines.places is ids
