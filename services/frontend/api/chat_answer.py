"""Answers of `/v1/chat/completions` in OpenAI's shape, whole and in chunks. Pure; frontend process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from services.frontend.api.answer import Answer, Sources, finite
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
class ChatAnswer(Answer[ChunkChoice, Logprobs]):
    """Chat completions."""

    prefix = "chatcmpl"

    def whole(self, outputs: Sequence[Chunk]) -> bytes:
        """`ChatCompletion`."""
        choices = [
            Choice(
                Reply(output.text),
                index,
                self.flights[index].generation.finish,
                self.logprobs(output.details),
                self.sources(output.details),
            )
            for index, output in enumerate(outputs)
        ]
        return msgspec.json.encode(
            ChatCompletion(self.id, self.created, self.model, choices, self.usage(), metrics=self.metrics())
        )

    def opening(self) -> bytes:
        """The role of each choice."""
        roles = (ChunkChoice(Delta(role="assistant", content=""), index) for index in range(len(self.flights)))
        return b"".join(self.event(role) for role in roles)

    def _chunk(
        self,
        choices: list[ChunkChoice],
        usage: Usage | msgspec.UnsetType | None,
        metrics: Metrics | msgspec.UnsetType = msgspec.UNSET,
    ) -> ChatChunk:
        return ChatChunk(self.id, self.created, self.model, choices, usage=usage, metrics=metrics)

    def _said(self, index: int, chunk: Chunk) -> ChunkChoice:
        scores, sources = self.logprobs(chunk.details), self.sources(chunk.details)
        return ChunkChoice(Delta(content=chunk.text), index, scores, token_sources=sources)

    def _ended(self, index: int) -> ChunkChoice:
        return ChunkChoice(Delta(), index, finish_reason=self.flights[index].generation.finish)

    def _listed(self, details: Sequence[Detail]) -> Logprobs:
        return logprobs(self.vocabulary, details)
