"""The scheduler's side towards frontends: takes their messages, tells them tokens, failures and status. I/O lives here.

A frontend that is gone or does not read loses its requests: their slots and pages are needed by others. Nothing of a
prompt or an answer reaches the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import structlog

from services.scheduler.acknowledgements import Acknowledgements
from services.scheduler.completions import Delivery
from services.scheduler.frontend_table import FrontendTable
from services.scheduler.progress import Progress
from services.scheduler.requests import Leaving, Phase, Request, RequestKey
from services.scheduler.roster import Roster
from services.scheduler.tallies import Tallies
from services.scheduler.timing import Timing
from shared.channel import Server, waits
from shared.errors import RequestError, Unavailable, Unroutable
from shared.messages.common import Message
from shared.messages.frontend import Delta, Failed, Status, Tokens, Welcome
from shared.messages.scheduler import (
    Ack,
    Cancel,
    FromFrontend,
    FrontendHello,
    FrontendPing,
    StoppedAt,
    Submit,
)

BURST = 256
"""Messages taken before the device gets its turn."""


@dataclass(slots=True)
class Condition:
    """Whether requests can run, and why not."""

    ready: bool = False
    reason: str = "no worker is attached"
    draining: bool = False


class FrontendSide:
    """One socket, many frontends."""

    def __init__(
        self,
        server: Server[FromFrontend],
        roster: Roster,
        tallies: Tallies,
        timing: Timing,
        progress: Progress,
        instance: int,
        incarnation: int,
        digest: str,
    ) -> None:
        self.condition = Condition()
        self._server = server
        self._roster = roster
        self._tallies = tallies
        self._timing = timing
        self._progress = progress
        self._acknowledgements = Acknowledgements(roster, tallies)
        self._table = FrontendTable()
        self._instance = instance
        self._incarnation = incarnation
        self._digest = digest
        self._log = structlog.get_logger()

    @property
    def connected(self) -> int:
        """Frontends that are known."""
        return len(self._table)

    @property
    def waiting(self) -> bool:
        """Whether a message of a frontend waits."""
        return waits(self._server.socket)

    def receive(self, now: float, least: int = BURST, hurried: Callable[[], bool] = lambda: False) -> bool:
        """Takes waiting messages; True if some may be left, because the device is to be served first.

        But `least` are taken in any case: as many as may come back for what was told (each request may have met a stop
        string), and more, or nobody is heard.
        """
        for taken in range(BURST):
            if taken >= least and hurried():
                return True
            received = self._server.receive()
            if received is None:
                return False
            self._take(*received, now)
        return True

    def announce(self, ready: bool, reason: str) -> None:
        """Sets the condition and tells everybody if it changed."""
        if (ready, reason) != (self.condition.ready, self.condition.reason):
            self.condition.ready, self.condition.reason = ready, reason
            self._log.info("scheduler.condition", ready=ready, reason=reason)
            self.broadcast()

    def broadcast(self) -> None:
        """Tells everybody the status; who cannot be told is gone."""
        status = self._status()
        for peer in self._table.peers():
            self._send(peer, status)

    def deliver(self, sequence: int, deliveries: Iterable[Delivery]) -> None:
        """One message a frontend for a completed round."""
        batches: dict[int, list[Delta]] = {}
        for delivery in deliveries:
            batches.setdefault(delivery.request.key.frontend, []).append(delivery.delta)
        for frontend, deltas in batches.items():
            message = Tokens(instance=self._instance, sequence=sequence, deltas=tuple(deltas))
            self._send_to(frontend, message)

    def report(self) -> None:
        """Tells frontends of requests that failed, and logs preemptions."""
        while self._roster.failures:
            failure = self._roster.failures.pop(0)
            self._failed(failure.request.key, failure.error)
        while self._roster.preempted:
            self._log.warning("request.preempted", request=self._roster.preempted.pop(0).key.request)

    def _take(self, peer: bytes, message: FromFrontend, now: float) -> None:
        if isinstance(message, FrontendHello):
            self._greet(peer, message.instance)
            return
        if self._table.instance_of(peer) != message.instance:
            return  # a predecessor's, or of somebody who never said Hello
        match message:
            case Submit():
                self._submit(message, now)
            case Ack():
                for safe in message.safe:
                    request = self._acknowledged(message.instance, safe.request, safe.epoch)
                    if request is not None:
                        self._acknowledgements.advance(request, safe.upto)
            case StoppedAt():
                request = self._acknowledged(message.instance, message.request, message.epoch)
                if request is not None:
                    over = bool(request.finish)
                    self._acknowledgements.stopped(request, message.visible)
                    if not over:
                        self._timing.finished(request, now)
                        self._progress.finished(request, "stop", request.acknowledged, now)
            case Cancel():
                request = self._roster.requests.get(RequestKey(message.instance, message.request))
                if request is not None:
                    self._cancel(request, "cancelled by the frontend")
            case FrontendPing():
                self._send(peer, self._status())

    def _acknowledged(self, frontend: int, request: str, epoch: int) -> Request | None:
        """The request, if the acknowledgement is of this scheduler's time. An older epoch of the request will do."""
        if epoch >> 32 != self._incarnation:
            return None
        return self._roster.requests.get(RequestKey(frontend, request))

    def _greet(self, peer: bytes, instance: int) -> None:
        for ended in self._table.greet(peer, instance):
            self._cancel_all(ended)
        self._log.info("frontend.connected", frontend=instance)
        self._send(peer, Welcome(instance=self._instance, manifest_digest=self._digest))
        if self._table.instance_of(peer) == instance:
            self._send(peer, self._status())

    def _submit(self, message: Submit, now: float) -> None:
        key = RequestKey(message.instance, message.request)
        self._tallies.submitted += 1
        try:
            if self.condition.draining:
                raise Unavailable("the server is shutting down")
            request = self._roster.submit(message.instance, message, now)
        except RequestError as error:
            self._failed(key, error)
            return
        self._log.info(
            "request.received",
            request=message.request,
            prompt_tokens=request.prompt_length,
            max_tokens=message.max_tokens,
            waiting=len(self._roster.waiting),
        )

    def _cancel(self, request: Request, reason: str) -> bool:
        """True if the request was not over, and nobody had cancelled it."""
        over = request.phase is Phase.FINISHED or request.finish
        running = not over and not (request.phase is Phase.STOPPING and request.leaving is Leaving.FORGET)
        if running:
            self._tallies.finished["cancelled"] += 1
            self._log.info("request.cancelled", request=request.key.request, reason=reason)
        self._roster.stop(request, Leaving.FORGET)
        return running

    def _cancel_all(self, frontend: int) -> int:
        """Ends a frontend's requests, and returns how many were running or waiting."""
        own = [r for r in self._roster.requests.values() if r.key.frontend == frontend]
        return sum(self._cancel(request, "the frontend is gone") for request in own)

    def _failed(self, key: RequestKey, error: RequestError) -> None:
        self._tallies.failed[error.code] += 1
        self._log.warning("request.failed", request=key.request, code=error.code, message=str(error))
        message = Failed(
            instance=self._instance, request=key.request, code=error.code, message=str(error), param=error.param
        )
        self._send_to(key.frontend, message)

    def _send_to(self, frontend: int, message: Message) -> None:
        peer = self._table.peer_of(frontend)
        if peer is not None:
            self._send(peer, message)

    def _send(self, peer: bytes, message: Message) -> None:
        try:
            self._server.send(peer, message)
        except Unroutable as error:
            instance = self._table.instance_of(peer)
            if instance is not None:
                self._table.forget(instance)
                lost = self._cancel_all(instance)
                if lost:
                    self._log.warning("frontend.lost", frontend=instance, requests=lost, reason=str(error))
                else:  # as one that has drained leaves
                    self._log.info("frontend.left", frontend=instance, reason=str(error))

    def _status(self) -> Status:
        return Status(
            instance=self._instance,
            ready=self.condition.ready,
            reason=self.condition.reason,
            running=self._roster.running,
            waiting=len(self._roster.waiting),
            free_pages=self._roster.prefixes.available,
        )
