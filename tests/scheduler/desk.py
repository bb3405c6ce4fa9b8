"""A scheduler's policies around a strict device, without sockets: rounds run and are reported when a test says so."""

from __future__ import annotations

from collections import deque
from typing import Any

from services.scheduler.acknowledgements import Acknowledgements
from services.scheduler.admission import Limits
from services.scheduler.completions import Completions
from services.scheduler.controller import WidthPolicy
from services.scheduler.decoded_history import DecodedHistory
from services.scheduler.frame_writer import write
from services.scheduler.graphs import GraphTable
from services.scheduler.pages import CACHE, pages_for
from services.scheduler.prefixes import Prefixes
from services.scheduler.records import Records
from services.scheduler.requests import Request, RequestKey
from services.scheduler.roster import Roster
from services.scheduler.rounds import Plan, RoundPlanner
from services.scheduler.tallies import Tallies
from shared.frames import FRAMES, completion_frame, completion_layout, plan_frame, plan_layout
from shared.manifest import PAGE_TOKENS, Manifest, largest_chunk
from shared.messages.common import Sampling
from shared.messages.scheduler import Submit
from tests.scheduler.device import NextToken, Slots

FRONTEND = 5


def submit(request: str, prompt: list[int], budget: int, ends: tuple[int, ...] = (), **law: Any) -> Submit:
    return Submit(
        instance=FRONTEND,
        request=request,
        prompt=tuple(prompt),
        sampling=Sampling(**law),
        max_tokens=budget,
        end_ids=ends,
    )


class Desk:
    """A scheduler's policies with a device whose rounds run, and are reported, when the test says so."""

    def __init__(
        self,
        core: Manifest,
        next_token: NextToken,
        policy: WidthPolicy,
        drafts: int | None = None,
        cache: bool = True,
    ) -> None:
        geometry = core.geometry
        limits = Limits(geometry.vocab_size, geometry.context_length, geometry.pages, geometry.pages_per_request, 1000)
        self.core, self.next_token = core, next_token
        self.prefixes = Prefixes(cache, core.continuation_row_bytes > 0)
        self.roster = Roster(limits, policy, DecodedHistory(64), True, 3, self.prefixes)
        self.tallies = Tallies()
        self.planner = RoundPlanner(self.roster, GraphTable(core, drafts))
        self.completions = Completions(self.roster, self.tallies)
        self.acknowledgements = Acknowledgements(self.roster, self.tallies)
        self.device = Slots(core, next_token)
        plans, outs = plan_layout(geometry, largest_chunk(core)), completion_layout(geometry)
        plan_bytes, out_bytes = memoryview(bytearray(2 * plans.nbytes)), memoryview(bytearray(2 * outs.nbytes))
        self.plans = [plan_frame(plans, plan_bytes, index) for index in range(FRAMES)]
        self.outs = [completion_frame(outs, out_bytes, index) for index in range(FRAMES)]
        self.sequence = self.replayed = 0
        self.queued: deque[tuple[int, Plan]] = deque()
        self.output: dict[str, list[int]] = {}
        self.finished: dict[str, str] = {}
        self.admitted: list[Request] = []
        self.cached: list[tuple[str, int]] = []
        """Each admission: the request, and how much of it the prefix cache had."""
        self.kinds: list[str] = []
        """Graphs of all rounds so far."""
        self.attach(geometry.snapshot_slots)

    def attach(self, rows: int) -> None:
        """A worker with nothing in it, and so many snapshot rows."""
        self.rows = rows
        self.device.reset()
        self.roster.attach(self.core.geometry.concurrency, self.core.geometry.pages, rows)

    def submit(self, message: Submit) -> None:
        self.roster.submit(FRONTEND, message, 0.0)

    def plan(self) -> bool:
        """Queues one round if two are not out; False if there was nothing to queue."""
        if len(self.queued) == FRAMES:
            return True
        plan = self.planner.next()
        if plan is None:
            return False
        if plan.admitted is not None:
            self.admitted.append(plan.admitted)
            self.cached.append((plan.admitted.key.request, plan.admitted.share.hit))
        self.kinds.append(plan.graph.kind)
        self.check_writes(plan)
        write(self.plans[self.sequence % FRAMES], self.sequence, plan)
        self.queued.append((self.sequence, plan))
        self.sequence += 1
        return True

    def replay(self) -> None:
        """The device runs the next queued round."""
        if self.replayed < self.sequence:
            index = self.replayed % FRAMES
            graph = self.core.graphs[int(self.plans[index].graph[0])]
            self.device.replay(graph, self.plans[index], self.outs[index], self.replayed)
            self.replayed += 1

    def complete(self) -> None:
        """The scheduler hears of the oldest round."""
        if self.queued and self.queued[0][0] < self.replayed:
            sequence, plan = self.queued.popleft()
            records = Records(self.outs[sequence % FRAMES], sequence)
            taken = self.completions.take(plan, records)
            for delivery in self.completions.tell(plan, taken, 1_000_000 * (1 + plan.graph.tokens // 4)):
                delta = delivery.delta
                got = self.output.setdefault(delta.request, [])
                assert delta.start == len(got)
                got.extend(delta.tokens)
                if delta.finish:
                    self.finished[delta.request] = delta.finish

    def acknowledge(self, request: str) -> None:
        found = self.roster.requests.get(RequestKey(FRONTEND, request))
        if found is not None:
            self.acknowledgements.advance(found, found.generated)

    def check(self) -> None:
        """Whatever a queued round refers to is held by its request, over its whole extent; nothing is held twice."""
        pool, cache = self.roster.pool, self.prefixes.cache
        for _, plan in self.queued:
            for request in plan.requests:
                assert request.queued > 0
                assert request in self.roster.active
                shared = set() if request.share.node is None else {node.page for node in request.share.node.path()}
                for page in request.pages:
                    assert pool.owner_of(page) == (CACHE if page in shared else request.number)
            for lane in plan.lanes:
                assert len(lane.request.pages) >= pages_for(lane.request.extent(0))
        holders = [request for request in self.roster.requests.values() if request.pages]
        own = [page for request in holders for page in pool.owned(request.number, request.pages)]
        assert len(own) == len(set(own)) == pool.total - pool.free - cache.pages
        assert 0 <= cache.idle <= cache.pages
        exports = [export.row for request in self.roster.requests.values() for export in request.share.exports]
        assert len(exports) == len(set(exports))
        assert len(exports) + cache.rows + self.prefixes.free_rows == self.rows
        slots = [request.slot for request in self.roster.active]
        assert len(slots) == len(set(slots)) <= self.core.geometry.concurrency

    def check_writes(self, plan: Plan) -> None:
        """Pages that a round may write to belong to its request alone."""
        written = [(lane.request, lane.request.known - (lane.request.generated > 0)) for lane in plan.lanes]
        written += [(plan.chunk.request, plan.chunk.start)] if plan.chunk is not None else []
        for request, first in written:
            pages = request.pages[first // PAGE_TOKENS :]
            assert self.roster.pool.owned(request.number, pages) == pages

    def drain(self, turns: int = 5_000, acknowledging: bool = False) -> None:
        """Runs until nothing is left to do."""
        for _ in range(turns):
            busy = self.plan() or bool(self.queued)
            self.plan()
            self.replay()
            self.complete()
            if acknowledging:
                for request in tuple(self.roster.requests.values()):
                    self.acknowledgements.advance(request, request.generated)
            self.check()
            if not busy:
                break
        assert not self.roster.active
        assert not self.roster.waiting

    def settle(self) -> None:
        """Acknowledges all that is over; then every page and row is free or the cache's alone."""
        for request in tuple(self.roster.requests.values()):
            self.acknowledgements.advance(request, request.generated)
            self.check()
        assert self.prefixes.available == self.roster.pool.total
        assert self.prefixes.free_rows + self.prefixes.cache.rows == self.rows
