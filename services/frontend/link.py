"""The frontend's end of its channel to the scheduler, driven by the event loop: no thread and no polling loop.

ZeroMQ's descriptor tells edges only, and a send may swallow one, so every send is followed by a look at the socket.
A lost connection, a silent or a new scheduler fails at once what had its state there. A request without any token yet
waits for the next scheduler and is sent again, once. Messages of any other instance are ignored.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable

import structlog
import zmq

from services.frontend.flight import ClientGone, Flight
from shared.channel import Client
from shared.errors import ContractBreach, RoundFailed, StateLost, Unavailable, Unroutable, request_error
from shared.histogram import Histogram
from shared.messages.common import Message, new_instance
from shared.messages.frontend import FROM_SCHEDULER, Delta, Failed, FromScheduler, Status, Tokens, Welcome
from shared.messages.scheduler import Ack, Cancel, FrontendHello, FrontendPing, Safe, StoppedAt, Submit
from shared.metrics import LATENCY_BOUNDS, TOKEN_BOUNDS

TICK_S = 0.25
PING_AFTER_S = 1.5
OWN_GAP_S = 2.0
PATIENCE_S = 30.0
"""How long a request without any token waits for another scheduler."""
BURST = 64
"""Messages handled before other tasks get their turn."""

log = structlog.get_logger()


class SchedulerLink:
    """Owns the socket and the table of requests in flight. Every method runs on the event loop."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str, silence: float = 10.0) -> None:
        """`silence` is for how many seconds a scheduler may say nothing, not even a status that was asked for."""
        self.instance = new_instance()
        self.scheduler: int | None = None
        self.digest = ""
        self.status: Status | None = None
        self.status_at = 0.0
        self.flights: dict[str, Flight] = {}
        self.firsts, self.gaps = Histogram(LATENCY_BOUNDS), Histogram(TOKEN_BOUNDS)
        """Seconds from a flight's start to its first tokens, and between two rounds' tokens of one flight."""
        self._silence = silence
        self._unanswered: dict[str, Submit] = {}
        """Requests without any token that were sent but once: another scheduler can take them."""
        self._lost_at = self._heard_at = self._watched_at = 0.0
        self._client: Client[FromScheduler] = Client(context, address, FROM_SCHEDULER)
        self._loop = asyncio.get_running_loop()
        self._unsent: deque[Message] = deque()
        self._orphans: list[str] = []
        self._last_scheduler: int | None = None
        self._hello_due = False
        self._look_due = False
        self._pinged_at = 0.0
        for socket in (self._client.socket, self._client.monitor):
            self._loop.add_reader(socket.fileno(), self._look)

    @property
    def refused(self) -> int:
        """Messages from the scheduler that did not decode."""
        return self._client.refused.count

    async def tick(self) -> None:
        """Retries what could not be sent and asks for a status that is late; for ever, as a task of its own."""
        while True:
            await asyncio.sleep(TICK_S)
            self._look()
            self._watch(self._loop.time())

    def _watch(self, now: float) -> None:
        """Gives up a scheduler that is silent, and waiting for one that does not come."""
        if now - self._watched_at > OWN_GAP_S:
            self._heard_at = now  # this process stood still itself: what it was sent meanwhile may not be here yet
        self._watched_at = now
        if self.scheduler is None:
            if self._unanswered and now - self._lost_at > PATIENCE_S:
                self._forsake("no scheduler came back", tuple(self._unanswered))
        elif now - self._heard_at > self._silence:
            self._lost("the scheduler gave no sign of life")
            self._hello_due = True  # it will read this if it ever goes on
            self._look_soon()
        elif now - max(self.status_at, self._pinged_at) > PING_AFTER_S:
            self._pinged_at = now
            self._send(FrontendPing(instance=self.instance))

    def submit(self, flight: Flight, message: Submit) -> None:
        """Sends a request. Raises `Unavailable` when the scheduler is not there or does not read."""
        if self.scheduler is None:
            raise Unavailable("the scheduler is not connected")
        try:
            self._client.send(message)
        except Unroutable as error:
            raise Unavailable("the scheduler does not take requests") from error
        self.flights[flight.request] = flight
        self._unanswered[flight.request] = message
        self._look_soon()
        log.debug("request.submitted", request=flight.request, choice=message.choice)

    def release(self, flight: Flight) -> None:
        """The HTTP task is done with it: a request that still runs is cancelled."""
        if self._leave(flight.request) is not None:
            self._send(Cancel(instance=self.instance, request=flight.request))

    def _leave(self, request: str) -> Flight | None:
        """Removes a request from the tables."""
        self._unanswered.pop(request, None)
        return self.flights.pop(request, None)

    def close(self) -> None:
        """Stops listening and closes the socket."""
        for socket in (self._client.socket, self._client.monitor):
            self._loop.remove_reader(socket.fileno())
        self._client.close()

    def _send(self, message: Message) -> None:
        """Sends in order, later if the queue is full; what is unsent at a loss of the connection is moot."""
        self._unsent.append(message)
        self._flush()
        self._look_soon()

    def _flush(self) -> None:
        try:
            while self._unsent:
                self._client.send(self._unsent[0])
                self._unsent.popleft()
        except Unroutable:
            if self.scheduler is None:
                self._unsent.clear()

    def _look_soon(self) -> None:
        if not self._look_due:
            self._look_due = True
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        """Takes what waits: messages before events, since a lost peer's last words still count."""
        self._look_due = False
        for _ in range(BURST):
            message = self._client.receive()
            if message is None:
                break
            self._take(message)
        else:
            self._look_soon()
            return
        for connected in self._client.events():
            self._hello_due = connected
            if not connected:
                self._lost("the scheduler ended or its connection was lost")
        if self._hello_due:
            self._hello()
        self._flush()

    def _hello(self) -> None:
        """The connection's event may come before the socket can send; `tick` tries again."""
        try:
            self._client.send(FrontendHello(instance=self.instance))
        except Unroutable:
            return
        self._hello_due = False
        self._look_soon()

    def _lost(self, reason: str) -> None:
        if self.scheduler is not None:
            log.warning("scheduler.lost", reason=reason, in_flight=len(self.flights))
            self._lost_at = self._loop.time()
            self._orphans.extend(self.flights)
        self.scheduler, self.status = None, None
        self._unsent.clear()
        self._forsake(reason, [request for request in self.flights if request not in self._unanswered])

    def _forsake(self, reason: str, requests: Iterable[str]) -> None:
        """Fails requests whose state is lost."""
        for request in requests:
            flight = self._leave(request)
            if flight is not None:
                flight.fail(StateLost(f"{reason}; the request's state is lost"))

    def _take(self, message: FromScheduler) -> None:
        if message.instance == self.scheduler:
            self._heard_at = self._loop.time()
        match message:
            case Welcome():
                self._welcome(message)
            case _ if message.instance != self.scheduler:
                log.debug("message.ignored", kind=type(message).__name__)
            case Status():
                self.status, self.status_at = message, self._loop.time()
            case Tokens():
                safe = tuple(one for delta in message.deltas if (one := self._deliver(delta)) is not None)
                if safe:
                    self._send(Ack(instance=self.instance, safe=safe))
            case Failed():
                flight = self._leave(message.request)
                if flight is not None:
                    flight.fail(request_error(message.code, message.message, message.param))

    def _welcome(self, message: Welcome) -> None:
        if self.scheduler not in (None, message.instance):
            self._lost("another scheduler took over")
        lost = self.scheduler is None and self._last_scheduler is not None
        if lost and self._last_scheduler == message.instance:
            # It outlived the connection and may still run what was given up here, or have dropped what was not.
            for request in self._orphans:
                self._send(Cancel(instance=self.instance, request=request))
            self._forsake("the connection to the scheduler was lost", tuple(self._unanswered))
        elif lost and self.digest != message.manifest_digest:
            self._forsake("the next scheduler serves another core", tuple(self._unanswered))
        self._orphans.clear()
        self.scheduler = self._last_scheduler = message.instance
        self._heard_at = self._loop.time()
        self.digest = message.manifest_digest
        log.info("scheduler.connected", scheduler=message.instance)
        if lost:
            self._send_again()

    def _send_again(self) -> None:
        """What no token came for yet has lost nothing. Only once: a request may be what ends schedulers."""
        again, self._unanswered = self._unanswered, {}
        for request, message in again.items():
            log.info("request.sent_again", request=request)
            self._send(message)

    def _deliver(self, delta: Delta) -> Safe | None:
        """Hands tokens on; what stands of them."""
        flight = self.flights.get(delta.request)
        if flight is None:
            return None  # over here already: stopped, cancelled or given up
        if delta.tokens:  # scores alone are told again by another scheduler, and taken once
            self._unanswered.pop(delta.request, None)
        before, now = flight.last_token, self._loop.time()
        try:
            flight.deliver(delta, now)
        except ContractBreach as error:
            log.error("delta.refused", request=delta.request, reason=str(error))
            flight.fail(RoundFailed("the scheduler sent tokens that do not fit this request"))
            self.release(flight)
            return None
        if not delta.tokens:
            return None
        if before is None:
            self.firsts.observe(now - flight.started)
        else:
            self.gaps.observe(now - before)
        generation = flight.generation
        safe = None
        if generation.cut:
            stopped = StoppedAt(
                instance=self.instance, request=delta.request, epoch=delta.epoch, visible=generation.count
            )
            self._send(stopped)
        else:
            safe = Safe(request=delta.request, epoch=delta.epoch, upto=generation.count + generation.dropped)
        if generation.finish:
            self._leave(delta.request)
        if before is None:
            log.debug("request.first_token", request=delta.request, seconds=round(now - flight.started, 4))
        return safe

    def fail_all(self, message: str) -> None:
        """Ends everything in flight with 503: the drain limit has passed."""
        for flight in list(self.flights.values()):
            flight.fail(Unavailable(message))
            self.release(flight)

    def abandon(self, flight: Flight) -> None:
        """The client is gone: cancels at once, whatever the HTTP task is waiting for."""
        flight.fail(ClientGone())
        self.release(flight)
