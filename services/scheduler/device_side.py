"""The scheduler's side towards the worker: keeps two rounds queued and takes completed ones in. I/O lives here.

A round is read and the next one submitted before anybody hears of its tokens. When the worker goes, each request with
state on it fails at once and queued requests wait for its successor. One that was told to end is given no new request
and is sent off when those that it has are over.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import structlog

from services.scheduler.completions import Completions, Delivery
from services.scheduler.opening import Opened
from services.scheduler.records import Records
from services.scheduler.requests import Request
from services.scheduler.rounds import Narrow, Plan, RoundPlanner
from services.scheduler.tallies import Tallies
from services.scheduler.worker_link import LinkState, WorkerLink
from shared.channel import Server, waits
from shared.errors import StaleRecord, Unroutable
from shared.frames import FRAMES
from shared.messages.scheduler import Attached, FromWorker, RoundDone, WorkerBeat, WorkerFault, WorkerHello

HURRIED_NS = 1_500_000
"""Rounds shorter than this leave no time for a wake-up between the end of one and the launch of the next but one."""


@dataclass(frozen=True, slots=True)
class Round:
    """A completed round's tokens."""

    sequence: int
    deliveries: list[Delivery]


@dataclass(frozen=True, slots=True)
class Admission:
    """A request that was given a slot and its first pages, with the state of its first `cached` tokens."""

    request: Request
    slot: int
    pages: int
    cached: int


class DeviceSide:
    """Times in seconds of the loop's clock."""

    def __init__(self, server: Server[FromWorker], opened: Opened, tallies: Tallies, instance: int) -> None:
        self.queued: deque[tuple[int, Plan]] = deque()
        """Rounds submitted and not yet done: at most two."""
        self.admitted: list[Admission] = []
        """Admissions to log; the loop empties the list."""
        self.reason = "no worker is attached"
        self._leaving = False
        """Whether the worker was told to end."""
        self._took_ns = 0
        self._server = server
        self._roster = opened.roster
        self._slots = opened.slots
        self._planner = RoundPlanner(opened.roster, opened.graphs)
        self._completions = Completions(opened.roster, tallies)
        self._tallies = tallies
        self._link = WorkerLink(server, opened.manifest, opened.digest, instance)
        self._log = structlog.get_logger()

    @property
    def narrow(self) -> dict[Narrow, int]:
        """Lanes planned at width one, by reason."""
        return self._planner.narrow

    @property
    def ready(self) -> bool:
        """Whether a worker is attached."""
        return self._link.state is LinkState.READY

    @property
    def accepting(self) -> bool:
        """Whether new requests can run."""
        return self.ready and not self._leaving

    @property
    def waiting(self) -> bool:
        """Whether a message of a worker waits."""
        return waits(self._server.socket)

    @property
    def hurried(self) -> bool:
        """Whether a GPU's rounds are queued that are over before a process that sleeps would be awake and done.

        Rounds on the CPU need the core that turning would take.
        """
        return bool(self.queued) and self._took_ns < HURRIED_NS and self._link.off_cpu

    def receive(self, now: float) -> list[Round]:
        """Takes all messages of workers and keeps the device busy in between."""
        rounds: list[Round] = []
        # A Hello after a loss is the worker come back; a beat may have been sent before it and says nothing.
        losses, greeted = self._server.losses(), False
        fault: WorkerFault | None = None
        # No more than can be queued: rounds that end as fast as they are taken would keep their tokens here for ever.
        while len(rounds) < FRAMES and (received := self._server.receive()) is not None:
            peer, message = received
            if isinstance(message, WorkerHello):
                greeted |= self._greet(peer, message, now)
            elif isinstance(message, WorkerFault) and self._link.knows(peer, message):
                fault = message  # rounds that were over before it may come behind it, by their own connection
            elif self._link.knows(peer, message):
                self._take(peer, message, now, rounds)
        if fault is not None and self._link.knows_instance(fault.instance):
            self._failed(fault)
        if losses and not greeted:
            self._link.suspect(now)
        return rounds

    def pump(self) -> None:
        """Queues rounds until two, or as many as the worker takes, are out, or there is nothing to do."""
        while self.ready and len(self.queued) < self._link.rounds_in_flight:
            plan = self._planner.next()
            if plan is None:
                return
            if plan.admitted is not None:
                new = plan.admitted
                self.admitted.append(Admission(new, new.slot, len(new.pages), new.share.hit))
            try:
                self.queued.append((self._link.submit(plan), plan))
            except Unroutable as error:
                self._lost(str(error))

    def watch(self, now: float, timeout: float, ending: bool) -> None:
        """Gives a worker up that lost its connection or fell silent, and sends one off that wants to go.

        With `ending` this process ends too: whoever waits has no successor to wait for, and is served now.
        """
        reason = self._link.silent(now, timeout)
        if reason:
            self._lost(reason)
        self._roster.closed = self._leaving and not ending
        if self._roster.closed and self.ready and not self._roster.active and not self.queued:
            self._send_off()

    def close(self) -> None:
        """Unmaps the worker's memory."""
        self._link.close()

    def _send_off(self) -> None:
        try:
            self._link.drain()
        except Unroutable as error:
            self._log.warning("worker.unreachable", reason=str(error))
        self._log.info("worker.drained")
        self._roster.detach("the worker has drained")
        self._link.close()
        self.reason = "no worker is attached"

    def _greet(self, peer: bytes, hello: WorkerHello, now: float) -> bool:
        refusal = self._link.acceptable(hello)
        if refusal:
            self._log.error("worker.refused", worker=hello.instance, reason=refusal)
            return False
        if self._link.state is not LinkState.NONE:
            self._lost("another worker took over, or this one connected anew")
        if not self._link.greet(peer, hello, now):
            return False
        self.reason, self._leaving = "the worker is being attached", False
        return True

    def _take(self, peer: bytes, message: FromWorker, now: float, rounds: list[Round]) -> None:
        self._link.heard(now)
        if isinstance(message, RoundDone):
            if self.ready:
                self._done(message, rounds)
        elif isinstance(message, Attached):
            if self._link.attached(peer, message):
                self._start()
        elif isinstance(message, WorkerBeat) and message.draining and self.ready:
            if not self._leaving:
                self._log.info("worker.draining", running=self._roster.running)
            self.reason, self._leaving = "the worker is draining", True
        elif self._link.state is LinkState.NONE:
            self._log.info("worker.back")
            self._link.again(now)

    def _failed(self, fault: WorkerFault) -> None:
        self._lost(f"the worker failed: {fault.code}")
        self._log.error("worker.fault", code=fault.code, message=fault.message)
        self._link.close()

    def _start(self) -> None:
        hello = self._link.hello
        if hello is not None:
            self._roster.attach(min(self._slots, hello.slots), hello.pages, hello.snapshots)
            self._tallies.worker_attachments += 1
            self.reason = ""
            self._log.info("worker.attached", worker=hello.instance, device=hello.device, sequence=self._link.sequence)

    def _done(self, message: RoundDone, rounds: list[Round]) -> None:
        if not self.queued or self.queued[0][0] != message.sequence:
            self._tallies.stale_records += 1
            self._log.warning("round.stale", sequence=message.sequence)
            return
        self._took_ns = message.device_ns
        sequence, plan = self.queued.popleft()
        taken = self._completions.take(plan, self._records(sequence))
        self.pump()
        rounds.append(Round(sequence, self._completions.tell(plan, taken, message.device_ns)))

    def _records(self, sequence: int) -> Records | None:
        try:
            return self._link.read(sequence)
        except StaleRecord as error:
            self._log.warning("round.stale", sequence=sequence, reason=str(error))
            return None

    def _lost(self, reason: str) -> None:
        if self._link.state is LinkState.READY:
            self._tallies.worker_losses += 1
            self._log.error("worker.lost", reason=reason, requests=self._roster.running)
            self._roster.detach(f"the worker that held this request's state is gone: {reason}")
        self.queued.clear()
        self._link.detach()
        self.reason = reason
