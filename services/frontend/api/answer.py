"""What the answers of both endpoints share: counts over all choices, token sources, events. Pure; frontend process.

The shapes are OpenAI's, as structs that encode themselves: `chat_answer.py` and `text_answer.py`.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

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
    source: Annotated[Origin, Meta(description="Sampled, or an accepted draft: learned, or copied from elsewhere.")]


Sources = list[TokenSource] | msgspec.UnsetType


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
class Answer(ABC):
    """Makes the messages of one HTTP request, whose choice i is `flights[i]`.

    `draft_tokens` is the most that a round drafts; 0 leaves `metrics` out.
    """

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
    def progress(self, index: int, chunk: Chunk) -> bytes:
        """The events of a chunk of choice `index`; after the last one its finish reason, in an event of its own."""

    @abstractmethod
    def closing(self) -> bytes:
        """What a stream ends with, before `[DONE]`: the event with the usage, if wanted."""

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
