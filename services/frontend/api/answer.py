"""What the answers of both endpoints share: counts over all choices, token sources, events. Pure; frontend process.

The shapes are OpenAI's, as structs that encode themselves: `chat_answer.py` and `text_answer.py`.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, TypeVar

import msgspec

from services.frontend.api.order import Order
from services.frontend.flight import Chunk, Flight
from services.frontend.generation import Detail
from services.frontend.usage import Metrics, Usage, acceptance, total, total_lengths, usage
from services.frontend.vocabulary import Vocabulary
from shared.frames import Source
from shared.messages.common import DraftCounts

LOWEST_LOGPROB = -9999.0
"""OpenAI's stand-in for minus infinity, which JSON does not have."""
DONE = b"data: [DONE]\n\n"

Origin = Literal["sampled", "learned", "history", "prompt"]
_ORIGINS: dict[int, Origin] = {Source.LEARNED: "learned", Source.HISTORY: "history", Source.PROMPT: "prompt"}


class TokenSource(msgspec.Struct):
    """One generated token: the text that it released, and whose draft it was."""

    text: str
    source: Origin


Sources = list[TokenSource] | msgspec.UnsetType
ChoiceT = TypeVar("ChoiceT", bound=msgspec.Struct)
"""A choice of a chunk, in the endpoint's shape."""
LogprobsT = TypeVar("LogprobsT", bound=msgspec.Struct)
"""Its log probabilities."""


def finite(logprob: float) -> float:
    """A log probability that JSON can carry."""
    return max(logprob, LOWEST_LOGPROB) if math.isfinite(logprob) else LOWEST_LOGPROB


def frame(payload: msgspec.Struct) -> bytes:
    """The event with this payload."""
    return b"data: " + msgspec.json.encode(payload) + b"\n\n"


def error_frame(payload: bytes) -> bytes:
    """The event that ends a stream with an error."""
    return b"data: " + payload + b"\n\n"


@dataclass(frozen=True, slots=True)
class Answer(ABC, Generic[ChoiceT, LogprobsT]):
    """Makes the messages of one HTTP request, whose choice i is `flights[i]`.

    `draft_tokens` is the most that a round drafts; 0 leaves `metrics` out.
    """

    prefix: ClassVar[str]
    """Of the answer's id, before the request's."""

    request: str
    model: str
    vocabulary: Vocabulary
    order: Order
    flights: tuple[Flight, ...]
    draft_tokens: int
    created: int = field(default_factory=lambda: int(time.time()))

    @abstractmethod
    def whole(self, outputs: Sequence[Chunk]) -> bytes:
        """The body of an answer that is not streamed; `outputs[i]` is all that choice i said."""

    @abstractmethod
    def opening(self) -> bytes:
        """What a stream starts with."""

    @abstractmethod
    def _chunk(
        self,
        choices: list[ChoiceT],
        usage: Usage | msgspec.UnsetType | None,
        metrics: Metrics | msgspec.UnsetType = msgspec.UNSET,
    ) -> msgspec.Struct:
        """The payload of an event."""

    @abstractmethod
    def _said(self, index: int, chunk: Chunk) -> ChoiceT:
        """What a chunk adds to choice `index`."""

    @abstractmethod
    def _ended(self, index: int) -> ChoiceT:
        """Why choice `index` ended, and nothing else."""

    @abstractmethod
    def _listed(self, details: Sequence[Detail]) -> LogprobsT:
        """Log probabilities of generated tokens, in order."""

    @property
    def id(self) -> str:
        """The answer's, in all its messages."""
        return f"{self.prefix}-{self.request}"

    def progress(self, index: int, chunk: Chunk) -> bytes:
        """The events of a chunk of choice `index`; after the last one its finish reason, in an event of its own.

        With log probabilities or sources the text may be empty.
        """
        events = b""
        if chunk.text or chunk.details:
            events = self.event(self._said(index, chunk))
        if chunk.last:
            events += self.event(self._ended(index))
        return events

    def closing(self) -> bytes:
        """What a stream ends with, before `[DONE]`: the event with usage and metrics and no choice, if wanted."""
        return frame(self._chunk([], self.usage(), self.metrics())) if self.order.include_usage else b""

    def event(self, choice: ChoiceT) -> bytes:
        """The event of one choice. With include_usage OpenAI sends `usage: null` in all chunks but the last."""
        return frame(self._chunk([choice], None if self.order.include_usage else msgspec.UNSET))

    def logprobs(self, details: Sequence[Detail]) -> LogprobsT | None:
        """Log probabilities of generated tokens, if they were asked for."""
        return self._listed(details) if self.order.sampling.logprobs >= 0 else None

    def usage(self) -> Usage:
        """Tokens of all choices; a prompt counts once, however many choices it has."""
        cached: dict[int, int] = {}
        for choice, flight in zip(self.order.choices, self.flights, strict=True):
            found = min(flight.generation.cached_tokens, len(choice.ids))
            cached[choice.prompt] = max(cached.get(choice.prompt, 0), found)
        generated = sum(flight.generation.count for flight in self.flights)
        return usage(self.order.prompt_tokens, generated, sum(cached.values()))

    def drafts(self) -> DraftCounts:
        """Drafts of all choices."""
        return total(flight.generation.counts for flight in self.flights)

    def metrics(self) -> Metrics | msgspec.UnsetType:
        """Acceptance over all choices."""
        if self.draft_tokens == 0:
            return msgspec.UNSET
        lengths = total_lengths(flight.generation.lengths for flight in self.flights)
        return Metrics(acceptance(self.drafts(), lengths, self.draft_tokens))

    def sources(self, details: Sequence[Detail]) -> Sources:
        """Where the tokens came from, if that was asked for."""
        if not self.order.token_sources:
            return msgspec.UNSET
        return [TokenSource(detail.text, _ORIGINS.get(detail.source, "sampled")) for detail in details]


AnyAnswer = Answer[Any, Any]
"""Of either endpoint."""
