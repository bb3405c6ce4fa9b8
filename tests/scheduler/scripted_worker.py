"""The worker process's protocol in a thread, over a real socket and real shared memory, around the strict device."""

from __future__ import annotations

import threading
import time
from collections import deque

import msgspec
import zmq

from shared import regions
from shared.channel import Client
from shared.errors import Unroutable
from shared.frames import FRAMES, completion_frame, completion_layout, plan_frame, plan_layout
from shared.manifest import ABI, Manifest, largest_chunk
from shared.messages.common import Message, new_instance
from shared.messages.scheduler import Attached, RoundDone, WorkerBeat, WorkerFault, WorkerHello
from shared.messages.worker import TO_WORKER, Attach, Drain, Replay, ToWorker
from tests.scheduler.device import NextToken, Slots, Violation


class ScriptedWorker:
    """The worker process's protocol in a thread; each round takes `round_s` seconds and reports a millisecond."""

    def __init__(
        self,
        manifest: Manifest,
        digest: str,
        address: str,
        next_token: NextToken,
        round_s: float = 0.0,
        rounds_in_flight: int = FRAMES,
        device: str = "cpu",
    ) -> None:
        self.instance = new_instance()
        self.violation: Exception | None = None
        self.sequence = 7
        self.rounds: deque[tuple[str, int]] = deque(maxlen=100_000)
        self.paused = threading.Event()
        self.draining = threading.Event()
        """Set it to be a worker that was told to end; it ends when it is sent `Drain`."""
        self.hold = threading.Event()
        """While set, rounds are taken but not run."""
        self.most_queued = 0
        self._in_flight, self._device = rounds_in_flight, device
        self._manifest, self._digest, self._address = manifest, digest, address
        self._round_s = round_s
        self.slots = Slots(manifest, next_token)
        plans, completions = (
            plan_layout(manifest.geometry, largest_chunk(manifest)),
            completion_layout(manifest.geometry),
        )
        self._plan_region = regions.create("plan", FRAMES * plans.nbytes, self.instance)
        self._completion_region = regions.create("completion", FRAMES * completions.nbytes, self.instance)
        self._plans = [plan_frame(plans, self._plan_region.payload, index) for index in range(FRAMES)]
        self.completions = [
            completion_frame(completions, self._completion_region.payload, index) for index in range(FRAMES)
        ]
        self._outbox: deque[Message] = deque()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> ScriptedWorker:
        self._thread.start()
        return self

    @property
    def alive(self) -> bool:
        """Whether it has not ended yet."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Ends as if killed: no word to anybody."""
        self._stop.set()
        self._thread.join(20)
        self._plan_region.close()
        self._completion_region.close()

    def say(self, message: Message) -> None:
        """Sends a message out of turn."""
        self._outbox.append(message)

    def hello(self) -> WorkerHello:
        geometry = self._manifest.geometry
        return WorkerHello(
            instance=self.instance,
            abi=ABI,
            device=self._device,
            device_uuid="cpu",
            manifest_digest=self._digest,
            plan_region=msgspec.msgpack.encode(self._plan_region.handle),
            completion_region=msgspec.msgpack.encode(self._completion_region.handle),
            slots=geometry.concurrency,
            pages=geometry.pages,
            snapshots=geometry.snapshot_slots,
            process=1,
            rounds_in_flight=self._in_flight,
        )

    def _run(self) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        client: Client[ToWorker] = Client(context, self._address, TO_WORKER)
        try:
            self._serve(client)
        except Exception as error:
            self.violation = error
            self._send(client, WorkerFault(instance=self.instance, code="contract_breach", message=str(error)))
        finally:
            client.close()
            context.term()

    def _serve(self, client: Client[ToWorker]) -> None:
        queued: deque[Replay] = deque()
        scheduler, connected, beat = 0, False, 0.0
        poller = zmq.Poller()
        poller.register(client.socket, zmq.POLLIN)
        poller.register(client.monitor, zmq.POLLIN)
        while not self._stop.is_set():
            poller.poll(0 if queued and not self.hold.is_set() else 10)
            if self.paused.is_set():
                time.sleep(0.01)
                continue
            for event in client.events():
                connected = event
                if connected:
                    self._send(client, self.hello())
            while (message := client.receive()) is not None:
                if isinstance(message, Attach):
                    scheduler = message.instance
                    queued.clear()
                    self.slots.reset()
                    attached = Attached(
                        instance=self.instance, scheduler=scheduler, sequence=self.sequence, attempt=message.attempt
                    )
                    self._send(client, attached)
                elif isinstance(message, Drain) and message.instance == scheduler:
                    if queued:
                        raise Violation("sent off with a round queued")
                    return
                elif isinstance(message, Replay) and message.instance == scheduler:
                    queued.append(message)
                    self.most_queued = max(self.most_queued, len(queued))
                    if len(queued) > self._in_flight:
                        raise Violation(f"{len(queued)} rounds are queued")
            while self._outbox:
                self._send(client, self._outbox.popleft())
            if queued and not self.hold.is_set():
                self._replay(client, queued.popleft())
            if connected and time.monotonic() > beat:
                draining = self.draining.is_set()
                self._send(client, WorkerBeat(instance=self.instance, sequence=self.sequence, draining=draining))
                beat = time.monotonic() + 0.1

    def _replay(self, client: Client[ToWorker], message: Replay) -> None:
        if message.sequence != self.sequence:
            raise Violation(f"round {message.sequence} after {self.sequence - 1}")
        graph, index = self._manifest.graphs[message.graph], message.sequence % FRAMES
        if self._plans[index].graph[0] != message.graph:
            raise Violation("the frame is of another graph")
        self.slots.replay(graph, self._plans[index], self.completions[index], message.sequence)
        if self._round_s:
            time.sleep(self._round_s)
        self.rounds.append((graph.kind, graph.token_capacity))
        self.sequence += 1
        done = RoundDone(
            instance=self.instance, sequence=message.sequence, graph=message.graph, device_ns=1_000_000, idle_ns=0
        )
        self._send(client, done)

    def _send(self, client: Client[ToWorker], message: Message) -> None:
        try:
            client.send(message)
        except Unroutable:
            pass  # the scheduler is gone, as in the real worker
