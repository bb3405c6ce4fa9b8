"""Answers of `/v1/completions` in OpenAI's shape, whole and in chunks. Pure; frontend process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from services.frontend.api.answer import Answer, Sources, finite
from services.frontend.flight import Chunk
from services.frontend.generation import Detail
from services.frontend.usage import Metrics, Usage
from services.frontend.vocabulary import Vocabulary
from shared.messages.common import TokenLogprobs


class TextLogprobs(msgspec.Struct):
    """`logprobs` of a choice: one item per token in each list, those of an echoed prompt first.

    `top_logprobs` holds the alternatives that were asked for and the token itself; a prompt's first token has neither.
    `text_offset` counts the characters that were decoded before the token.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TextChoice(msgspec.Struct):
    """One choice of an answer or of a chunk."""

    text: str
    index: int
    logprobs: TextLogprobs | None = None
    finish_reason: str | None = None
    token_sources: Sources = msgspec.UNSET


class TextCompletion(msgspec.Struct):
    """A whole answer."""

    id: str
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage
    object: str = "text_completion"
    metrics: Metrics | msgspec.UnsetType = msgspec.UNSET


class TextChunk(msgspec.Struct):
    """One SSE event of a stream."""

    id: str
    created: int
    model: str
    choices: list[TextChoice]
    object: str = "text_completion"
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    metrics: Metrics | msgspec.UnsetType = msgspec.UNSET


def spelled(raw: bytes) -> str:
    """A token's text; bytes that are no text are spelled out as OpenAI does, so that no two tokens look alike."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def logprobs(vocabulary: Vocabulary, details: Sequence[Detail]) -> TextLogprobs:
    """The lists over tokens, in order; raw log probabilities of the model."""
    found = TextLogprobs([], [], [], [])
    for detail in details:
        scores = detail.scores
        if scores is None and not detail.prompt:
            continue
        found.tokens.append(spelled(vocabulary.raw(detail.token)))
        found.token_logprobs.append(None if scores is None else finite(scores.logprob))
        found.top_logprobs.append(None if scores is None else _alternatives(vocabulary, detail.token, scores))
        found.text_offset.append(detail.offset)
    return found


def _alternatives(vocabulary: Vocabulary, token: int, scores: TokenLogprobs) -> dict[str, float]:
    top: dict[str, float] = {}
    for other, value in (*scores.top, (token, scores.logprob)):
        top.setdefault(spelled(vocabulary.raw(other)), finite(value))
    return top


@dataclass(frozen=True, slots=True)
class TextAnswer(Answer[TextChoice, TextLogprobs]):
    """Completions. With `echo` a choice begins with the text of its prompt."""

    prefix = "cmpl"

    def whole(self, outputs: Sequence[Chunk]) -> bytes:
        """`TextCompletion`."""
        choices = [
            TextChoice(
                self.order.choices[index].echo + output.text,
                index,
                self.logprobs(output.details),
                self.flights[index].generation.finish,
                self.sources(output.details),
            )
            for index, output in enumerate(outputs)
        ]
        return msgspec.json.encode(
            TextCompletion(self.id, self.created, self.model, choices, self.usage(), metrics=self.metrics())
        )

    def opening(self) -> bytes:
        """The prompts, with `echo`."""
        echoes = enumerate(choice.echo for choice in self.order.choices)
        return b"".join(self.event(TextChoice(echo, index)) for index, echo in echoes if echo)

    def _chunk(
        self,
        choices: list[TextChoice],
        usage: Usage | msgspec.UnsetType | None,
        metrics: Metrics | msgspec.UnsetType = msgspec.UNSET,
    ) -> TextChunk:
        return TextChunk(self.id, self.created, self.model, choices, usage=usage, metrics=metrics)

    def _said(self, index: int, chunk: Chunk) -> TextChoice:
        scores, sources = self.logprobs(chunk.details), self.sources(chunk.details)
        return TextChoice(chunk.text, index, scores, token_sources=sources)

    def _ended(self, index: int) -> TextChoice:
        return TextChoice("", index, finish_reason=self.flights[index].generation.finish)

    def _listed(self, details: Sequence[Detail]) -> TextLogprobs:
        return logprobs(self.vocabulary, details)
