"""The worker process: a polling thread that speaks to the scheduler, and the launch thread that owns the device.

It announces itself once its graphs are captured, replays what it is told, and reports each finished round. It decides
nothing. When its scheduler goes, queued rounds drain and the slots wait for the next `Attach`. A launch thread that
has a line of its own (`rounds_line.py`) takes rounds and reports them without the polling thread.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

import msgspec
import structlog
import zmq

from services.worker.config import WorkerConfig
from services.worker.devices.choice import device_of
from services.worker.exposition import Shown
from services.worker.meters import Meters
from services.worker.preparation import create_frames
from services.worker.recording import RecordedWorker, Recording
from services.worker.replay import Crashed, Finished, Launch, Outcome, Reset
from services.worker.round_log import RoundLog
from services.worker.rounds_line import RoundsLine
from services.worker.rows import Tables
from shared import logs, regions
from shared.channel import Client, Refused, RunDirectory
from shared.errors import FlareError, RoundTimeout, Unroutable
from shared.log_traces import OPERATIONAL, message_of
from shared.manifest import ABI, read
from shared.messages.common import Message, new_instance
from shared.messages.scheduler import Attached, RoundDone, WorkerBeat, WorkerFault, WorkerHello
from shared.messages.worker import TO_WORKER, Attach, Drain, Replay, ToWorker
from shared.metrics_listener import served
from shared.pulse import PULSE, SWITCH_INTERVAL_S

BEAT_MS = 200
LAST_ROUNDS_S = 5.0
"""How long queued rounds may take at the end, before the device is closed under them."""


class Worker:
    """State of the polling thread."""

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._log = structlog.get_logger()
        self._manifest = read(config.core)
        self._digest = hashlib.sha256((config.core / "manifest.json").read_bytes()).hexdigest()
        self._instance = new_instance()
        self._frames = create_frames(self._manifest, self._instance)
        self._recording = Recording(config.record, RecordedWorker.of(config)) if config.record else None
        self._tables = Tables(config, self._manifest, self._instance)
        self._device = device_of(config, self._manifest, self._frames, self._tables, self._recording)
        self._launch = self._device.launch
        self._rounds = RoundLog(self._manifest)
        self._scheduler = 0
        self._attempt = 0
        self._emptied = False
        """Whether the slots are empty for that scheduler's last `Attach`: from then on it may ask for rounds."""
        self._sequence = 0
        self._connected: list[bool] = []
        """The polling thread's connection, and the launch thread's line if it has one."""
        self._signals = 0
        self._deadline = float("inf")
        self._code: int | None = None
        self._meters = Meters(self._manifest)
        self._shown = Shown(
            self._meters,
            self._launch,
            self._tables,
            Refused(),
            config.round_timeout,
            self._manifest.geometry.snapshot_slots,
            self._unready,
            time.monotonic,
        )

    @property
    def stuck(self) -> bool:
        """Whether the launch thread is not expected to come back."""
        return self._launch.age(time.monotonic()) > self._config.round_timeout

    @property
    def loading(self) -> bool:
        """Whether the launch thread still prepares the device, with threads that would finish it first."""
        return not self._launch.ready.is_set() and self._launch.is_alive()

    def run(self) -> int:
        """Serves until told to stop; returns the exit code."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._on_signal)
            signal.signal(signal.SIGINT, self._on_signal)
        self._launch.start()
        context, config = zmq.Context(), self._config
        shown = self._shown.exposition(config.served_model_name or self._manifest.model_name)
        try:
            with served(shown, "worker", config.metrics_host, config.metrics_port, config.run_dir):
                return self._load_and_serve(context)
        finally:
            self._close(context)

    def _close(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        """Every step, whatever the one before it: a card that failed refuses what gives its memory back."""
        steps: list[Callable[[], object]] = [lambda: context.destroy(linger=200)]
        if self._recording is not None:
            steps.append(self._recording.close)
        steps.append(self._tables.stop)
        if not self.stuck and not self.loading:
            steps.append(self._device.close)
        for step in (*steps, self._tables.close, self._frames.close):
            try:
                step()
            except Exception as error:  # the next step frees what others would find
                self._log.warning("worker.unclosed", reason=message_of(error, withhold=True)[:500])

    def _load_and_serve(self, context: zmq.Context[zmq.Socket[bytes]]) -> int:
        while not self._launch.ready.wait(0.1):
            PULSE.beat(time.monotonic())
            if self._signals:
                return 0
        if not self._launch.is_alive():
            self._react(self._launch.outcomes(), None)
            return self._code or 1
        address, refused = RunDirectory(self._config.run_dir).ensure().workers, self._shown.refused
        client, line = Client(context, address, TO_WORKER, refused), None
        if self._launch.speaks:
            line = RoundsLine(address, self._instance, refused, self._meters, self._note)
            self._launch.submit(line)
        try:
            self._serve(client, line)
        finally:
            client.close()
            if line is not None and not self.stuck:
                self._launch.submit(None)
                self._launch.join(LAST_ROUNDS_S)
                if not self._launch.is_alive():
                    line.close()
        return self._code or 0

    def _unready(self) -> str:
        if not self._launch.ready.is_set():
            return "the worker is loading"
        if self._signals:
            return "the worker is draining"
        if not self._scheduler:
            return "no scheduler is attached"
        return "" if self._emptied else "the slots are being emptied for a scheduler"

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.stop()

    def stop(self) -> None:
        """Drain and end; the second time, at once. Safe in a signal handler and from another thread."""
        self._signals += 1
        self._deadline = time.monotonic() + self._config.drain_timeout

    def _serve(self, client: Client[ToWorker], line: RoundsLine | None) -> None:
        poller = zmq.Poller()
        for source in (client.socket, client.monitor, self._launch.wake):
            poller.register(source, zmq.POLLIN)
        links: tuple[Client[ToWorker] | RoundsLine, ...] = (client,) if line is None else (client, line)
        for link in links[1:]:
            poller.register(link.monitor, zmq.POLLIN)
        self._connected = [False] * len(links)
        next_beat = 0.0
        while self._code is None:
            poller.poll(BEAT_MS)
            outcomes = self._launch.outcomes()
            self._react(outcomes, client)
            for index, link in enumerate(links):
                for connected in link.events():
                    self._on_connection(client, index, connected)
            while (message := client.receive()) is not None:
                self._on_message(message)
            for outcome in outcomes:
                if isinstance(outcome, Finished):
                    self._note(outcome)
            now = time.monotonic()
            PULSE.beat(now)
            if self.stuck:
                self._crash(RoundTimeout(f"a round did not end within {self._config.round_timeout:g} s"), client)
            if self._tables.failure is not None:
                self._crash(self._tables.failure, client)
            if all(self._connected) and now >= next_beat:
                self._send(client, self._beat())
                next_beat = now + BEAT_MS / 1000
            if self._signals and (not all(self._connected) or self._signals > 1 or now > self._deadline):
                self._code = 0

    def _beat(self) -> WorkerBeat:
        return WorkerBeat(instance=self._instance, sequence=self._sequence, draining=bool(self._signals))

    def _on_connection(self, client: Client[ToWorker], index: int, connected: bool) -> None:
        """Says Hello whenever the last of the connections has come: whoever lost one may have lost messages."""
        if not connected and all(self._connected):
            self._log.warning("worker.scheduler_lost")
            self._scheduler = 0
        self._connected[index] = connected
        if all(self._connected):
            self._greet(client)

    def _greet(self, client: Client[ToWorker]) -> None:
        geometry = self._manifest.geometry
        self._send(
            client,
            WorkerHello(
                instance=self._instance,
                abi=ABI,
                device=self._config.device,
                device_uuid=self._device.uuid,
                manifest_digest=self._digest,
                plan_region=msgspec.msgpack.encode(self._frames.plan.handle),
                completion_region=msgspec.msgpack.encode(self._device.completion),
                slots=min(geometry.concurrency, self._config.concurrency or geometry.concurrency),
                pages=geometry.pages,
                snapshots=geometry.snapshot_slots,
                process=os.getpid(),
                rounds_in_flight=self._tables.rounds_in_flight,
            ),
        )

    def _on_message(self, message: ToWorker) -> None:
        if isinstance(message, Attach):
            self._scheduler, self._attempt, self._emptied = message.instance, message.attempt, False
            self._launch.submit(Reset(message.instance, message.attempt))
        elif message.instance != self._scheduler:
            self._meters.stale_messages += 1
            self._log.warning("worker.stale_message", kind=type(message).__name__)
        elif isinstance(message, Replay):
            self._launch.submit(Launch(message.graph, message.requests))
        elif isinstance(message, Drain):
            self._code = 0

    def _react(self, outcomes: list[Outcome], client: Client[ToWorker] | None) -> None:
        """Tells the scheduler what the launch thread did."""
        for outcome in outcomes:
            if isinstance(outcome, Crashed):
                self._crash(outcome.error, client)
                return
            if isinstance(outcome, Finished):
                done = RoundDone(
                    instance=self._instance,
                    sequence=outcome.sequence,
                    graph=outcome.graph,
                    device_ns=outcome.device_ns,
                    idle_ns=outcome.idle_ns,
                )
                self._send(client, done)
            elif outcome.scheduler == self._scheduler:
                self._sequence, self._emptied = outcome.sequence, outcome.attempt == self._attempt
                self._log.info("worker.attached", scheduler=outcome.scheduler, sequence=outcome.sequence)
                if not self._launch.speaks:
                    attached = Attached(
                        instance=self._instance,
                        scheduler=outcome.scheduler,
                        sequence=outcome.sequence,
                        attempt=outcome.attempt,
                    )
                    self._send(client, attached)

    def _note(self, done: Finished) -> None:
        """A round is over and the scheduler knows. In the thread that told it."""
        self._sequence = done.sequence + 1
        self._rounds.write((done,))
        self._meters.take((done,))

    def _crash(self, error: BaseException, client: Client[ToWorker] | None) -> None:
        kind = type(error) if isinstance(error, FlareError) else FlareError
        code = kind.code
        if isinstance(error, FlareError):
            self._log.error("worker.failed", code=code, message=str(error))
        else:
            self._log.error("worker.failed", code=code, exc_info=error)
        message = message_of(error, withhold=True, told=OPERATIONAL)[:2000]  # the scheduler logs it
        self._send(client, WorkerFault(instance=self._instance, code=code, message=message))
        self._code = kind.exit_code

    def _send(self, client: Client[ToWorker] | None, message: Message) -> None:
        if client is None:
            return
        try:
            client.send(message)
        except Unroutable:
            # The scheduler is gone; the monitor says so too, and its successor resets every slot.
            self._log.debug("worker.unsent", kind=type(message).__name__)


def run(config: WorkerConfig, started: Callable[[Worker], None] | None = None) -> int:
    """Runs a worker until it is told to stop; returns the process's exit code.

    `started` is given the worker before it loads: outside the main thread there are no signals, and its `stop` is how
    to end it.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    regions.sweep()
    worker = Worker(config)
    if started is not None:
        started(worker)
    code = worker.run()
    structlog.get_logger().info("worker.stopped", code=code)
    alone = threading.current_thread() is threading.main_thread()
    if worker.stuck or (worker.loading and alone):
        # Nothing waits for that thread, but a library's own cleanup at exit may, and threads that load for it. Memory
        # and sockets are closed already.
        logs.flush()
        os._exit(code)
    return code
