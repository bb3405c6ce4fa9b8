"""The loop of the scheduler process: poller, clock and signals. It decides nothing that a policy module decides.

Order matters for the device: completed rounds are read and the next ones queued before frontends are told, and before
their messages are taken.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog
import zmq

from services.scheduler.config import SchedulerConfig
from services.scheduler.device_side import DeviceSide
from services.scheduler.frontend_side import FrontendSide
from services.scheduler.opening import Opened
from services.scheduler.progress import Progress
from services.scheduler.tallies import Gauges, Tallies
from services.scheduler.timing import Timing
from shared import logs
from shared.channel import RunDirectory, Server
from shared.errors import Unavailable
from shared.messages.scheduler import FROM_FRONTEND, FROM_WORKER, FromFrontend, FromWorker
from shared.pulse import PULSE

TICK_S = 0.1
HEARD = 8
"""Messages of frontends that a turn takes beyond one for each request that it told of, however short rounds are."""
TURNING_S = 0.003
"""Longest that the loop turns without sleep: two short rounds. docs/operations.md says what that costs."""
STATUS_S = 1.0
LAST_WORDS_S = 0.25
"""How long sockets stay open after the last message: a client drops what it has not read when its connection ends."""
PROBE_S = 0.3
"""After a lost connection frontends are probed for so long, since the loss is told before the peer is forgotten."""


class Loop:
    """`run` blocks until `stop` was called and all requests are over, or the drain limit has passed."""

    def __init__(
        self,
        config: SchedulerConfig,
        opened: Opened,
        instance: int,
        tallies: Tallies,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._roster = opened.roster
        self._slots = opened.slots
        self._clock = clock
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        run = RunDirectory(config.run_dir).ensure()
        self._frontend_server: Server[FromFrontend] = Server(self._context, run.frontends, FROM_FRONTEND)
        self._worker_server: Server[FromWorker] = Server(self._context, run.workers, FROM_WORKER)
        self._timing = Timing(tallies)
        self._progress = Progress()
        self._frontends = FrontendSide(
            self._frontend_server,
            opened.roster,
            tallies,
            self._timing,
            self._progress,
            instance,
            opened.incarnation,
            opened.digest,
        )
        self._device = DeviceSide(self._worker_server, opened, tallies, instance)
        self._stops = 0
        self._deadline: float | None = None
        self._status_due = 0.0
        self._probe_until = 0.0
        self._log = structlog.get_logger()

    def stop(self) -> None:
        """Drain and end; the second time, at once. Safe in a signal handler and from another thread."""
        self._stops += 1

    def gauges(self) -> Gauges:
        """The state for a scrape. Safe from another thread: what it walks through is copied in one step first."""
        roster, history, prefixes = self._roster, self._roster.history, self._roster.prefixes
        return Gauges(
            running=roster.running,
            waiting=len(roster.waiting),
            slots=self._slots,
            queue_limit=roster.limits.queue,
            pages=roster.pool.total,
            pages_free=prefixes.available,
            prefix_queries=prefixes.queries,
            prefix_hits=prefixes.hits,
            prefix_pages=prefixes.cache.pages,
            prefix_rows=prefixes.cache.rows,
            history=0 if history is None else len(history),
            history_capacity=0 if history is None else history.capacity,
            unacknowledged=sum(max(r.generated - r.acknowledged, 0) for r in roster.requests.copy().values()),
            outstanding=len(self._device.queued),
            frontends=self._frontends.connected,
            preemptions=roster.preemptions,
            refused=self._frontend_server.refused.count + self._worker_server.refused.count,
            narrow={reason.value: count for reason, count in self._device.narrow.items()},
        )

    def unready(self) -> str:
        """Why no request can run now, as frontends are told; empty if they can."""
        condition = self._frontends.condition
        return "" if condition.ready else condition.reason or "no worker is attached"

    def run(self) -> int:
        """The exit code."""
        poller = zmq.Poller()
        for server in (self._worker_server, self._frontend_server):
            poller.register(server.socket, zmq.POLLIN)
            poller.register(server.monitor, zmq.POLLIN)
        self._log.info("scheduler.started")
        more = False
        try:
            while not self._over():
                if not more and not self._turned():
                    poller.poll(round(TICK_S * 1000))
                more = self._step()
        finally:
            self._close()
        self._log.info("scheduler.stopped")
        return 0

    def _turned(self) -> bool:
        """Whether a message came while this loop turned without sleep, which it does only beside short rounds."""
        until = self._clock() + TURNING_S
        while self._device.hurried and self._clock() < until:
            if self._device.waiting or self._frontends.waiting:
                return True
            logs.idle()
        return False

    def _step(self) -> bool:
        """One turn; True if messages may be left."""
        now = self._clock()
        PULSE.beat(now)
        rounds = self._device.receive(now)
        self._device.pump()
        for completed in rounds:
            self._frontends.deliver(completed.sequence, completed.deliveries)
        self._timing.admissions(self._device.admitted, now)
        self._timing.rounds(rounds, now)
        self._progress.admissions(self._device.admitted, now)
        self._progress.rounds(rounds, now)
        told = sum(len(completed.deliveries) for completed in rounds)
        more = self._frontends.receive(now, told + HEARD, lambda: self._device.waiting)
        self._device.pump()
        self._timing.admissions(self._device.admitted, now)
        self._progress.admissions(self._device.admitted, now)
        self._watch(now)
        self._frontends.report()
        return more

    def _watch(self, now: float) -> None:
        self._device.watch(now, self._config.worker_timeout, bool(self._stops))
        if self._stops and not self._frontends.condition.draining:
            self._frontends.condition.draining = True
            self._log.info("scheduler.draining", running=self._roster.running, waiting=len(self._roster.waiting))
        if self._frontends.condition.draining:
            self._frontends.announce(False, "draining")
        else:
            self._frontends.announce(self._device.accepting, self._device.reason)
        if self._frontend_server.losses():
            self._probe_until = now + PROBE_S
        if now < self._probe_until or now >= self._status_due:
            self._status_due = now + STATUS_S
            self._frontends.broadcast()

    def _over(self) -> bool:
        if not self._stops:
            return False
        now = self._clock()
        if self._deadline is None:
            self._deadline = now + self._config.drain_timeout
        if not self._roster.active and not self._roster.waiting:
            return self._frontends.condition.draining
        if now < self._deadline and self._stops == 1:
            return False
        for request in (*self._roster.waiting, *self._roster.active):
            self._roster.fail(request, Unavailable("the server is shutting down"))
        self._frontends.report()
        return True

    def _close(self) -> None:
        self._device.close()
        if self._frontends.connected:
            time.sleep(LAST_WORDS_S)
        self._frontend_server.close()
        self._worker_server.close()
        self._context.term()
