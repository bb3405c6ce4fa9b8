"""What a completed round changes: tokens of its requests, their endings, the policy's knowledge. Pure.

Every queued round of a request comes through here exactly once, also when the request is over meanwhile: what it holds
on the device is kept until then.
"""

from __future__ import annotations

import msgspec

from services.scheduler.controller import LaneSpend
from services.scheduler.records import Record, Records
from services.scheduler.requests import Leaving, Phase, Request
from services.scheduler.roster import Roster
from services.scheduler.rounds import DRAWS, ChunkPlan, LanePlan, Plan
from services.scheduler.survival import Outcome
from services.scheduler.tallies import Tallies
from shared.errors import RoundFailed, StaleRecord
from shared.frames import Fault, Source, Status
from shared.messages.common import DraftCounts, TokenLogprobs
from shared.messages.frontend import Delta, Finish

_EXPLAINED = {
    Fault.ROW_SERVER: "the row server that this request's round waited for died or did not answer; a new one is started"
}
_OF_STATE = Fault.NOT_FINITE | Fault.WRONG_PREFIX | Fault.UNEXPECTED_PLAN | Fault.MISSING_HISTORY
"""Faults that cast doubt on a request's state. A dead row server or a wrong epoch says nothing about it."""
FINISHES: dict[Status, Finish] = {Status.RUNNING: "", Status.ENDED: "stop", Status.LENGTH: "length"}


class Delivery(msgspec.Struct, frozen=True):
    """Tokens or a prompt's scores for the frontend of a request, and the record that they came in."""

    request: Request
    delta: Delta
    record: Record


class Taken(msgspec.Struct, frozen=True):
    """A record that was taken in, with what of its request the next plan may change."""

    request: Request
    lane: LanePlan | None
    record: Record
    epoch: int
    start: int
    finish: Finish
    logprobs: tuple[TokenLogprobs, ...]
    scored_from: int = 0
    """Above zero they are of the prompt's tokens from that position on, and there is no token of the answer."""


class Completions:
    """Applies rounds in the order in which they were queued, in two steps: the next round is planned in between."""

    def __init__(self, roster: Roster, tallies: Tallies) -> None:
        self._roster = roster
        self._tallies = tallies

    def take(self, plan: Plan, records: Records | None) -> list[Taken]:
        """What the next plan depends on: known tokens, endings, pages.

        `records` is None when the frame was not current: the requests then stay where the host knows them.
        """
        taken: list[Taken] = []
        for lane in plan.lanes:
            lane.request.emissions -= 1
            lane.request.may_emit -= lane.ceiling
            self._take(lane.request, lane, records, taken)
        if plan.chunk is not None:
            request = plan.chunk.request
            if plan.chunk.final == DRAWS:
                request.emissions -= 1
                request.may_emit -= 1
            self._take(request, None, records, taken, plan.chunk)
        if plan.resumed is not None:
            plan.resumed.emissions -= 1
            plan.resumed.may_emit -= 1
        restored = None if plan.restore is None else plan.restore.request
        for other in (plan.admitted, restored, plan.resumed):
            if other is not None:
                self._take(other, None, records, taken)
        return taken

    def tell(self, plan: Plan, taken: list[Taken], device_ns: int) -> list[Delivery]:
        """What frontends, tallies and the policy learn of it."""
        deliveries, spends = [], []
        for one in taken:
            request, lane, record = one.request, one.lane, one.record
            deliveries.append(self._delivered(one))
            if lane is not None:
                self._tallies.note_lane(record.width)
                spends.append(LaneSpend(request.drafting, lane.ceiling, record.width, len(record.tokens)))
        if spends and plan.chunk is None:
            self._roster.policy.completed(plan.graph.batch, plan.graph.tokens, spends, device_ns)
        return deliveries

    def _take(
        self,
        request: Request,
        lane: LanePlan | None,
        records: Records | None,
        taken: list[Taken],
        chunk: ChunkPlan | None = None,
    ) -> None:
        request.queued -= 1
        over = request.phase is Phase.STOPPING and request.leaving is not Leaving.REQUEUE
        record = None if over or records is None else self._current(request, records)
        if records is None or (record is None and not over):
            self._tallies.stale_records += 1
        if record is not None and records is not None and self._sound(request, record):
            self._roster.prefixes.advanced(request, record.consumed)
            if chunk is not None and chunk.scored:
                taken.append(_scored(chunk, record, records))
            if record.tokens:
                taken.append(self._enter(request, lane, record, records))
        if request.phase is Phase.STOPPING:
            self._roster.drained(request)

    def _current(self, request: Request, records: Records) -> Record | None:
        try:
            return records.of(request)
        except StaleRecord:
            return None

    def _sound(self, request: Request, record: Record) -> bool:
        """Whether the record continues what the host knows; otherwise the request fails."""
        if record.faults:
            self._tallies.faulty_records += 1
            names = record.faults.name or str(record.faults.value)
            if record.faults & _OF_STATE:
                self._roster.prefixes.distrust(request)
            refused = f"the device refused a round of this request: {names}"
            self._roster.fail(request, RoundFailed(_EXPLAINED.get(record.faults, refused)))
            return False
        expected = request.generated + len(record.tokens)
        # A replayed history tells its count only once its last chunk is in.
        if record.generated != expected and (record.tokens or record.generated > request.generated):
            self._roster.fail(request, RoundFailed("a record of this request was lost"))
            return False
        if expected > request.submit.max_tokens:
            self._roster.fail(request, RoundFailed("the device went beyond the output budget"))
            return False
        return True

    def _enter(self, request: Request, lane: LanePlan | None, record: Record, records: Records) -> Taken:
        """The record's tokens are known from now on."""
        start, count = request.generated, len(record.tokens)
        if count == 1:
            request.tokens[request.prompt_length + start] = record.tokens[0]
        else:
            request.visible_output(start, start + count)[:] = record.tokens
        request.generated += count
        if request.copies is not None:
            request.copies.advance(request.known)
        request.finish = FINISHES[record.status]
        asked = request.submit.sampling.logprobs
        # Copied now: the next round but one is written over them.
        logprobs = records.logprobs(request.slot, count, asked) if asked >= 0 else ()
        taken = Taken(request, lane, record, request.epoch, start, request.finish, logprobs)
        if request.finish:
            self._tallies.finished[request.finish] += 1
            self._roster.stop(request, Leaving.SETTLE)
        return taken

    def _delivered(self, one: Taken) -> Delivery:
        request, record = one.request, one.record
        if one.scored_from:
            told = Delta(
                request=request.key.request,
                epoch=one.epoch,
                start=one.start,
                tokens=(),
                scores=one.logprobs,
                scored_from=one.scored_from,
            )
            return Delivery(request, told, record)
        if one.start == 0:
            self._tallies.prompt_tokens += request.prompt_length
        if one.lane is not None:
            self._note_drafts(one, one.lane)
        delta = Delta(
            request=request.key.request,
            epoch=one.epoch,
            start=one.start,
            tokens=record.tokens,
            sources=sources_of(record),
            logprobs=one.logprobs,
            finish=one.finish,
            cached_tokens=request.cached or 0,
            counts=request.counts,
        )
        return Delivery(request, delta, record)

    def _note_drafts(self, one: Taken, lane: LanePlan) -> None:
        request, record = one.request, one.record
        copies = _copies_offered(lane, record) if record.offered else 0
        if record.offered:
            request.counts = _counted(request.counts, record, copies)
        planned = record.offered or lane.drafts
        if planned:
            cut = record.status is not Status.RUNNING and record.accepted == len(record.tokens)
            outcome = Outcome(
                lane.kind, planned, record.accepted, cut, record.offered, copies, record.copied, record.sources
            )
            request.outcomes.append((one.start + len(record.tokens), outcome))


def _scored(chunk: ChunkPlan, record: Record, records: Records) -> Taken:
    """Row i of the chunk told of the token behind it. Copied now, as the tokens' are."""
    request = chunk.request
    scores = records.scores(chunk.length, request.submit.sampling.logprobs)
    return Taken(request, None, record, request.epoch, request.generated, "", scores, chunk.start + 1)


def sources_of(record: Record) -> tuple[int, ...]:
    """Per token where its draft came from: copies first, learned ones after them, the sampled token last."""
    if not record.accepted:
        return (0,) * len(record.tokens)
    copy = int(record.sources & ~Source.LEARNED)
    learned = record.accepted - record.copied
    sampled = len(record.tokens) - record.accepted
    return (copy,) * record.copied + (int(Source.LEARNED),) * learned + (0,) * sampled


def _copies_offered(lane: LanePlan, record: Record) -> int:
    """How many of the offered drafts were copied: all, none, or the slice that the device took before learned ones."""
    if not record.sources & Source.LEARNED:
        return record.offered
    if lane.continuation is None or not record.sources & ~Source.LEARNED:
        return 0
    consumed_before = record.consumed - len(record.tokens)
    left = lane.known + len(lane.continuation.tokens) - consumed_before - 1
    return max(0, min(record.offered, left))


def _counted(counts: DraftCounts, record: Record, copies: int) -> DraftCounts:
    history = bool(record.sources & Source.HISTORY)
    depths = tuple(count + (depth < record.accepted) for depth, count in enumerate(counts.accepted_by_depth))
    return msgspec.structs.replace(
        counts,
        rounds=counts.rounds + 1,
        offered_learned=counts.offered_learned + record.offered - copies,
        accepted_learned=counts.accepted_learned + record.accepted - record.copied,
        offered_history=counts.offered_history + (copies if history else 0),
        accepted_history=counts.accepted_history + (record.copied if history else 0),
        offered_prompt=counts.offered_prompt + (0 if history else copies),
        accepted_prompt=counts.accepted_prompt + (0 if history else record.copied),
        accepted_by_depth=depths,
    )
