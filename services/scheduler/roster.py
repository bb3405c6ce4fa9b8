"""Every request of this scheduler and what it holds: queue, slots, pages, ring. Pure; one instance a process.

Moves requests between phases. Resources of a request go back only when no queued round refers to it, because the device
may still read and write them (architecture.md, section 3).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from services.scheduler.admission import Limits, check
from services.scheduler.controller import WidthPolicy
from services.scheduler.decoded_history import DecodedHistory
from services.scheduler.pages import NOBODY, PagePool, pages_for
from services.scheduler.prefixes import Prefixes
from services.scheduler.prompt_copies import PromptCopies
from services.scheduler.requests import NO_SLOT, Leaving, Phase, Request, RequestKey
from shared.errors import InvalidRequest, Overloaded, RequestError, StateLost
from shared.frames import ROW_TOKENS
from shared.messages.scheduler import Submit

UNSETTLED = 1024
"""Finished requests remembered for their last acknowledgement; beyond it the oldest is forgotten."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A request that ended with an error; its frontend is told."""

    request: Request
    error: RequestError


class Roster:
    """`history` is None when ring copies are off, `prompt_copies` likewise for those from the own context."""

    def __init__(
        self,
        limits: Limits,
        policy: WidthPolicy,
        history: DecodedHistory | None,
        prompt_copies: bool,
        incarnation: int,
        prefixes: Prefixes,
    ) -> None:
        self.limits = limits
        self.policy = policy
        self.history = history
        self.prefixes = prefixes
        self.requests: dict[RequestKey, Request] = {}
        self.waiting: deque[Request] = deque()
        self.active: list[Request] = []
        """Requests that hold a slot, in the order of their admission."""
        self.failures: list[Failure] = []
        """What the loop must tell frontends; it empties the list."""
        self.preempted: list[Request] = []
        """Preemptions to log; the loop empties the list."""
        self.preemptions = 0
        self.closed = False
        """Whether nobody is admitted, because the worker is about to go. Another one opens it again."""
        self.pool = PagePool(limits.pages)
        self.prefixes.attach(self.pool, 0)
        self._slots: list[int] = []
        self._blocked: tuple[int, int, int] | None = None
        """What the head of the queue waited for when it found too few pages: itself, pages to be had, running ones."""
        self._prompt_copies = prompt_copies
        self._incarnation = incarnation
        self._number = 0
        self._epochs = 0

    @property
    def running(self) -> int:
        return len(self.active)

    def attach(self, slots: int, pages: int, rows: int) -> None:
        """A worker with empty slots and snapshot rows is there. Requests that it can never hold fail."""
        self.closed = False
        self.pool = PagePool(pages)
        self.prefixes.attach(self.pool, rows)
        self._blocked = None
        self._slots = list(range(slots))[::-1]
        for request in [r for r in self.waiting if pages_for(r.limit + 1) > pages]:
            self.fail(request, InvalidRequest("the worker that is there now has too few pages for this request"))

    def detach(self, reason: str) -> None:
        """The worker is gone: each request with state on it fails, queued ones wait on."""
        for request in tuple(self.active):
            live = request.phase in (Phase.PREFILLING, Phase.RUNNING) or request.leaving is Leaving.REQUEUE
            request.queued = 0
            if live:
                self.failures.append(Failure(request, StateLost(reason)))
                request.leaving = Leaving.FORGET
            self._release(request)
        self._slots = []
        self.prefixes.detach()

    def submit(self, frontend: int, message: Submit, now: float) -> Request:
        """Queues a request. Raises `InvalidRequest`, `ContextOverflow` or `Overloaded`."""
        key = RequestKey(frontend, message.request)
        if key in self.requests:
            raise InvalidRequest("this request id is in use", param="request_id")
        check(message, self.limits)
        if len(self.waiting) >= self.limits.queue + len(self._slots):
            # Free slots do not count as queue: requests that start at once never meet the bound.
            raise Overloaded(f"{len(self.waiting)} requests wait already")
        self._number += 1
        tokens = np.zeros(len(message.prompt) + message.max_tokens, dtype=np.int32)
        tokens[: len(message.prompt)] = message.prompt
        request = Request(
            key=key,
            submit=message,
            number=self._number,
            arrived=now,
            tokens=tokens,
            drafting=self.policy.opened(),
            table=np.full(self.limits.table_pages, NOBODY, dtype=np.int32),
            copies=PromptCopies(tokens) if self._prompt_copies else None,
        )
        self.requests[key] = request
        self.waiting.append(request)
        return request

    def admit(self) -> Request | None:
        """Gives the head of the queue a slot and pages for its prefill and first round; nobody overtakes it."""
        if self.closed or not self.waiting or not self._slots:
            return None
        request = self.waiting[0]
        blocked = (request.number, self.prefixes.available, len(self.active))
        if blocked == self._blocked:
            return None
        pages = self._placed(request)
        if pages is None:
            self._blocked = blocked
            return None
        self.waiting.popleft()
        self._epochs += 1
        request.pages = pages
        request.table[: len(pages)] = pages
        request.slot = self._slots.pop()
        request.epoch = self._incarnation << 32 | self._epochs
        request.prefilled = request.share.hit
        request.phase = Phase.PREFILLING
        self.prefixes.admitted(request)
        self.active.append(request)
        return request

    def _placed(self, request: Request) -> list[int] | None:
        """Pages for a prefill and the first round, those of a cached prefix first; None if there are too few."""
        shared = self.prefixes.open(request)
        extent = min(request.prefill_length + ROW_TOKENS, request.limit)
        count = pages_for(extent) - len(shared)
        # With fewer to spare those who run could not grow, and would preempt it at once.
        if self._room(count + len(self.active)):
            own = self.pool.place(request.number, count, pages_for(request.limit) - len(shared))
            if own is not None:
                return [*shared, *own]
        self.prefixes.close(request)
        return None

    def reserve(self, request: Request, extent: int, preempt: bool) -> bool:
        """Pages for positions below `extent`, perhaps by preempting the latest admitted. False: not in this round."""
        count = pages_for(extent)
        held = len(request.pages)
        if count <= held:
            return True
        while not self._grow(request, count):
            if not preempt:
                return False
            live = [r for r in self.active if r.phase in (Phase.PREFILLING, Phase.RUNNING)]
            draining = len(live) < len(self.active)
            if draining or live[-1] is live[0]:
                return False  # pages are on their way
            self._preempt(live[-1])
            if request.phase is not Phase.RUNNING:
                return False
        request.table[held:count] = request.pages[held:]
        return True

    def _grow(self, request: Request, count: int) -> bool:
        return self._room(count - len(request.pages)) and self.pool.grow(request.number, request.pages, count)

    def _room(self, count: int) -> bool:
        """What the prefix cache holds for nobody goes first, then what requests hold although the cache has it."""
        if self.prefixes.room(count):
            return True
        folded = [request for request in self.active if self.prefixes.fold(request)]
        return bool(folded) and self.prefixes.room(count)

    def stop(self, request: Request, leaving: Leaving) -> None:
        """No further round for it; what it holds goes back when the queued ones are over."""
        if request.phase is Phase.WAITING:
            self.waiting.remove(request)
            self._close(request, leaving)
        elif request.phase is Phase.FINISHED:
            if leaving is Leaving.FORGET:
                self._close(request, leaving)
        else:
            request.phase, request.leaving = Phase.STOPPING, leaving
            self.drained(request)

    def fail(self, request: Request, error: RequestError) -> None:
        """Ends it with an error that its frontend is told, unless it is over already."""
        if request.phase is Phase.STOPPING and request.leaving is not Leaving.REQUEUE:
            return
        self.failures.append(Failure(request, error))
        self.stop(request, Leaving.FORGET)

    def drained(self, request: Request) -> None:
        """Releases a stopping request once no queued round refers to it."""
        if request.phase is Phase.STOPPING and request.queued == 0:
            self._release(request)

    def _preempt(self, request: Request) -> None:
        self.preemptions += 1
        self.preempted.append(request)
        self.stop(request, Leaving.REQUEUE)

    def _release(self, request: Request) -> None:
        settling = request.leaving is Leaving.SETTLE and request.acknowledged < request.generated
        self.prefixes.leave(request, settling)
        request.table.fill(NOBODY)
        self._slots.append(request.slot)
        request.slot = NO_SLOT
        request.emissions = request.may_emit = 0
        self.active.remove(request)
        if request.leaving is Leaving.REQUEUE:
            request.phase = Phase.WAITING
            self.waiting.appendleft(request)
        else:
            self._close(request, request.leaving)

    def _close(self, request: Request, leaving: Leaving) -> None:
        request.phase = Phase.FINISHED
        if leaving is Leaving.FORGET or request.acknowledged >= request.generated:
            self._forget(request)
            return
        finished = [r for r in self.requests.values() if r.phase is Phase.FINISHED]
        if len(finished) > UNSETTLED:
            self._forget(finished[0])

    def _forget(self, request: Request) -> None:
        self.requests.pop(request.key, None)
        self.prefixes.settle(request)
