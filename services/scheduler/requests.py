"""A request and its phases, as the scheduler knows them. Pure data with the arithmetic of a queued round's extent.

What the host knows lags behind the device by the rounds that are queued; everything here says which of the two it
means. `known` counts the tokens whose ids the host has: prompt and delivered output.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from services.scheduler.controller import Drafting
from services.scheduler.decoded_history import Response
from services.scheduler.prefix_share import Share
from services.scheduler.prompt_copies import PromptCopies
from services.scheduler.survival import Outcome
from shared.messages.common import DraftCounts
from shared.messages.frontend import Finish
from shared.messages.scheduler import Submit

NO_SLOT = -1


class Phase(Enum):
    """WAITING holds nothing on the device; STOPPING waits for queued rounds that still refer to it."""

    WAITING = "waiting"
    PREFILLING = "prefilling"
    RUNNING = "running"
    STOPPING = "stopping"
    FINISHED = "finished"
    """Off the device, until the frontend has acknowledged the last tokens."""


class Leaving(Enum):
    """What follows when the last queued round of a stopping request is over."""

    SETTLE = "settle"
    FORGET = "forget"
    REQUEUE = "requeue"


class RequestKey(NamedTuple):
    """Request ids are unique within a frontend instance."""

    frontend: int
    request: str


@dataclass(slots=True, eq=False)
class Request:
    """`tokens` int32 [prompt + max_tokens] holds the ids that the host knows; `table` int32 [P] pages, then -1."""

    key: RequestKey
    submit: Submit
    number: int
    arrived: float
    tokens: NDArray[np.int32]
    drafting: Drafting
    table: NDArray[np.int32]
    copies: PromptCopies | None
    phase: Phase = Phase.WAITING
    leaving: Leaving = Leaving.SETTLE
    slot: int = NO_SLOT
    epoch: int = 0
    pages: list[int] = field(default_factory=list)
    """Those of the table: shared ones of the prefix cache first, then its own."""
    share: Share = field(default_factory=Share)
    cached: int | None = None
    """Tokens that its first admission found in the prefix cache."""
    generated: int = 0
    """Output tokens that the host knows."""
    prefilled: int = 0
    """Tokens that planned chunks cover."""
    queued: int = 0
    """Queued rounds that refer to this request."""
    emissions: int = 0
    """Queued rounds among them that emit at least one token, unless the request ends before."""
    may_emit: int = 0
    """Most tokens that the queued rounds emit together."""
    acknowledged: int = 0
    response: Response = field(default_factory=Response)
    outcomes: deque[tuple[int, Outcome]] = field(default_factory=deque)
    """Drafts not yet acknowledged, each with the output count that acknowledges it."""
    finish: Finish = ""
    admitted: float | None = None
    """When it was first given a slot, in seconds of the loop's clock."""
    first: float | None = None
    """When its first token came."""
    counts: DraftCounts = field(default_factory=DraftCounts)
    prompt_length: int = field(init=False)

    def __post_init__(self) -> None:
        self.prompt_length = len(self.submit.prompt)

    @property
    def known(self) -> int:
        return self.prompt_length + self.generated

    @property
    def prefill_length(self) -> int:
        """Tokens to ingest before decoding: the prompt, or after a preemption all but the pending token."""
        return self.known - 1 if self.generated else self.prompt_length

    @property
    def scores(self) -> bool:
        """Whether its prompt is to be scored, in this life or again: once a token is out, all scores are."""
        return self.submit.scored and not self.generated

    @property
    def unscored(self) -> int:
        """Prompt tokens ahead whose rows shall tell how likely their successors are."""
        return self.prompt_length - 1 - self.prefilled if self.scores else 0

    @property
    def limit(self) -> int:
        """Positions that this request can ever touch: its last token is never consumed."""
        return self.prompt_length + self.submit.max_tokens - 1

    @property
    def exhausted(self) -> bool:
        """Whether the queued rounds spend the budget even if each emits a single token."""
        return self.generated + self.emissions >= self.submit.max_tokens

    def extent(self, ceiling: int) -> int:
        """Positions that a further round of `ceiling` rows may touch, whatever the queued ones do."""
        return min(self.known - 1 + self.may_emit + ceiling, self.limit)

    def visible_output(self, start: int, end: int) -> NDArray[np.int32]:
        """Output tokens `start` .. `end` - 1."""
        return self.tokens[self.prompt_length + start : self.prompt_length + end]
