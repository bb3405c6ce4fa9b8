"""The tiny Qwen3.8 whose n-gram table lies on disk or in host memory, in a device's rounds: they do what the CPU's do.

On the CPU with the references of all operators, on a card captured. Both sides have a row server of their own.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from recipes.components.device_drafter import DeviceDrafter
from recipes.components.device_model import DeviceModel
from recipes.qwen38.device_drafter import DeviceMtp
from recipes.qwen38.device_target import DeviceTarget
from recipes.qwen38.embedding_table import NAME
from recipes.qwen38.target import Target
from services.worker.config import WorkerConfig
from services.worker.devices.catalog import DeviceCatalog
from services.worker.rows import Tables
from shared.frames import CompletionFrame, Fault, Meta
from shared.mailbox import Tally
from shared.manifest import Manifest, Storage, read
from shared.messages.common import Sampling
from tests.fixtures.harness import wait_until
from tests.gpu.table_rounds import Card, Device
from tests.gpu.table_rounds import Host as HostDevice
from tests.threads import torch_threads
from tests.worker.devices.qwen38 import qwen38_twin, small_core
from tests.worker.devices.traffic import Traffic
from tests.worker.devices.twin import HostPeer, Layouts, Peer, TwinCatalog
from tests.worker.host import Host, LanePlan, Record

OURS, THEIRS = 0x7AB1E, 0x7AB1F
SOON_S = 30.0
TEXT = tuple(range(3, 15))


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_core(tmp_path_factory.mktemp("qwen38-tables"), (1, 4))  # each width costs a card seconds to compile


class TableTwin:
    """A host over both, whose tables lie as `storage` says."""

    def __init__(self, core: Path, device: Device, storage: Storage) -> None:
        config = WorkerConfig(core=core, run_dir=core, threads=1, embedding_table_storage=storage)
        manifest = read(core)
        self._device = device
        self.peer: Peer
        self.ours, self.theirs = Tables(config, manifest, OURS), Tables(config, manifest, THEIRS)
        try:
            sources, tables = self.ours.open(), {NAME: device.table(self.theirs, NAME)}
            self.host = qwen38_twin(core, device.device, self._peer, sources, tables)
        except BaseException:
            self.close()
            raise

    def _peer(self, manifest: Manifest, model: DeviceModel, drafter: DeviceDrafter | None, layouts: Layouts) -> Peer:
        made: Peer
        if self._device.device.type == "cuda":
            from tests.gpu.captured import CudaPeer

            made = CudaPeer(manifest, model, drafter, layouts)
        else:
            made = HostPeer(layouts)
            made.catalog = DeviceCatalog(manifest, model, drafter, layouts, made.frames, self._device.device)
            made.catalog.capture()
        self.peer = made
        return made

    def close(self) -> None:
        for tables in (self.ours, self.theirs):
            tables.stop()
        if hasattr(self, "peer"):
            self.peer.close()
        self._device.close()
        for tables in (self.ours, self.theirs):
            tables.close()

    def losing_rows(self, lanes: list[LanePlan], width: int) -> dict[int, Record]:
        """A round of which both sides lose their row server while they wait for it."""
        found: list[dict[int, Record]] = []
        servers = [tables.server for tables in (self.ours, self.theirs)]
        for server in servers:
            assert server is not None
            os.kill(server, signal.SIGSTOP)
        thread = threading.Thread(target=lambda: found.append(without_gradients(self.host, lanes, width)))
        thread.start()
        for tables, server in zip((self.ours, self.theirs), servers, strict=True):
            assert server is not None
            wait_until(lambda: tables.box(NAME).words.waiting, SOON_S, "a round that waits")  # noqa: B023
            os.kill(server, signal.SIGKILL)
        thread.join(SOON_S)
        [records] = found
        return records


def without_gradients(host: Host, lanes: list[LanePlan], width: int) -> dict[int, Record]:
    """Each thread has its own switch."""
    with torch.no_grad():
        return host.round(lanes, width)


@pytest.fixture(params=["host", pytest.param("card", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    with torch.no_grad(), torch_threads(1):
        found: Device = Card() if request.param == "card" else HostDevice()
        yield found


@pytest.fixture
def disk(core: Path, device: Device) -> Iterator[TableTwin]:
    twin = TableTwin(core, device, "disk")
    yield twin
    twin.close()


@pytest.mark.timeout(300)
def test_a_device_with_a_table_on_disk_does_what_the_cpu_does_and_loses_what_the_cpu_loses(disk: TableTwin) -> None:
    host, widest = disk.host, max(disk.host.manifest.verification_widths)
    traffic = Traffic(host, seed=6)
    traffic.run(30)
    assert traffic.seen["mixed"] > 0
    # The CPU asks for each row once, a card for those of masked rows too.
    assert 0 < disk.ours.tally(Tally.ASKED) <= disk.theirs.tally(Tally.ASKED)
    host.start(0, TEXT, Sampling(temperature=0.0), 40)
    for width in (1, widest):
        consumed = host.catalog.state.consumed.copy()
        lost = disk.losing_rows([LanePlan(0, width)], width)
        assert (lost[0].faults, lost[0][Meta.EMITTED]) == (Fault.ROW_SERVER, 0)
        assert (host.catalog.state.consumed == consumed).all()
        again = host.round([LanePlan(0, width)], width)
        assert (again[0].faults, again[0][Meta.EMITTED] > 0) == (Fault.NONE, True)
    assert (disk.ours.restarts, disk.theirs.restarts) == (2, 2)
    # And what a worker's end leaves behind waits for nothing.
    disk.theirs.stop()
    disk.ours.stop()
    assert host.round([LanePlan(0)], 1)[0].faults == Fault.ROW_SERVER


def forget(twin: TableTwin, tags: Tensor, places: Tensor) -> None:
    """Slot 0's ring does not hold these positions any more."""
    tags[0, places % tags.shape[1]] = -1
    if twin.peer.catalog.state.device.type == "cuda":
        torch.cuda.synchronize()


@pytest.mark.timeout(300)
def test_a_raw_key_that_is_not_held_fails_the_round_and_says_so(
    disk: TableTwin, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, catalog = disk.host, disk.peer.catalog
    host.start(0, TEXT, Sampling(temperature=0.0), 60)
    while (consumed := int(host.catalog.state.consumed[0])) % 4 != 3:  # the next row completes a group
        host.round([LanePlan(0)], 1)
    place, model, target = torch.tensor([consumed - 1]), catalog.model, host.catalog.model
    assert isinstance(model, DeviceTarget)
    assert isinstance(target, Target)
    [theirs], [ours] = model.pools.index.values(), target.caches.values()
    forget(disk, theirs.tags, place)
    ours.rings.tags[0, place % ours.rings.tags.shape[1]] = -1
    record = host.round([LanePlan(0)], 1)[0]
    assert (record.faults, record[Meta.EMITTED], record[Meta.CONSUMED]) == (Fault.MISSING_HISTORY, 0, consumed)
    # A new request has nothing to miss. Its drafter's ring is then emptied on the device alone.
    host.start(0, TEXT, Sampling(temperature=0.0), 60)
    drafter, told = catalog._drafter, list[tuple[int, int]]()
    assert isinstance(drafter, DeviceMtp)
    forget(disk, drafter.cache.index.tags, torch.arange(drafter.cache.index.tags.shape[1]))

    def note(twin: TwinCatalog, mine: CompletionFrame, yours: CompletionFrame, sequence: int) -> None:
        told.append((int(yours.records[0, Meta.FAULTS]), int(yours.records[0, Meta.EMITTED])))

    monkeypatch.setattr(TwinCatalog, "_compare", note)
    for _ in range(4):
        host.round([LanePlan(0, 4)], 4)
    assert (Fault.MISSING_HISTORY, 0) in told


@pytest.mark.gpu
@pytest.mark.timeout(300)
def test_a_card_with_a_table_in_host_memory_does_what_the_cpu_does(core: Path) -> None:
    with torch.no_grad():
        twin = TableTwin(core, Card(), "ram")
        try:
            Traffic(twin.host, seed=6).run(30)
        finally:
            twin.close()
