"""A launch thread with a line of its own: a whole worker over a device's rounds on the CPU, behind a real scheduler."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

import services.worker.service as worker_service
from compose.bench.forced_drafter import SAID, ForcedDrafter
from recipes.components.device_drafter import DeviceDrafter, DeviceDrafts, DeviceTask
from services.worker.config import WorkerConfig
from services.worker.devices.catalog import DeviceCatalog
from services.worker.devices.choice import CpuDevice
from services.worker.preparation import Frames
from services.worker.replay import Outcome
from services.worker.rounds_line import RoundsLine
from shared.manifest import Manifest
from tests.scheduler.conftest import Serve, Served
from tests.scheduler.cores import manifest
from tests.scheduler.line_worker import device_over
from tests.worker.devices.hashed import HashedDrafter
from tests.worker.devices.test_traffic import CPU

PROMPT = list(range(20, 60))


def core(learned: bool = False) -> Manifest:
    """For a model whose vectors are of three numbers."""
    found = manifest()
    geometry = msgspec.structs.replace(found.geometry, hidden_size=3)
    graphs = tuple(
        msgspec.structs.replace(graph, draft_source="learned") if learned and graph.draft_tokens else graph
        for graph in found.graphs
    )
    return msgspec.structs.replace(found, geometry=geometry, graphs=graphs)


class CuttingLine(RoundsLine):
    """Loses its connection, and only that, when told to; by the thread that owns it."""

    cut = threading.Event()

    def take(self, sequence: int) -> Any:
        if self.cut.is_set():
            self.cut.clear()
            self.socket.disconnect(self._client.address)
            self.socket.connect(self._client.address)
        return super().take(sequence)


class Eager(HashedDrafter):
    """Drafts as much as it may, as a learned drafter of the real kind does."""

    def propose(self, task: DeviceTask) -> DeviceDrafts:
        return replace(super().propose(task), counts=task.limits)


class Running:
    """A worker in a thread, as `flare worker` runs it in a process."""

    def __init__(self, served: Served, drafter: DeviceDrafter | None, monkeypatch: pytest.MonkeyPatch) -> None:
        self.outcomes: list[Outcome] = []

        def device(config: WorkerConfig, manifest: Manifest, frames: Frames, *rest: object) -> CpuDevice:
            made = device_over(manifest, frames, drafter)
            self.launch = made.launch
            report = self.launch._report

            def noted(outcome: Outcome) -> None:
                self.outcomes.append(outcome)
                report(outcome)

            vars(self.launch)["_report"] = noted
            return made

        monkeypatch.setattr(worker_service, "device_of", device)
        monkeypatch.setattr(worker_service, "RoundsLine", CuttingLine)
        self._worker: worker_service.Worker | None = None
        config = WorkerConfig(core=served.config.core, run_dir=served.run_dir)
        self.codes: list[int] = []
        self._thread = threading.Thread(target=lambda: self.codes.append(worker_service.run(config, self._started)))
        self._thread.start()

    def _started(self, worker: worker_service.Worker) -> None:
        self._worker = worker

    def end(self) -> None:
        """As by a signal, twice."""
        if self._worker is not None:
            self._worker.stop()
            self._worker.stop()
        self._thread.join(20)
        assert self.codes == [0]
        assert not self.launch.is_alive(), "the thread and its line end with the worker"


Start = Callable[..., Running]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts workers."""
    found: list[Running] = []

    def begin(served: Served, drafter: DeviceDrafter | None = None) -> Running:
        found.append(Running(served, drafter, monkeypatch))
        return found[-1]

    yield begin
    for running in found:
        running.end()


def answers(served: Served, count: int, name: str) -> list[list[int]]:
    """Requests beside one another, to their ends."""
    frontend = served.frontend()
    names = [f"{name}{index}" for index in range(count)]
    for index, one in enumerate(names):
        frontend.submit(one, PROMPT[index:], 24, temperature=1.0, seed=index)
    frontend.wait_over(*names, seconds=60)
    assert frontend.failed == {}
    return [frontend.output[one] for one in names]


def test_rounds_pass_the_polling_thread_by(serve: Serve, start: Start) -> None:
    served = serve(core(), draft_tokens=0)
    running = start(served)
    found = answers(served, 3, "a")
    assert [len(one) for one in found] == [24] * 3
    assert answers(served, 3, "b") == found, "its state is reset and its draws are the seeds'"
    assert [type(outcome).__name__ for outcome in running.outcomes] == ["ResetDone"]
    assert served.tallies.stale_records == 0
    assert running._worker is not None
    assert sum(one.count for one in running._worker._meters.rounds.values()) > 50, "its thread counts its rounds"


def test_a_line_that_was_lost_alone_starts_anew(serve: Serve, start: Start) -> None:
    served = serve(core(), draft_tokens=0)
    running = start(served)
    found = answers(served, 1, "a")
    frontend = served.frontend()
    frontend.submit("cut", PROMPT, 400)
    frontend.wait(lambda: len(frontend.output.get("cut", [])) > 10)
    CuttingLine.cut.set()
    frontend.wait_over("cut", seconds=30)
    assert frontend.failed["cut"].code == "state_lost"
    assert answers(served, 1, "b") == found
    assert len(running.outcomes) == 2, "the slots were emptied again"


def test_a_worker_outlives_its_scheduler(serve: Serve, start: Start, tmp_path: Path) -> None:
    first = serve(core(), draft_tokens=0)
    running = start(first)
    found = answers(first, 1, "a")
    first.close()
    second = Served(tmp_path / "0", first.core, draft_tokens=0)
    try:
        assert answers(second, 1, "b") == found
        assert len(running.outcomes) == 2
    finally:
        second.close()


def test_a_worker_is_ready_once_its_slots_are_empty(
    serve: Serve, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, let = threading.Event(), threading.Event()
    reset = DeviceCatalog.reset

    def slow(catalog: DeviceCatalog) -> None:
        begun.set()
        assert let.wait(20)
        reset(catalog)

    monkeypatch.setattr(DeviceCatalog, "reset", slow)
    served = serve(core(), draft_tokens=0)
    running = start(served)
    assert begun.wait(20)
    assert running._worker is not None
    assert running._worker._unready() == "the slots are being emptied for a scheduler"
    let.set()
    answers(served, 1, "a")
    assert running._worker._unready() == ""


def test_a_bench_can_force_how_many_learned_drafts_survive(serve: Serve, start: Start) -> None:
    """Requests that can say one token only, and a drafter whose proposals are exchanged: the rounds are real ones."""
    served = serve(core(learned=True), prompt_drafts=False, fixed_width=8)
    geometry = served.core.geometry
    eager = Eager(geometry.vocab_size, geometry.concurrency, geometry.snapshot_slots, CPU)
    start(served, ForcedDrafter(eager, 3.5))
    frontend = served.frontend()
    frontend.submit("a", PROMPT, 160, temperature=1.0, seed=4, logit_bias=((SAID, 100.0),))
    frontend.wait_over("a", seconds=60)
    assert frontend.output["a"] == [SAID] * 160
    rounds = [len(delta.tokens) for delta in frontend.deltas[1:-1]]
    assert set(rounds) == {3, 4}
    assert abs(sum(rounds) / len(rounds) - 3.5) < 0.3
    counts = frontend.deltas[-1].counts
    assert counts.accepted_learned == 160 - len(frontend.deltas)


def test_a_killed_worker_is_noticed_by_its_lost_connections_and_its_successor_serves(serve: Serve) -> None:
    served = serve(core(), draft_tokens=0)
    command = [sys.executable, "-m", "tests.scheduler.line_worker", str(served.config.core), str(served.run_dir)]
    with subprocess.Popen(command) as first:
        found = answers(served, 2, "a")
        frontend = served.frontend()
        frontend.submit("long", PROMPT, 400)
        frontend.wait(lambda: len(frontend.output.get("long", [])) > 10)
        first.send_signal(signal.SIGKILL)
        frontend.wait_over("long", seconds=10)
        assert frontend.failed["long"].code == "state_lost"
    with subprocess.Popen(command) as second:
        assert answers(served, 2, "b") == found
        second.terminate()
        assert second.wait(20) == 0, "it drains, is sent off and ends"
