"""The scheduler's side towards the worker: keeps two rounds queued and takes completed ones in. I/O lives here.

A round is read and the next one submitted before anybody hears of its tokens. When the worker goes, each request with
state on it fails at once and queued requests wait for its successor.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import structlog

from services.scheduler.completions import Completions, Delivery
from services.scheduler.opening import Opened
from services.scheduler.records import Records
from services.scheduler.rounds import Plan, RoundPlanner
from services.scheduler.tallies import Tallies
from services.scheduler.worker_link import LinkState, WorkerLink
from shared.channel import Server
from shared.errors import StaleRecord, Unroutable
from shared.frames import FRAMES
from shared.messages.scheduler import Attached, FromWorker, RoundDone, WorkerFault, WorkerHello


@dataclass(frozen=True, slots=True)
class Round:
    """A completed round's tokens."""

    sequence: int
    deliveries: list[Delivery]


class DeviceSide:
    """Times in seconds of the loop's clock."""

    def __init__(self, server: Server[FromWorker], opened: Opened, tallies: Tallies, instance: int) -> None:
        self.queued: deque[tuple[int, Plan]] = deque()
        """Rounds submitted and not yet done: at most two."""
        self.reason = "no worker is attached"
        self._server = server
        self._roster = opened.roster
        self._slots = opened.slots
        self._planner = RoundPlanner(opened.roster, opened.graphs)
        self._completions = Completions(opened.roster, tallies)
        self._tallies = tallies
        self._link = WorkerLink(server, opened.manifest, opened.digest, instance)
        self._log = structlog.get_logger()

    @property
    def ready(self) -> bool:
        """Whether a worker is attached."""
        return self._link.state is LinkState.READY

    def receive(self, now: float) -> list[Round]:
        """Takes all messages of workers and keeps the device busy in between."""
        rounds: list[Round] = []
        # A Hello after a loss is the worker come back; a beat may have been sent before it and says nothing.
        losses, greeted = self._server.losses(), False
        while (received := self._server.receive()) is not None:
            peer, message = received
            if isinstance(message, WorkerHello):
                greeted |= self._greet(peer, message, now)
            elif self._link.knows(peer, message.instance):
                self._take(message, now, rounds)
        if losses and not greeted:
            self._link.suspect(now)
        return rounds

    def pump(self) -> None:
        """Queues rounds until two are out or there is nothing to do."""
        while self.ready and len(self.queued) < FRAMES:
            plan = self._planner.next()
            if plan is None:
                return
            if plan.admitted is not None:
                self._log.info("request.admitted", request=plan.admitted.key.request, slot=plan.admitted.slot)
            try:
                self.queued.append((self._link.submit(plan), plan))
            except Unroutable as error:
                self._lost(str(error))

    def watch(self, now: float, timeout: float) -> None:
        """Gives a worker up that lost its connection or fell silent."""
        reason = self._link.silent(now, timeout)
        if reason:
            self._lost(reason)

    def close(self) -> None:
        """Unmaps the worker's memory."""
        self._link.close()

    def _greet(self, peer: bytes, hello: WorkerHello, now: float) -> bool:
        refusal = self._link.acceptable(hello)
        if refusal:
            self._log.error("worker.refused", worker=hello.instance, reason=refusal)
            return False
        if self._link.state is not LinkState.NONE:
            self._lost("another worker took over, or this one connected anew")
        if not self._link.greet(peer, hello, now):
            return False
        self.reason = "the worker is being attached"
        return True

    def _take(self, message: Attached | RoundDone | WorkerFault | object, now: float, rounds: list[Round]) -> None:
        self._link.heard(now)
        if isinstance(message, Attached):
            if self._link.attached(message):
                self._start()
        elif isinstance(message, RoundDone):
            if self.ready:
                self._done(message, rounds)
        elif isinstance(message, WorkerFault):
            self._lost(f"the worker failed: {message.code}")
            self._log.error("worker.fault", code=message.code, message=message.message)
            self._link.close()
        elif self._link.state is LinkState.NONE:
            self._log.info("worker.back")
            self._link.again(now)

    def _start(self) -> None:
        hello = self._link.hello
        if hello is not None:
            self._roster.attach(min(self._slots, hello.slots), hello.pages)
            self.reason = ""
            self._log.info("worker.attached", worker=hello.instance, device=hello.device, sequence=self._link.sequence)

    def _done(self, message: RoundDone, rounds: list[Round]) -> None:
        if not self.queued or self.queued[0][0] != message.sequence:
            self._tallies.stale_records += 1
            self._log.warning("round.stale", sequence=message.sequence)
            return
        sequence, plan = self.queued.popleft()
        deliveries = self._completions.apply(plan, self._records(sequence), message.device_ns)
        self.pump()
        graph = plan.graph
        self._tallies.note_round(graph.kind, graph.batch, graph.tokens, message.device_ns, message.idle_ns)
        rounds.append(Round(sequence, deliveries))

    def _records(self, sequence: int) -> Records | None:
        try:
            return self._link.read(sequence)
        except StaleRecord as error:
            self._log.warning("round.stale", sequence=sequence, reason=str(error))
            return None

    def _lost(self, reason: str) -> None:
        if self._link.state is LinkState.READY:
            self._log.error("worker.lost", reason=reason, requests=self._roster.running)
            self._roster.detach(f"the worker that held this request's state is gone: {reason}")
        self.queued.clear()
        self._link.detach()
        self.reason = reason
