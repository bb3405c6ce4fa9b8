"""Chat answers in OpenAI's shape, whole and in chunks, as structs that encode themselves. Pure; frontend process."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from services.frontend.generation import Generation, Scored
from services.frontend.usage import Metrics, Usage, acceptance, usage
from services.frontend.vocabulary import Vocabulary

LOWEST_LOGPROB = -9999.0
"""OpenAI's stand-in for minus infinity, which JSON does not have."""


class Alternative(msgspec.Struct):
    """A token with its log probability; `bytes` are its raw bytes, even where `token` shows U+FFFD."""

    token: str
    logprob: float
    bytes: list[int]


class Entry(Alternative):
    """One emitted token."""

    top_logprobs: list[Alternative]


class Logprobs(msgspec.Struct):
    """`logprobs` of a choice: one entry per generated token."""

    content: list[Entry]
    refusal: None = None


class Delta(msgspec.Struct, omit_defaults=True):
    """What a chunk adds."""

    role: str | None = None
    content: str | None = None


class ChunkChoice(msgspec.Struct):
    """The one choice of a chunk."""

    delta: Delta
    index: int = 0
    logprobs: Logprobs | None = None
    finish_reason: str | None = None


class ChatChunk(msgspec.Struct):
    """One SSE event of a stream."""

    id: str
    created: int
    model: str
    choices: list[ChunkChoice]
    object: str = "chat.completion.chunk"
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    metrics: Metrics | msgspec.UnsetType = msgspec.UNSET


class Reply(msgspec.Struct):
    """The assistant's message."""

    content: str
    role: str = "assistant"
    refusal: None = None


class Choice(msgspec.Struct):
    """The one choice of an answer."""

    message: Reply
    finish_reason: str
    logprobs: Logprobs | None = None
    index: int = 0


class ChatCompletion(msgspec.Struct):
    """A whole answer."""

    id: str
    created: int
    model: str
    choices: list[Choice]
    usage: Usage
    object: str = "chat.completion"
    metrics: Metrics | msgspec.UnsetType = msgspec.UNSET


def _alternative(vocabulary: Vocabulary, token: int, logprob: float) -> Alternative:
    raw = vocabulary.raw(token)
    return Alternative(raw.decode("utf-8", "replace"), _finite(logprob), list(raw))


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST_LOGPROB) if math.isfinite(logprob) else LOWEST_LOGPROB


def logprobs(vocabulary: Vocabulary, scored: Sequence[Scored]) -> Logprobs:
    """Entries of generated tokens, in order; raw log probabilities of the model."""
    entries = []
    for token, values in scored:
        own = _alternative(vocabulary, token, values.logprob)
        top = [_alternative(vocabulary, other, value) for other, value in values.top]
        entries.append(Entry(own.token, own.logprob, own.bytes, top))
    return Logprobs(entries)


@dataclass(frozen=True, slots=True)
class Answer:
    """Makes the messages of one request. `draft_tokens` is the most that a round drafts; 0 leaves `metrics` out."""

    request: str
    model: str
    generation: Generation
    prompt_tokens: int
    draft_tokens: int
    include_usage: bool = False
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, text: str, scored: Sequence[Scored]) -> bytes:
        """The body of an answer that is not streamed."""
        choice = Choice(Reply(text), self.generation.finish, self._logprobs(scored))
        return msgspec.json.encode(
            ChatCompletion(self._id, self.created, self.model, [choice], self._usage(), metrics=self._metrics())
        )

    def opening(self) -> bytes:
        """The first event: the role."""
        return self._event([ChunkChoice(Delta(role="assistant", content=""))])

    def progress(self, text: str, scored: Sequence[Scored]) -> bytes:
        """An event with text; with log probabilities the text may be empty."""
        return self._event([ChunkChoice(Delta(content=text), logprobs=self._logprobs(scored))])

    def closing(self) -> bytes:
        """The event with the finish reason and, if wanted, the one with the usage."""
        last = self._event([ChunkChoice(Delta(), finish_reason=self.generation.finish)])
        if not self.include_usage:
            return last
        chunk = ChatChunk(self._id, self.created, self.model, [], usage=self._usage(), metrics=self._metrics())
        return last + _frame(msgspec.json.encode(chunk))

    @property
    def _id(self) -> str:
        return f"chatcmpl-{self.request}"

    def _event(self, choices: list[ChunkChoice]) -> bytes:
        # With include_usage OpenAI sends `usage: null` in all chunks but the last.
        chunk = ChatChunk(
            self._id, self.created, self.model, choices, usage=None if self.include_usage else msgspec.UNSET
        )
        return _frame(msgspec.json.encode(chunk))

    def _logprobs(self, scored: Sequence[Scored]) -> Logprobs | None:
        return logprobs(self.generation.vocabulary, scored) if self.generation.logprobs else None

    def _usage(self) -> Usage:
        return usage(self.prompt_tokens, self.generation.count, self.generation.cached_tokens)

    def _metrics(self) -> Metrics | msgspec.UnsetType:
        if self.draft_tokens == 0:
            return msgspec.UNSET
        return Metrics(acceptance(self.generation.counts, self.draft_tokens))


def _frame(payload: bytes) -> bytes:
    return b"data: " + payload + b"\n\n"


def error_frame(payload: bytes) -> bytes:
    """The event that ends a stream with an error."""
    return _frame(payload)


DONE = b"data: [DONE]\n\n"
