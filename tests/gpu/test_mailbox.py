"""Rows from a real row server in rounds that wait for it: right ones, and every way to lose the server.

On a card the waits are captured nodes; the same bodies run on the CPU, where a thread sleeps.
"""

from __future__ import annotations

import os
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec
import pytest
import torch
from torch import Tensor

from recipes.components.gpu.ngrams import gather_rows
from recipes.components.gpu.tables import HeldTable
from shared.frames import Fault
from shared.manifest import EmbeddingTable
from tests.fixtures.harness import wait_until
from tests.gpu.table_rounds import SLOTS, Card, Device, Host, Rounds, events, fault_of
from tests.worker.row_desk import RowDesk, random_rows, table_core

TABLE = EmbeddingTable("ngrams", rows=3000, row_bytes=96, mailbox_ids=64, storage="disk")
ROWS = random_rows(0, TABLE.rows, TABLE.row_bytes)
FINE = [0] * SLOTS
SOON_S = 20.0


@pytest.fixture(params=["host", pytest.param("card", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    """Closed while the mailboxes are still there, after the server: rounds that wait for it end."""
    found: Device = Card() if request.param == "card" else Host()
    yield found
    found.close()


class Office(RowDesk):
    """A core's table on disk, and rounds that ask it."""

    rounds: Rounds

    def open(self, device: Device) -> None:
        self.rounds = Rounds(device, device.table(self.tables, TABLE.name), TABLE.rows, TABLE.row_bytes)

    def check(self, number: int) -> None:
        """Round `number` has its rows."""
        found, faults = self.rounds.found(number)
        assert faults == FINE
        assert (found == ROWS[self.rounds.ids(number)]).all()

    def failed(self, number: int) -> None:
        """Round `number` has none, and says so."""
        found, faults = self.rounds.found(number)
        assert faults == fault_of(Fault.ROW_SERVER)
        assert not found.any()

    def held_back(self, queued: int) -> list[int]:
        """Queues rounds behind a server that stands still; returns once the first of them waits."""
        os.kill(self.server, signal.SIGSTOP)
        numbers = [self.rounds.launch() for _ in range(queued)]
        wait_until(lambda: self.tables.box(TABLE.name).words.waiting, SOON_S, "a round that waits")
        return numbers


@pytest.fixture
def office(device: Device, tmp_path: Path) -> Iterator[Office]:
    found = Office(tmp_path / "core", table_core(tmp_path / "core", TABLE))
    try:
        found.open(device)
        yield found
        found.tables.stop()
        device.close()
    finally:
        found.tables.close()


def test_every_round_gets_the_rows_that_it_asked_for(office: Office) -> None:
    for number in range(60):
        assert office.rounds.launch() == number
        office.check(number)
    assert office.tables.restarts == 0


def test_two_queued_rounds_share_the_mailbox_in_turn(office: Office) -> None:
    for _ in range(30):
        numbers = [office.rounds.launch(), office.rounds.launch()]
        for number in numbers:
            office.check(number)


def test_a_killed_server_fails_the_round_that_waits_and_its_successor_serves_the_one_behind_it(
    office: Office, request: pytest.FixtureRequest
) -> None:
    """Also a round that was queued while the first still waited: it does not ask before the poison is gone."""
    office.check(office.rounds.launch())
    for _ in range(2):
        first, second = office.held_back(2)
        began = time.perf_counter()
        os.kill(office.server, signal.SIGKILL)
        office.failed(first)
        office.check(second)
        if request.node.get_closest_marker("gpu"):
            figure: Callable[[str], None] = request.getfixturevalue("figure")
            figure(f"(e) row server killed: two queued rounds over after {(time.perf_counter() - began) * 1e3:.0f} ms")
    assert office.tables.restarts == 2
    office.check(office.rounds.launch())


def test_a_server_that_hangs_fails_the_round_that_waits_after_its_patience(device: Device, tmp_path: Path) -> None:
    office = Office(tmp_path / "core", table_core(tmp_path / "core", TABLE), patience=0.5)
    try:
        office.open(device)
        began = time.monotonic()
        [number] = office.held_back(1)
        office.failed(number)
        assert time.monotonic() - began > 0.5
        office.check(office.rounds.launch())
    finally:
        office.tables.stop()
        device.close()
        office.tables.close()


def test_rounds_that_wait_when_the_worker_ends_are_over(office: Office) -> None:
    first, second = office.held_back(2)
    office.tables.stop()
    office.failed(first)
    office.failed(second)


@pytest.mark.gpu
def test_how_long_rounds_wait_is_counted_by_the_device(tmp_path: Path, figure: Callable[[str], None]) -> None:
    card, office = Card(), Office(tmp_path / "core", table_core(tmp_path / "core", TABLE))
    try:
        office.open(card)
        before = office.tables.waits.count
        asking = events(card, office.rounds.launch, 2000)
        waits = office.tables.waits
        assert waits.count - before == 2000
        assert 0 < waits.total < 30
        held = Rounds(card, HeldTable(torch.from_numpy(ROWS).cuda()), TABLE.rows, TABLE.row_bytes)
        plain = events(card, held.launch, 2000)
        for what, sample in (("answered by a polling process", asking), ("rows in device memory", plain)):
            p99 = sample[len(sample) * 99 // 100]
            figure(f"(e) round of 48 rows, {what}: median {statistics.median(sample):.1f} us, p99 {p99:.1f} us")
        figure(f"(e) mean wait {waits.total / waits.count * 1e6:.1f} us")
    finally:
        office.tables.stop()
        card.close()
        office.tables.close()


@pytest.mark.gpu
def test_a_card_reads_a_table_in_host_memory_by_itself(tmp_path: Path, figure: Callable[[str], None]) -> None:
    card, office = Card(), Office(tmp_path / "core", table_core(tmp_path / "core", TABLE), "ram")
    try:
        office.open(card)
        for _ in range(20):
            office.check(office.rounds.launch())
        assert office.tables.server is None
    finally:
        card.close()
        office.tables.close()


@pytest.mark.gpu
def test_what_a_gather_from_host_memory_costs(tmp_path: Path, figure: Callable[[str], None]) -> None:
    """128 rows, of eight tokens with sixteen hash heads, other ones each time, dequantised."""
    large = msgspec.structs.replace(TABLE, rows=500_000)
    card, office = Card(), Office(tmp_path / "core", table_core(tmp_path / "core", large), "ram")
    try:
        mapped = card.table(office.tables, large.name)
        assert isinstance(mapped, HeldTable)
        scale, counter = torch.ones(1, device=card.device), torch.zeros(1, dtype=torch.int64, device=card.device)
        heads = torch.arange(128, device=card.device).view(8, 16)

        def body(rows: Tensor, gathers: int) -> Tensor:
            ids = (counter * 128 + heads) * 7919 % large.rows
            for _ in range(gathers):
                found = gather_rows(rows, scale, ids, 160, torch.bfloat16)
                ids = (ids + 104_729) % large.rows
            counter.add_(1)
            return found

        def cost(rows: Tensor) -> float:
            few, many = (
                statistics.median(events(card, card.freeze(partial(body, rows, gathers)), 300)) for gathers in (1, 21)
            )
            return (many - few) / 20

        wanted = body(mapped.rows.clone(), 2)
        counter.zero_()
        assert torch.equal(body(mapped.rows, 2), wanted)
        figure(
            f"(e) gather of 128 rows: from host memory {cost(mapped.rows):.1f} us, of the device's own "
            f"{cost(mapped.rows.clone()):.1f} us, both with the next ids"
        )
    finally:
        card.close()
        office.tables.close()
