"""A scripted worker: the device rules of a round over a deterministic next-token function, for tests of the scheduler.

It stands where weights would be. `Slots` follows what shared/frames.py and the issue say of init, chunks, rounds and
copies, and is stricter than a worker: whatever a scheduler may never do raises `Violation`. `ScriptedWorker` puts it
behind a real socket and real shared memory, in a thread.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import numpy as np
import zmq

from shared import regions
from shared.channel import Client
from shared.errors import Unroutable
from shared.frames import (
    FRAMES,
    METADATA,
    CompletionFrame,
    Fault,
    InitInt,
    Meta,
    PlanFrame,
    Status,
    completion_frame,
    completion_layout,
    plan_frame,
    plan_layout,
)
from shared.manifest import ABI, PAGE_TOKENS, ExecutionGraph, Manifest, largest_chunk
from shared.messages.common import Message, new_instance
from shared.messages.scheduler import Attached, RoundDone, WorkerBeat, WorkerFault, WorkerHello
from shared.messages.worker import TO_WORKER, Attach, Drain, Replay, ToWorker

NextToken = Callable[[list[int]], int]
"""The token that follows a context: the whole model."""


class Violation(Exception):
    """The scheduler broke a rule of the device protocol."""


@dataclass(slots=True)
class Slot:
    """A request on the device. `state` holds consumed tokens; `pages` those ever written, in order of position."""

    epoch: int = -1
    request: int = -1
    state: list[int] = field(default_factory=list)
    pending: int = -1
    generated: int = 0
    status: Status = Status.RUNNING
    budget: int = 0
    min_tokens: int = 0
    prompt_length: int = 0
    ends: frozenset[int] = frozenset()


class Slots:
    """All slots and the page store: a page remembers who wrote which position, so foreign writes are seen."""

    def __init__(self, manifest: Manifest, next_token: NextToken) -> None:
        self._manifest = manifest
        self._next = next_token
        self.slots = [Slot() for _ in range(manifest.geometry.concurrency)]
        self._store: dict[tuple[int, int], tuple[int, int]] = {}
        """(page, offset) -> (epoch, token) of what was written there last."""

    def reset(self) -> None:
        self.slots = [Slot() for _ in self.slots]
        self._store.clear()

    def replay(self, graph: ExecutionGraph, plan: PlanFrame, out: CompletionFrame, sequence: int) -> None:
        """One round into a completion frame."""
        out.head[0] = out.tail[0] = -1
        out.records.fill(0)
        out.records[:, Meta.SLOT] = -1
        if plan.head[0] != plan.tail[0] or plan.head[0] != sequence:
            raise Violation(f"round {sequence} found the plan of {plan.head[0]} and {plan.tail[0]}")
        if graph.kind == "init":
            self._init(plan, out, sequence)
        else:
            self._round(graph, plan, out, sequence)
        out.tail[0] = out.head[0] = sequence

    def _init(self, plan: PlanFrame, out: CompletionFrame, sequence: int) -> None:
        slot, integers = int(plan.init_slot[0]), plan.init_integers
        self.slots[slot] = Slot(
            epoch=int(plan.init_epoch[0]),
            request=int(plan.init_request[0]),
            budget=int(integers[InitInt.BUDGET]),
            min_tokens=int(integers[InitInt.MIN_TOKENS]),
            prompt_length=int(integers[InitInt.PROMPT_LENGTH]),
            ends=frozenset(int(token) for token in plan.init_end_ids[: integers[InitInt.END_COUNT]]),
        )
        self._record(out, slot, sequence, (), 0, 0, 0, 0)

    def _round(self, graph: ExecutionGraph, plan: PlanFrame, out: CompletionFrame, sequence: int) -> None:
        lanes, chunked = int(plan.lanes[0]), graph.kind in ("prefill", "mixed")
        if lanes > (0 if graph.kind == "prefill" else graph.batch_capacity):
            raise Violation(f"{lanes} lanes for a {graph.kind} graph of {graph.batch_capacity}")
        if len({int(slot) for slot in plan.slot[:lanes]}) != lanes:
            raise Violation("a slot twice in one round")
        width = graph.token_capacity if graph.kind == "speculative" else 1
        for lane in range(lanes):
            self._lane(plan, out, sequence, lane, width)
        if chunked:
            self._chunk(graph, plan, out, sequence)

    def _current(self, slot: int, epoch: int, request: int) -> Slot:
        if not 0 <= slot < len(self.slots):
            raise Violation(f"no slot {slot}")
        found = self.slots[slot]
        if (found.epoch, found.request) != (epoch, request):
            raise Violation(f"slot {slot} holds request {found.request}, not {request}")
        return found

    def _lane(self, plan: PlanFrame, out: CompletionFrame, sequence: int, lane: int, width: int) -> None:
        index = int(plan.slot[lane])
        slot = self._current(index, int(plan.epoch[lane]), int(plan.request[lane]))
        if slot.pending < 0:
            raise Violation("a round for a request without a pending token")
        if slot.status is not Status.RUNNING:
            self._record(out, index, sequence, (), 0, 0, 0, 0)
            return
        room = slot.budget - slot.generated
        limit = min(int(plan.ceiling[lane]), width, room) - 1
        tokens = plan.copy_tokens[lane, : int(plan.copy_length[lane])].tolist()
        at = len(slot.state) - int(plan.copy_anchor[lane])
        agrees = 1 <= at < len(tokens) and tokens[at - 1 : at + 1] == [slot.state[-1], slot.pending]
        drafts = tokens[at + 1 : at + 1 + limit] if agrees and limit > 0 else []
        table, start = plan.page_table[lane], len(slot.state)
        self._check(slot, table, start)
        inputs = [slot.pending, *drafts]
        self._write(slot, table, start, inputs)
        emitted: list[int] = []
        accepted = 0
        for row in range(len(inputs)):
            token = self._draw(slot, slot.state + inputs[: row + 1], len(emitted))
            emitted.append(token)
            survived = row < len(drafts) and token == drafts[row]
            accepted += survived
            if not survived or token in slot.ends or len(emitted) == room:
                break
        slot.state += inputs[: len(emitted)]
        self._emit(slot, emitted)
        source = int(plan.copy_source[lane]) if drafts else 0
        self._record(out, index, sequence, tuple(emitted), len(drafts), accepted, source, len(inputs))

    def _draw(self, slot: Slot, context: list[int], emitted: int) -> int:
        token = self._next(context)
        if token in slot.ends and slot.generated + emitted < slot.min_tokens:
            return min(set(range(2, 40)) - slot.ends)
        return token

    def _emit(self, slot: Slot, emitted: list[int]) -> None:
        slot.pending = emitted[-1]
        slot.generated += len(emitted)
        if emitted[-1] in slot.ends:
            slot.status = Status.ENDED
        elif slot.generated >= slot.budget:
            slot.status = Status.LENGTH

    def _chunk(self, graph: ExecutionGraph, plan: PlanFrame, out: CompletionFrame, sequence: int) -> None:
        index, length, final = int(plan.chunk_slot[0]), int(plan.chunk_length[0]), int(plan.chunk_final[0])
        slot = self._current(index, int(plan.chunk_epoch[0]), int(plan.chunk_request[0]))
        start = int(plan.chunk_start[0])
        if start != len(slot.state) or not 1 <= length <= graph.token_capacity:
            raise Violation(f"a chunk of {length} at {start} after {len(slot.state)} tokens")
        tokens = plan.chunk_tokens[:length].tolist()
        self._check(slot, plan.chunk_page_table, start)
        self._write(slot, plan.chunk_page_table, start, tokens)
        slot.state += tokens
        emitted: list[int] = []
        if final == 1:
            emitted = [self._draw(slot, slot.state, 0)]
            self._emit(slot, emitted)
        elif final == 2:
            slot.generated = start + length + 1 - slot.prompt_length
            slot.pending = int(plan.chunk_pending[0])
        self._record(out, index, sequence, tuple(emitted), 0, 0, 0, length)

    def _write(self, slot: Slot, table: np.ndarray, start: int, tokens: list[int]) -> None:
        for position, token in enumerate(tokens, start):
            page = int(table[position // PAGE_TOKENS])
            if not 0 <= page < self._manifest.geometry.pages:
                raise Violation(f"position {position} has no page")
            self._store[page, position % PAGE_TOKENS] = (slot.epoch, token)

    def _check(self, slot: Slot, table: np.ndarray, start: int) -> None:
        """All consumed tokens must still lie where the table says."""
        for position, token in enumerate(slot.state[:start]):
            if self._store.get((int(table[position // PAGE_TOKENS]), position % PAGE_TOKENS)) != (slot.epoch, token):
                raise Violation(f"position {position} of request {slot.request} was overwritten or moved")

    def _record(
        self,
        out: CompletionFrame,
        index: int,
        sequence: int,
        tokens: tuple[int, ...],
        offered: int,
        accepted: int,
        source: int,
        width: int,
    ) -> None:
        slot, record = self.slots[index], out.records[index]
        record[:METADATA] = (
            index,
            slot.epoch,
            slot.request,
            len(slot.state),
            slot.generated,
            slot.generated - (slot.status is Status.ENDED),
            slot.status,
            len(tokens),
            offered,
            accepted,
            source,
            0,
            width,
            sequence,
            Fault.NONE,
            accepted,
        )
        record[METADATA : METADATA + len(tokens)] = tokens


class ScriptedWorker:
    """The worker process's protocol in a thread; each round takes `round_s` seconds and reports a millisecond."""

    def __init__(
        self, manifest: Manifest, digest: str, address: str, next_token: NextToken, round_s: float = 0.0
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
        self._thread.join(5)
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
            device="cpu",
            device_uuid="cpu",
            manifest_digest=self._digest,
            plan_region=msgspec.msgpack.encode(self._plan_region.handle),
            completion_region=msgspec.msgpack.encode(self._completion_region.handle),
            slots=geometry.concurrency,
            pages=geometry.pages,
            snapshots=geometry.snapshot_slots,
            process=1,
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
                    self._send(client, Attached(instance=self.instance, scheduler=scheduler, sequence=self.sequence))
                elif isinstance(message, Drain) and message.instance == scheduler:
                    if queued:
                        raise Violation("sent off with a round queued")
                    return
                elif isinstance(message, Replay) and message.instance == scheduler:
                    queued.append(message)
                    if len(queued) > FRAMES:
                        raise Violation("more than two rounds are queued")
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
