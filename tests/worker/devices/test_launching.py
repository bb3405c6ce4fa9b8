"""The launch thread of a device: it goes on while rounds run, reports them in order, and resets behind them."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import torch

from recipes.components.device_state import Word
from services.worker.devices.catalog import DeviceCatalog
from services.worker.devices.launching import DeviceLaunchThread
from services.worker.replay import Crashed, Finished, Launch, Outcome, Reset, ResetDone
from shared.manifest import Manifest
from tests.worker.devices.test_traffic import CPU, model_of, small_core
from tests.worker.devices.twin import HostPeer, layouts_of


class SlowEnds:
    """Rounds that end when they are let go, as a device's do."""

    depth = 4

    def __init__(self) -> None:
        self.gate = threading.Semaphore(0)

    def begin(self, sequence: int) -> None:
        """Nothing."""

    def end(self, sequence: int) -> None:
        """Nothing."""

    def over(self, sequence: int) -> bool:
        return self.gate.acquire(blocking=False)

    def wait(self, sequence: int) -> None:
        self.gate.acquire()

    def device_ns(self, sequence: int) -> tuple[int, int]:
        return sequence, 0


def thread_over(manifest: Manifest, ends: SlowEnds) -> tuple[DeviceLaunchThread, DeviceCatalog]:
    """A ready thread over rounds on the CPU whose ends are `ends`."""
    layouts = layouts_of(manifest)
    peer = HostPeer(layouts)
    vars(peer.frames)["_ends"] = ends
    catalog = DeviceCatalog(manifest, model_of(manifest, CPU), None, layouts, peer.frames, CPU)
    catalog.capture()
    thread = DeviceLaunchThread(lambda: catalog)
    thread.start()
    assert thread.ready.wait(30)
    return thread, catalog


def collected(thread: DeviceLaunchThread, count: int) -> list[Outcome]:
    """The next outcomes."""
    found: list[Outcome] = []
    deadline = time.monotonic() + 30
    while len(found) < count and time.monotonic() < deadline:
        found += thread.outcomes()
        time.sleep(0.001)
    return found


def test_rounds_lie_on_the_device_one_behind_the_other(tmp_path: Path) -> None:
    ends = SlowEnds()
    thread, catalog = thread_over(small_core(tmp_path, False), ends)
    thread.submit(Launch(0))
    thread.submit(Launch(1))
    deadline = time.monotonic() + 30
    while (catalog.counter < 2 or thread.age(time.monotonic()) == 0) and time.monotonic() < deadline:
        time.sleep(0.001)
    assert catalog.counter == 2, "the second was launched while the first still ran"
    assert thread.age(time.monotonic()) > 0, "it knows that the first runs"
    assert thread.outcomes() == []
    thread.submit(Reset(7))
    ends.gate.release(2)
    first, second, reset = collected(thread, 3)
    assert isinstance(first, Finished)
    assert isinstance(second, Finished)
    assert (first.sequence, first.graph, second.sequence, second.graph) == (0, 0, 1, 1)
    assert reset == ResetDone(7, 2)
    assert int(catalog.state.words[0, Word.EPOCH]) == -1
    assert thread.age(time.monotonic()) == 0
    thread.submit(None)
    thread.join(30)
    assert not thread.is_alive()


def test_a_round_that_fails_on_the_device_ends_the_worker(tmp_path: Path) -> None:
    class Broken(SlowEnds):
        def over(self, sequence: int) -> bool:
            raise RuntimeError("an illegal address")

    thread, _ = thread_over(small_core(tmp_path, False), Broken())
    thread.submit(Launch(0))
    (crash,) = collected(thread, 1)
    assert isinstance(crash, Crashed)
    assert "illegal address" in str(crash.error)
    thread.submit(None)


def test_a_graph_that_was_not_captured_is_refused(tmp_path: Path) -> None:
    with torch.no_grad():
        thread, _ = thread_over(small_core(tmp_path, False), SlowEnds())
    thread.submit(Launch(999))
    (crash,) = collected(thread, 1)
    assert isinstance(crash, Crashed)
