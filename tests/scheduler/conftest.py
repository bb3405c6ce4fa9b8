"""A scheduler in a thread over real sockets and shared memory, with scripted workers and bare frontends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from services.scheduler.config import SchedulerConfig
from services.scheduler.loop import Loop
from services.scheduler.opening import Opened, open_core
from services.scheduler.tallies import Tallies
from shared.channel import Client, RunDirectory
from shared.manifest import Manifest
from shared.messages.common import Message, Sampling, new_instance
from shared.messages.frontend import FROM_SCHEDULER, Delta, Failed, FromScheduler, Status, Tokens, Welcome
from shared.messages.scheduler import Ack, Cancel, FrontendHello, Safe, StoppedAt, Submit
from tests.scheduler.cores import write_core
from tests.scheduler.device import NextToken
from tests.scheduler.scripted_worker import ScriptedWorker

PATIENCE_S = 20.0


class BareFrontend:
    """A frontend that acknowledges what it gets, driven by the test's own thread."""

    def __init__(self, run_dir: Path, acknowledges: bool = True) -> None:
        self.instance = new_instance()
        self.scheduler = 0
        self.output: dict[str, list[int]] = {}
        self.finished: dict[str, str] = {}
        self.failed: dict[str, Failed] = {}
        self.deltas: list[Delta] = []
        self.status: Status | None = None
        self.acknowledges = acknowledges
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.client: Client[FromScheduler] = Client(self._context, RunDirectory(run_dir).frontends, FROM_SCHEDULER)
        self.wait(lambda: any(self.client.events()))
        self.send(FrontendHello(instance=self.instance))
        self.wait(lambda: self.scheduler != 0)

    def send(self, message: Message) -> None:
        self.client.send(message)

    def submit(self, request: str, prompt: list[int], budget: int, **values: Any) -> None:
        ends = values.pop("ends", ())
        self.send(
            Submit(
                instance=self.instance,
                request=request,
                prompt=tuple(prompt),
                sampling=Sampling(**values),
                max_tokens=budget,
                end_ids=ends,
            )
        )

    def cancel(self, request: str) -> None:
        self.send(Cancel(instance=self.instance, request=request))

    def stop_at(self, request: str, epoch: int, visible: int) -> None:
        self.send(StoppedAt(instance=self.instance, request=request, epoch=epoch, visible=visible))

    def wait(self, until: Callable[[], bool], seconds: float = PATIENCE_S) -> None:
        """Takes messages until a condition holds."""
        deadline = time.monotonic() + seconds
        while not until():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.finished=} {self.failed=} {self.status=}")
            self.client.socket.poll(5)
            self.take()

    def wait_over(self, *requests: str, seconds: float = PATIENCE_S) -> None:
        self.wait(lambda: all(r in self.finished or r in self.failed for r in requests), seconds)

    def take(self) -> None:
        while (message := self.client.receive()) is not None:
            match message:
                case Welcome():
                    self.scheduler = message.instance
                case Status():
                    self.status = message
                case Failed():
                    self.failed[message.request] = message
                case Tokens():
                    safe = tuple(self._deliver(delta) for delta in message.deltas)
                    if self.acknowledges:
                        self.send(Ack(instance=self.instance, safe=safe))

    def _deliver(self, delta: Delta) -> Safe:
        self.deltas.append(delta)
        got = self.output.setdefault(delta.request, [])
        assert delta.start == len(got)
        assert delta.request not in self.finished
        assert len(delta.sources) == len(delta.tokens)
        got.extend(delta.tokens)
        if delta.finish:
            self.finished[delta.request] = delta.finish
        return Safe(request=delta.request, epoch=delta.epoch, upto=len(got))

    def close(self) -> None:
        self.client.close()
        self._context.term()


class Served:
    """One scheduler and what a test starts around it."""

    def __init__(self, tmp_path: Path, core: Manifest, **options: Any) -> None:
        self.core = core
        self.run_dir = tmp_path / "run"
        self.digest = write_core(tmp_path / "core", core)
        self.config = SchedulerConfig(core=tmp_path / "core", run_dir=self.run_dir, **options)
        instance = new_instance()
        self.tallies = Tallies()
        self.opened: Opened = open_core(self.config, instance)
        self.roster = self.opened.roster
        self.loop = Loop(self.config, self.opened, instance, self.tallies)
        self.code: int | None = None
        self.workers: list[ScriptedWorker] = []
        self.frontends: list[BareFrontend] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self.code = self.loop.run()

    def worker(self, next_token: NextToken, **options: Any) -> ScriptedWorker:
        address = RunDirectory(self.run_dir).workers
        self.workers.append(ScriptedWorker(self.core, self.digest, address, next_token, **options).start())
        return self.workers[-1]

    def frontend(self, **options: Any) -> BareFrontend:
        self.frontends.append(BareFrontend(self.run_dir, **options))
        return self.frontends[-1]

    def idle(self) -> bool:
        """Whether every slot has come back, and every page to the pool or to the prefix cache alone."""
        roster = self.roster
        return not roster.active and not roster.waiting and roster.prefixes.available == roster.pool.total

    def join(self, seconds: float = PATIENCE_S) -> int | None:
        self._thread.join(seconds)
        return self.code

    def close(self) -> None:
        for frontend in self.frontends:
            if not frontend.client.socket.closed:
                frontend.close()
        self.loop.stop()
        self.loop.stop()
        self.join()
        for worker in self.workers:
            worker.stop()
        assert self.code == 0
        assert [worker.violation for worker in self.workers if worker.violation] == []


Serve = Callable[..., Served]


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Starts schedulers and ends them with everything around them; a protocol violation fails the test."""
    started: list[Served] = []
    memory = tmp_path / "shm"
    memory.mkdir()
    monkeypatch.setenv("FLARE_SHM_DIR", str(memory))

    def start(core: Manifest, **options: Any) -> Served:
        started.append(Served(tmp_path / str(len(started)), core, **options))
        return started[-1]

    yield start
    for served in started:
        served.close()
