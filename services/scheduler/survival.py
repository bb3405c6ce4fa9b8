"""How many drafts tend to survive: estimates of a draft prefix's survival, by source and length of its match. Pure.

A request starts from what all requests saw and moves to what it sees itself. Old observations fade, so that a depth
that looked bad is tried again. Learned from acknowledged rounds alone (architecture.md, section 3).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from services.scheduler.continuations import LONG, Continuation
from shared.frames import Source
from shared.manifest import MAXIMUM_DRAFTS

REQUEST_MEMORY = 0.85
SHARED_MEMORY = 0.98
WEIGHT = 3.0
"""How many observed rounds the belief from outside a request is worth."""


class Kind(IntEnum):
    """Kinds of drafts that survive differently."""

    LEARNED = 0
    HISTORY_LONG = 1
    HISTORY_SHORT = 2
    PROMPT_LONG = 3
    PROMPT_SHORT = 4


FIRST_BELIEF = {
    Kind.LEARNED: 0.7,
    Kind.HISTORY_LONG: 0.7,
    Kind.HISTORY_SHORT: 0.35,
    Kind.PROMPT_LONG: 0.7,
    Kind.PROMPT_SHORT: 0.35,
}
"""Chance that a first draft survives, before anything was measured."""
NEXT_BELIEF = 0.85
"""The same of each further draft, given that those before it survived."""


def kind_of(continuation: Continuation | None) -> Kind:
    """The kind of a lane's drafts; learned ones need no continuation."""
    if continuation is None:
        return Kind.LEARNED
    long = continuation.matched >= LONG
    if continuation.source == Source.HISTORY:
        return Kind.HISTORY_LONG if long else Kind.HISTORY_SHORT
    return Kind.PROMPT_LONG if long else Kind.PROMPT_SHORT


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one lane's drafts: of `offered` ones of a kind `accepted` survived.

    `offered` counts what the plan counted on where the device declined the copies. `cut` says that budget or end token,
    not a rejection, ended them.
    """

    kind: Kind
    offered: int
    accepted: int
    cut: bool = False
    verified: int = 0
    """Drafts that the device did verify."""
    copies: int = 0
    """Those among them that were copied; they come first."""
    copied: int = 0
    """Accepted ones among the copies."""
    source: Source = Source.NONE
    """The record's source bits."""


@dataclass(slots=True)
class _Counts:
    reached: list[float] = field(default_factory=lambda: [0.0] * MAXIMUM_DRAFTS)
    passed: list[float] = field(default_factory=lambda: [0.0] * MAXIMUM_DRAFTS)


class Survival:
    """Conditional survival by depth for each kind; `parent` is the belief that this one starts from."""

    def __init__(self, parent: Survival | None = None) -> None:
        self._parent = parent
        self._memory = SHARED_MEMORY if parent is None else REQUEST_MEMORY
        self._counts: dict[Kind, _Counts] = {}

    def observe(self, outcome: Outcome) -> None:
        """Learns one outcome, here and in the parent."""
        counts = self._counts.setdefault(outcome.kind, _Counts())
        for depth in range(MAXIMUM_DRAFTS):
            counts.reached[depth] *= self._memory
            counts.passed[depth] *= self._memory
        for depth in range(min(outcome.offered, MAXIMUM_DRAFTS)):
            if depth < outcome.accepted:
                counts.passed[depth] += 1.0
            elif outcome.cut:
                break
            counts.reached[depth] += 1.0
            if depth >= outcome.accepted:
                break
        if self._parent is not None:
            self._parent.observe(outcome)

    def rates(self, kind: Kind) -> list[float]:
        """Chance of each depth given those before it, depths 1 .. 7."""
        if self._parent is None:
            base = [FIRST_BELIEF[kind]] + [NEXT_BELIEF] * (MAXIMUM_DRAFTS - 1)
        else:
            base = self._parent.rates(kind)
        counts = self._counts.get(kind)
        if counts is None:
            return base
        return [
            (passed + WEIGHT * belief) / (reached + WEIGHT)
            for passed, reached, belief in zip(counts.passed, counts.reached, base, strict=True)
        ]

    def prefix(self, kind: Kind, count: int) -> list[float]:
        """Chance that the first 1, 2 .. `count` drafts all survive: never ascending."""
        found, chance = [], 1.0
        for rate in self.rates(kind)[:count]:
            chance *= rate
            found.append(chance)
        return found
