"""What the next round does: the plan, decided from the roster alone. Pure; no frame is touched here.

One call gives one round. At most two are queued; a plan never waits for the outcome of the one before, since pages are
reserved for whatever that may emit and copies are anchored at what the host knows (architecture.md, section 3).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import msgspec

from services.scheduler.continuations import SHORT, Continuation, better
from services.scheduler.controller import LaneOffer
from services.scheduler.graphs import Graph, GraphTable
from services.scheduler.prefix_cache import NO_ROW
from services.scheduler.prefix_share import Export
from services.scheduler.requests import Phase, Request
from services.scheduler.roster import Roster
from services.scheduler.survival import Kind, kind_of

MORE, DRAWS, REPLAYED = 0, 1, 2
"""Values of a plan's `chunk_final`."""


class Narrow(StrEnum):
    """Why a lane verifies a single row."""

    PREFILL = "prefill"
    """A chunk goes along."""
    NO_DRAFTS = "no_drafts"
    POLICY = "policy"
    """Drafts would not pay."""
    PAGES = "pages"


class LanePlan(msgspec.Struct, frozen=True):
    """A lane: `known` tokens anchor the continuation; the policy counted on `drafts`, at most `ceiling` - 1."""

    request: Request
    ceiling: int
    known: int
    continuation: Continuation | None = None
    drafts: int = 0
    kind: Kind = Kind.LEARNED
    export: Export | None = None
    """A boundary at which the device shall write a snapshot row."""


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """Tokens `start` .. `start + length - 1` of a request enter its state; `final` as in the plan frame.

    `row` is the snapshot row that the state behind them goes to, or -1. A `scored` one tells how likely the model found
    the tokens behind each of its own.
    """

    request: Request
    start: int
    length: int
    final: int
    row: int = NO_ROW
    scored: bool = False


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """A cached prefix of `total` tokens enters a slot from `row` (-1: it is there), and a stretch of it is noted."""

    request: Request
    row: int
    start: int
    length: int
    total: int


@dataclass(frozen=True, slots=True)
class Plan:
    """One round. An init round has `admitted` and nothing else, likewise `restore` and `resumed`."""

    graph: Graph
    lanes: tuple[LanePlan, ...] = ()
    chunk: ChunkPlan | None = None
    admitted: Request | None = None
    prefix: int = 0
    """Tokens that its pages hold already, if they alone continue a prefix."""
    restore: RestorePlan | None = None
    resumed: Request | None = None
    """It draws its first token behind a cached prompt."""

    @property
    def requests(self) -> tuple[Request, ...]:
        """All that this round refers to."""
        found = [lane.request for lane in self.lanes]
        if self.chunk is not None:
            found.append(self.chunk.request)
        if self.restore is not None:
            found.append(self.restore.request)
        found += [request for request in (self.admitted, self.resumed) if request is not None]
        return tuple(found)


class RoundPlanner:
    """A chunk goes beside decode at width one; after it, lanes that would draft get a round of their own."""

    def __init__(self, roster: Roster, graphs: GraphTable) -> None:
        self._roster = roster
        self._graphs = graphs
        self.narrow = dict.fromkeys(Narrow, 0)
        """Lanes planned at width one, by reason."""
        self._chunk_was_last = False

    def next(self) -> Plan | None:
        """The next round, its pages reserved and its requests marked as queued; None when there is nothing to do."""
        plan = self._decide()
        if plan is None:
            return None
        for request in plan.requests:
            request.queued += 1
        for lane in plan.lanes:
            lane.request.emissions += 1
            lane.request.may_emit += lane.ceiling
        if plan.chunk is not None:
            self._note_chunk(plan.chunk)
        if plan.restore is not None:
            self._roster.prefixes.restored(plan.restore.request, plan.restore.length)
        if plan.resumed is not None:
            self._note_prefilled(plan.resumed, draws=True)
        self._chunk_was_last = plan.chunk is not None or plan.restore is not None
        return plan

    def _note_chunk(self, chunk: ChunkPlan) -> None:
        request = chunk.request
        request.prefilled = chunk.start + chunk.length
        if request.copies is not None:
            request.copies.advance(request.prefilled)
        if chunk.final != MORE:
            self._note_prefilled(request, chunk.final == DRAWS)

    @staticmethod
    def _note_prefilled(request: Request, draws: bool) -> None:
        request.phase = Phase.RUNNING
        if request.copies is not None:
            request.copies.advance(request.known)
        if draws:
            request.emissions += 1
            request.may_emit += 1

    def _decide(self) -> Plan | None:
        admitted = self._roster.admit()
        if admitted is not None:
            hit = 0 if self._roster.prefixes.recurrent else admitted.share.hit
            return Plan(self._graphs.init, admitted=admitted, prefix=hit)
        filling = next((r for r in self._roster.active if r.phase is Phase.PREFILLING), None)
        decoding = [r for r in self._roster.active if r.phase is Phase.RUNNING and not r.exhausted]
        if filling is None:
            return self._generation(decoding)
        if filling.share.restoring or filling.prefilled == filling.prefill_length:
            return self._from_cache(filling, decoding)
        scored = self._graphs.scored if filling.unscored else None
        if not decoding:
            return self._prefill(filling) if scored is None else self._scored(filling, scored)
        mixed = self._graphs.mixed(len(decoding)) if scored is None else None
        if self._chunk_was_last:
            plan = self._generation(decoding, only_drafting=mixed is not None)
            if plan is not None:
                return plan
        if mixed is not None:
            return self._mixed(filling, decoding, mixed)
        if filling.phase is not Phase.PREFILLING:
            return None  # it gave its pages to a lane
        return self._prefill(filling) if scored is None else self._scored(filling, scored)

    def _from_cache(self, request: Request, decoding: list[Request]) -> Plan | None:
        """A cached prefix comes in, with others' rounds between the stretches of one that is noted piece by piece."""
        if self._chunk_was_last and decoding:
            plan = self._generation(decoding)
            if plan is not None:
                return plan
        share = request.share
        if request.phase is not Phase.PREFILLING:
            return None  # it gave its pages to a lane
        if not share.restoring:
            return Plan(self._graphs.state("resume"), resumed=request)
        row = share.source.row if share.pinned and share.source is not None else NO_ROW
        length = min(share.hit - share.noted, self._graphs.prefill(share.hit).tokens)
        return Plan(self._graphs.state("restore"), restore=RestorePlan(request, row, share.noted, length, share.hit))

    def _prefill(self, request: Request) -> Plan:
        graph = self._graphs.prefill(self._span(request))
        return Plan(graph, chunk=self._chunk(request, graph.tokens))

    def _scored(self, request: Request, graph: Graph) -> Plan:
        """A chunk that ends before the prompt's last token, whose row draws and has nothing to score."""
        left = min(self._span(request), request.unscored)
        return Plan(graph, chunk=self._chunk(request, min(left, graph.tokens), scored=True))

    @staticmethod
    def _span(request: Request) -> int:
        """Tokens to the end of the prefill, or to the boundary before it where a snapshot is wanted."""
        cut = request.share.cut_after(request.prefilled)
        return (request.prefill_length if cut is None else cut) - request.prefilled

    def _chunk(self, request: Request, capacity: int, scored: bool = False) -> ChunkPlan:
        """Pages for all of the prefill were reserved at admission."""
        start, length = request.prefilled, min(self._span(request), capacity)
        end = start + length
        final = MORE if end < request.prefill_length else REPLAYED if request.generated else DRAWS
        row = self._roster.prefixes.cut_row(request, end) if end in request.share.cuts else NO_ROW
        return ChunkPlan(request, start, length, final, row, scored)

    def _mixed(self, filling: Request, decoding: list[Request], graph: Graph) -> Plan | None:
        lanes = self._reserved([LanePlan(request, 1, request.known) for request in decoding])
        if filling.phase is not Phase.PREFILLING:
            # It was the latest admitted and gave its pages to a lane.
            return Plan(self._graphs.generation(len(lanes), 1), lanes) if lanes else None
        if not lanes:
            return self._prefill(filling)
        self.narrow[Narrow.PREFILL] += len(lanes)
        return Plan(graph, lanes, self._chunk(filling, graph.tokens))

    def _generation(self, decoding: list[Request], only_drafting: bool = False) -> Plan | None:
        if not decoding:
            return None
        widths = self._graphs.widths(len(decoding))
        if len(widths) == 1 and widths[0] == 1:
            return self._narrow(decoding, only_drafting)
        wanted = [self._offer(request, widths[-1] - 1) for request in decoding]
        offers = [LaneOffer(lane.request.drafting, lane.kind, lane.drafts) for lane in wanted]
        ceilings = self._roster.policy.choose(self._graphs.batch(len(decoding)), widths, offers)
        if only_drafting and max(ceilings) == 1:
            return None  # a mixed round gives these lanes the same and takes a chunk along
        for lane, rows in zip(wanted, ceilings, strict=True):
            if rows == 1:
                self.narrow[Narrow.POLICY if lane.drafts else Narrow.NO_DRAFTS] += 1
        lanes = self._reserved([self._capped(lane, rows) for lane, rows in zip(wanted, ceilings, strict=True)])
        if not lanes:
            return None
        return Plan(self._graphs.generation(len(lanes), max(lane.ceiling for lane in lanes)), lanes)

    def _narrow(self, decoding: list[Request], only_drafting: bool) -> Plan | None:
        """The round of those who draft nothing: there is nothing to choose."""
        if only_drafting:
            return None
        self.narrow[Narrow.NO_DRAFTS] += len(decoding)
        lanes = self._reserved([LanePlan(request, 1, request.known) for request in decoding])
        return Plan(self._graphs.generation(len(lanes), 1), lanes) if lanes else None

    def _offer(self, request: Request, most: int) -> LanePlan:
        """The lane with all drafts that could be verified; its ceiling is set later."""
        if most == 0:
            return LanePlan(request, 1, request.known)
        room = request.submit.max_tokens - request.generated - request.emissions - 1
        most = max(min(most, room), 0)
        found = self._continuation(request)
        kind = kind_of(found)
        if self._graphs.learned:
            return LanePlan(request, 1, request.known, found, most, kind)
        if found is None:
            return LanePlan(request, 1, request.known)
        # What the queued rounds may emit comes first out of the continuation.
        left = len(found.tokens) - request.may_emit
        return LanePlan(request, 1, request.known, found, max(min(most, left), 0), kind)

    def _continuation(self, request: Request) -> Continuation | None:
        prompt = request.copies.find(request.known) if request.copies is not None else None
        history = self._roster.history
        if history is None or (prompt is not None and prompt.matched > SHORT):
            return prompt
        return better(prompt, history.find(request.tokens[: request.known]))

    @staticmethod
    def _capped(lane: LanePlan, ceiling: int) -> LanePlan:
        if ceiling == 1:
            return LanePlan(lane.request, 1, lane.known)
        drafts = min(lane.drafts, ceiling - 1)
        return LanePlan(lane.request, ceiling, lane.known, lane.continuation, drafts, lane.kind)

    def _reserved(self, lanes: list[LanePlan]) -> tuple[LanePlan, ...]:
        """The lanes whose extent has pages, oldest first; short of pages a lane verifies one row, or waits."""
        found: list[LanePlan] = []
        for wide in lanes:
            lane, request = wide, wide.request
            if request.phase is not Phase.RUNNING:
                continue
            if lane.ceiling > 1 and not self._roster.reserve(request, request.extent(lane.ceiling), preempt=False):
                lane = self._capped(wide, 1)
                self.narrow[Narrow.PAGES] += 1
            if self._roster.reserve(request, request.extent(lane.ceiling), preempt=True):
                found.append(lane)
        running = [lane for lane in found if lane.request.phase is Phase.RUNNING]
        return tuple([self._exporting(lane) for lane in running] if self._roster.prefixes.recurrent else running)

    def _exporting(self, lane: LanePlan) -> LanePlan:
        export = self._roster.prefixes.rolling_export(lane.request, lane.ceiling)
        return lane if export is None else msgspec.structs.replace(lane, export=export)
