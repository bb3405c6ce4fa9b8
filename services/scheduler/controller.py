"""How many rows each lane verifies: the count of drafts that buys the most expected tokens for the device's time. Pure.

Chat that copies nothing must never be slower than width one. So each request keeps a ledger, in width-one rounds, of
what its drafts cost and saved: it opens with a small allowance, earns its share of a hundredth of all rounds, and
drafts only while it is not in debt. The same credit funds exploration beyond the ordinary choice (mtp-design.md,
scheduling policy).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

from services.scheduler.costs import Price, RoundCosts
from services.scheduler.survival import Kind, Outcome, Survival

ALLOWANCE = 1.0
EARNED = 0.01
SAVED_AT_MOST = 8.0
"""Old gains fund no long run of losses."""
WORST = 10.0
"""Most that a round can cost its lanes, in width-one rounds: the first of its width may meet a pause of the machine."""
SECOND_LOOK = 50
"""Each so many drafting rounds one goes a row further, so that a width once measured badly is measured again."""


@dataclass(slots=True)
class Drafting:
    """What the controller remembers of one request."""

    survival: Survival
    balance: float = ALLOWANCE
    """Width-one rounds that drafts may still lose."""


@dataclass(frozen=True, slots=True)
class LaneOffer:
    """A lane of the round to come: `drafts` of `kind` could be verified."""

    drafting: Drafting
    kind: Kind
    drafts: int


@dataclass(frozen=True, slots=True)
class LaneSpend:
    """A lane of a completed round: rows it was allowed, rows it verified, tokens it emitted."""

    drafting: Drafting
    ceiling: int
    rows: int
    emitted: int


class WidthPolicy(Protocol):
    """Chooses ceilings, learns from rounds."""

    def opened(self) -> Drafting:
        """The record of a new request."""
        ...

    def choose(self, batch: int, widths: Sequence[int], offers: Sequence[LaneOffer]) -> list[int]:
        """Most rows that each lane may verify, 1 .. widths[-1]."""
        ...

    def completed(self, batch: int, width: int, lanes: Sequence[LaneSpend], nanoseconds: int) -> None:
        """A generation round is over."""
        ...

    def acknowledged(self, drafting: Drafting, outcome: Outcome) -> None:
        """A lane's drafts have become text that stands."""
        ...


class FixedWidth:
    """Every lane may verify the one width that is offered: `--no-mtp-adaptive-verification` and `--deterministic`."""

    def opened(self) -> Drafting:
        return Drafting(Survival())

    def choose(self, batch: int, widths: Sequence[int], offers: Sequence[LaneOffer]) -> list[int]:
        return [widths[-1]] * len(offers)

    def completed(self, batch: int, width: int, lanes: Sequence[LaneSpend], nanoseconds: int) -> None:
        pass

    def acknowledged(self, drafting: Drafting, outcome: Outcome) -> None:
        pass


@dataclass(slots=True)
class AdaptiveWidth:
    """Adapts among the captured widths."""

    costs: RoundCosts = field(default_factory=RoundCosts)
    _shared: Survival = field(default_factory=Survival)
    _turn: int = 0
    _drafted: int = 0

    def opened(self) -> Drafting:
        return Drafting(Survival(self._shared))

    def choose(self, batch: int, widths: Sequence[int], offers: Sequence[LaneOffer]) -> list[int]:
        ceilings = [1] * len(offers)
        if len(widths) == 1 or not self.costs.ready(batch) or not any(offer.drafts for offer in offers):
            return ceilings
        best = self._best(batch, widths, offers)
        if max(best) == 1:
            return self._explore(batch, widths, offers)
        self._drafted += 1
        if self._drafted % SECOND_LOOK == 0:
            most = widths[-1]
            return [min(rows + (rows > 1), offer.drafts + 1, most) for rows, offer in zip(best, offers, strict=True)]
        return best

    def completed(self, batch: int, width: int, lanes: Sequence[LaneSpend], nanoseconds: int) -> None:
        rows = sum(lane.rows for lane in lanes)
        self.costs.measure(batch, width, rows, nanoseconds)
        if not self.costs.ready(batch):
            return
        # A device with padded graphs spends the width also where lanes declined their copies; its clock says so.
        allowed = sum(lane.ceiling - 1 for lane in lanes)
        # What such rounds cost, not what this one took: a pause of the machine is nobody's debt.
        price = self.costs.price(batch, width, len(lanes))
        extra = min(max(price.at(rows) / price.base - 1.0, 0.0), WORST)
        for lane in lanes:
            spent = extra * (lane.ceiling - 1) / allowed if allowed else 0.0
            gained = (lane.emitted - 1) / len(lanes)
            balance = lane.drafting.balance + EARNED / len(lanes) + gained - spent
            lane.drafting.balance = min(balance, SAVED_AT_MOST)

    def acknowledged(self, drafting: Drafting, outcome: Outcome) -> None:
        drafting.survival.observe(outcome)

    def _best(self, batch: int, widths: Sequence[int], offers: Sequence[LaneOffer]) -> list[int]:
        """Rows are added in the order of their survival; the prefix of that order with the best rate wins."""
        lanes, most = len(offers), widths[-1] - 1
        steps = sorted(
            (
                (-chance, lane)
                for lane, offer in enumerate(offers)
                if offer.drafts and offer.drafting.balance >= 0.0
                for chance in offer.drafting.survival.prefix(offer.kind, min(offer.drafts, most))
            )
        )
        prices: dict[int, Price] = {}
        ceilings, tokens, top = [1] * lanes, float(lanes), 1
        best, rate = list(ceilings), tokens / self.costs.base(batch, lanes)
        for rows, (negative, lane) in enumerate(steps, start=lanes + 1):
            ceilings[lane] += 1
            tokens -= negative
            top = max(top, ceilings[lane])
            width = next(width for width in widths if width >= top)
            if width not in prices:
                prices[width] = self.costs.price(batch, width, lanes)
            found = tokens / prices[width].at(rows)
            if found > rate:
                best, rate = list(ceilings), found
        return best

    def _explore(self, batch: int, widths: Sequence[int], offers: Sequence[LaneOffer]) -> list[int]:
        """One lane, one of the wider widths in turn, if its credit pays for a total loss."""
        lanes = len(offers)
        ceilings = [1] * lanes
        richest = max((lane for lane in range(lanes) if offers[lane].drafts), key=lambda n: offers[n].drafting.balance)
        offer = offers[richest]
        # Up to the first that holds all drafts: of prepared widths that are not contiguous, it may hold more.
        reachable = [width for narrower, width in pairwise(widths) if narrower <= offer.drafts]
        if not reachable:
            return ceilings
        width = reachable[self._turn % len(reachable)]
        rows = min(width, offer.drafts + 1)
        price = self.costs.price(batch, width, lanes)
        if offer.drafting.balance >= price.at(lanes + rows - 1) / price.base - 1.0:
            self._turn += 1
            ceilings[richest] = rows
        return ceilings
