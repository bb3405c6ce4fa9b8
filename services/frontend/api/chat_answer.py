"""Answers of `/v1/chat/completions` in OpenAI's shape, whole and in chunks. Pure; frontend process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from services.frontend.api.answer import Answer, Sources, finite, frame
from services.frontend.flight import Chunk
from services.frontend.generation import Detail
from services.frontend.usage import Metrics, Usage
from services.frontend.vocabulary import Vocabulary


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
    index: int
    logprobs: Logprobs | None = None
    finish_reason: str | None = None
    token_sources: Sources = msgspec.UNSET


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
    """One choice of an answer."""

    message: Reply
    index: int
    finish_reason: str
    logprobs: Logprobs | None = None
    token_sources: Sources = msgspec.UNSET


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
    return Alternative(raw.decode("utf-8", "replace"), finite(logprob), list(raw))


def logprobs(vocabulary: Vocabulary, details: Sequence[Detail]) -> Logprobs:
    """Entries of generated tokens, in order; raw log probabilities of the model."""
    entries = []
    for detail in details:
        if detail.scores is None:
            continue
        own = _alternative(vocabulary, detail.token, detail.scores.logprob)
        top = [_alternative(vocabulary, other, value) for other, value in detail.scores.top]
        entries.append(Entry(own.token, own.logprob, own.bytes, top))
    return Logprobs(entries)


@dataclass(frozen=True, slots=True)
class ChatAnswer(Answer):
    """Chat completions."""

    def whole(self, outputs: Sequence[Chunk]) -> bytes:
        """`ChatCompletion`."""
        choices = [
            Choice(
                Reply(output.text),
                index,
                self.flights[index].generation.finish,
                self._logprobs(output.details),
                self.sources(output.details),
            )
            for index, output in enumerate(outputs)
        ]
        return msgspec.json.encode(
            ChatCompletion(self._id, self.created, self.model, choices, self.usage(), metrics=self.metrics())
        )

    def opening(self) -> bytes:
        """The role of each choice."""
        roles = (ChunkChoice(Delta(role="assistant", content=""), index) for index in range(len(self.flights)))
        return b"".join(self._event(role) for role in roles)

    def progress(self, index: int, chunk: Chunk) -> bytes:
        """With log probabilities or sources the content may be empty."""
        events = b""
        if chunk.text or chunk.details:
            events = self._event(
                ChunkChoice(
                    Delta(content=chunk.text),
                    index,
                    self._logprobs(chunk.details),
                    token_sources=self.sources(chunk.details),
                )
            )
        if chunk.last:
            events += self._event(ChunkChoice(Delta(), index, finish_reason=self.flights[index].generation.finish))
        return events

    def closing(self) -> bytes:
        """Usage and metrics, with no choice."""
        if not self.order.include_usage:
            return b""
        return frame(ChatChunk(self._id, self.created, self.model, [], usage=self.usage(), metrics=self.metrics()))

    @property
    def _id(self) -> str:
        return f"chatcmpl-{self.request}"

    def _event(self, choice: ChunkChoice) -> bytes:
        # With include_usage OpenAI sends `usage: null` in all chunks but the last.
        usage = None if self.order.include_usage else msgspec.UNSET
        return frame(ChatChunk(self._id, self.created, self.model, [choice], usage=usage))

    def _logprobs(self, details: Sequence[Detail]) -> Logprobs | None:
        return logprobs(self.vocabulary, details) if self.order.sampling.logprobs >= 0 else None
