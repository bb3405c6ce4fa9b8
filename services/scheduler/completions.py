"""What a completed round changes: tokens of its requests, their endings, the policy's knowledge. Pure.

Every queued round of a request comes through here exactly once, also when the request is over meanwhile: what it holds
on the device is kept until then.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from services.scheduler.controller import LaneSpend
from services.scheduler.records import Record, Records
from services.scheduler.requests import Leaving, Phase, Request
from services.scheduler.roster import Roster
from services.scheduler.rounds import DRAWS, LanePlan, Plan
from services.scheduler.survival import Outcome
from services.scheduler.tallies import Tallies
from shared.errors import RoundFailed, StaleRecord
from shared.frames import Fault, Source, Status
from shared.messages.common import DraftCounts
from shared.messages.frontend import Delta, Finish

_EXPLAINED = {
    Fault.ROW_SERVER: "the row server that this request's round waited for died or did not answer; a new one is started"
}
_OF_STATE = Fault.NOT_FINITE | Fault.WRONG_PREFIX | Fault.UNEXPECTED_PLAN
"""Faults that cast doubt on a request's state. A dead row server or a wrong epoch says nothing about it."""
FINISHES: dict[Status, Finish] = {Status.RUNNING: "", Status.ENDED: "stop", Status.LENGTH: "length"}


@dataclass(frozen=True, slots=True)
class Delivery:
    """Tokens for the frontend of a request, and the record that they came in."""

    request: Request
    delta: Delta
    record: Record


class Completions:
    """Applies rounds in the order in which they were queued."""

    def __init__(self, roster: Roster, tallies: Tallies) -> None:
        self._roster = roster
        self._tallies = tallies

    def apply(self, plan: Plan, records: Records | None, device_ns: int) -> list[Delivery]:
        """`records` is None when the frame was not current: the requests then stay where the host knows them."""
        deliveries: list[Delivery] = []
        spends: list[LaneSpend] = []
        for lane in plan.lanes:
            lane.request.emissions -= 1
            lane.request.may_emit -= lane.ceiling
            self._take(lane.request, lane, records, deliveries, spends)
        if plan.chunk is not None:
            request = plan.chunk.request
            if plan.chunk.final == DRAWS:
                request.emissions -= 1
                request.may_emit -= 1
            self._take(request, None, records, deliveries, spends)
        if plan.resumed is not None:
            plan.resumed.emissions -= 1
            plan.resumed.may_emit -= 1
        restored = None if plan.restore is None else plan.restore.request
        for other in (plan.admitted, restored, plan.resumed):
            if other is not None:
                self._take(other, None, records, deliveries, spends)
        if spends and plan.chunk is None:
            self._roster.policy.completed(plan.graph.batch, plan.graph.tokens, spends, device_ns)
        return deliveries

    def _take(
        self,
        request: Request,
        lane: LanePlan | None,
        records: Records | None,
        deliveries: list[Delivery],
        spends: list[LaneSpend],
    ) -> None:
        request.queued -= 1
        over = request.phase is Phase.STOPPING and request.leaving is not Leaving.REQUEUE
        record = None if over or records is None else self._current(request, records)
        if records is None or (record is None and not over):
            self._tallies.stale_records += 1
        if record is not None and records is not None and self._sound(request, record):
            self._roster.prefixes.advanced(request, record.consumed)
            if record.tokens:
                deliveries.append(self._deliver(request, lane, record, records))
            if lane is not None and record.tokens:
                self._tallies.note_lane(record.width)
                spends.append(LaneSpend(request.drafting, lane.ceiling, record.width, len(record.tokens)))
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

    def _deliver(self, request: Request, lane: LanePlan | None, record: Record, records: Records) -> Delivery:
        start, count = request.generated, len(record.tokens)
        request.visible_output(start, start + count)[:] = record.tokens
        request.generated += count
        if start == 0:
            self._tallies.prompt_tokens += request.prompt_length
        if request.copies is not None:
            request.copies.advance(request.known)
        if lane is not None:
            self._note_drafts(request, lane, record)
        request.finish = FINISHES[record.status]
        alternatives = request.submit.sampling.logprobs
        delta = Delta(
            request=request.key.request,
            epoch=request.epoch,
            start=start,
            tokens=record.tokens,
            sources=sources_of(record),
            logprobs=records.logprobs(request.slot, count, alternatives) if alternatives >= 0 else (),
            finish=request.finish,
            cached_tokens=request.cached or 0,
            counts=request.counts,
        )
        if request.finish:
            self._tallies.finished[request.finish] += 1
            self._roster.stop(request, Leaving.SETTLE)
        return Delivery(request, delta, record)

    def _note_drafts(self, request: Request, lane: LanePlan, record: Record) -> None:
        copies = _copies_offered(lane, record) if record.offered else 0
        if record.offered:
            request.counts = _counted(request.counts, record, copies)
        planned = record.offered or lane.drafts
        if planned:
            cut = record.status is not Status.RUNNING and record.accepted == len(record.tokens)
            outcome = Outcome(
                lane.kind, planned, record.accepted, cut, record.offered, copies, record.copied, record.sources
            )
            request.outcomes.append((request.generated, outcome))


def sources_of(record: Record) -> tuple[int, ...]:
    """Per token where its draft came from: copies first, learned ones after them, the sampled token last."""
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
