"""One request's output as a pure state machine: deltas of tokens in, visible text and an ending out.

Frontend process. Tokens are taken one by one, so that the first event in token order wins: a stop string, then what the
device said of the last token (cases.md, B01). Text, log probabilities and usage all end at token `count`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from services.frontend.detokenizer import Detokenizer
from services.frontend.stops import StopStrings
from services.frontend.usage import Lengths, counts_until, note_round
from services.frontend.vocabulary import Vocabulary
from shared.errors import ContractBreach
from shared.messages.common import DraftCounts, TokenLogprobs
from shared.messages.frontend import Delta, Finish


@dataclass(frozen=True, slots=True)
class Detail:
    """One token that stands: the text that it released and the `shared.frames.Source` bits of the draft it was.

    `offset` counts the characters decoded before it. Of a prompt's tokens only the first has no `scores`.
    """

    token: int
    text: str
    source: int
    offset: int
    scores: TokenLogprobs | None = None
    prompt: bool = False


@dataclass(frozen=True, slots=True)
class Emission:
    """What one delta added to what a client may see; `details` only if they are wanted."""

    text: str
    details: tuple[Detail, ...] = ()


@dataclass(slots=True)
class ScoredPrompt:
    """A prompt whose tokens are told with log probabilities, each once and in order.

    Its first `-decoded` characters are not echoed and count none: the tokenizer put them before the text.
    """

    ids: tuple[int, ...]
    vocabulary: Vocabulary
    decoded: int = 0
    _told: int = 0
    _detokenizer: Detokenizer = field(default_factory=Detokenizer)

    @property
    def left(self) -> int:
        """Tokens that no scores came for yet."""
        return len(self.ids) - max(self._told, 1)

    def feed(self, delta: Delta) -> tuple[Detail, ...]:
        """The tokens that a delta's scores are new for; the first one goes along. Raises `ContractBreach` for a gap."""
        start, end = delta.scored_from, delta.scored_from + len(delta.scores)
        told = max(self._told, 1)
        if start > told or end > len(self.ids):
            raise ContractBreach(f"scores of tokens {start} to {end} of {len(self.ids)}, behind {told}")
        found = []
        if not self._told and (end > told or len(self.ids) == 1):
            found.append(self._detail(None))
        found += [self._detail(scores) for scores in delta.scores[told - start :]]
        return tuple(found)

    def _detail(self, scores: TokenLogprobs | None) -> Detail:
        token, offset = self.ids[self._told], self.decoded
        text = self._detokenizer.feed(self.vocabulary.raw(token))
        self._told += 1
        self.decoded += len(text)
        return Detail(token, "", 0, max(offset, 0), scores, prompt=True)


@dataclass(slots=True)
class Generation:
    """Output of one request. `max_tokens` is the budget that the device enforces.

    `detailed` asks for a `Detail` of each token. What ends a text is hidden unless `show_end`, special tokens unless
    `show_special`. A `scored` prompt comes first, token by token; of a `silent` request nothing else stands.
    """

    vocabulary: Vocabulary
    stops: StopStrings
    max_tokens: int
    min_tokens: int = 0
    logprobs: bool = False
    detailed: bool = False
    show_end: bool = False
    show_special: bool = False
    scored: ScoredPrompt | None = None
    silent: bool = False
    echoed: int = 0
    """Characters of the prompt that come before the text."""
    dropped: int = 0
    """Tokens of a silent request, which do not stand."""
    count: int = 0
    """Generated tokens that stand; none of them can be cut off any more."""
    epoch: int = 0
    cached_tokens: int = 0
    counts: DraftCounts = field(default_factory=DraftCounts)
    lengths: Lengths = field(default_factory=dict)
    finish: Finish = ""
    _detokenizer: Detokenizer = field(default_factory=Detokenizer)
    _decoded: int = 0
    """Characters decoded so far, held ones included."""

    @property
    def cut(self) -> bool:
        """Whether a stop string ended it, which only the frontend knows."""
        return self.stops.stopped is not None

    def feed(self, delta: Delta) -> Emission:
        """Takes one round's tokens. Raises `ContractBreach` for a gap, a surplus or missing log probabilities."""
        self._check(delta)
        self.epoch = delta.epoch
        self.cached_tokens = max(self.cached_tokens, delta.cached_tokens)
        prompt = self.scored.feed(delta) if self.scored is not None else ()
        if self.silent:
            self.dropped = delta.start + len(delta.tokens)
            self.finish = "length" if delta.finish else ""
            return Emission("", prompt)
        first = self.count - delta.start  # a preempted request may be told again what it has
        texts, offsets = [], []
        for index in range(first, len(delta.tokens)):
            offsets.append(self.echoed + self._decoded)
            ends = delta.finish == "stop" and index == len(delta.tokens) - 1
            texts.append(self._show(b"" if ends and not self.show_end else self._bytes(delta.tokens[index])))
            self.count += 1
            if self.cut:
                break
        before, self.counts = self.counts, counts_until(delta, self.count - delta.start)
        note_round(self.lengths, before, self.counts)
        if self.cut:
            self.finish = "stop"
        elif delta.finish:
            # What was held belongs to the token that ends it.
            texts[-1:] = ["".join(texts[-1:]) + self._close(delta.finish)]
        details = self._details(delta, first, texts, offsets) if self.detailed or self.logprobs else ()
        return Emission("".join(texts), prompt + details)

    def _bytes(self, token: int) -> bytes:
        return self.vocabulary.raw(token) if self.show_special else self.vocabulary.visible(token)

    def _details(self, delta: Delta, first: int, texts: list[str], offsets: list[int]) -> tuple[Detail, ...]:
        """The tokens of a delta from `first` on that stand."""
        return tuple(
            Detail(
                token=delta.tokens[index],
                text=text,
                source=delta.sources[index] if delta.sources else 0,
                offset=offset,
                scores=delta.logprobs[index] if self.logprobs else None,
            )
            for index, (text, offset) in enumerate(zip(texts, offsets, strict=False), first)
        )

    def _check(self, delta: Delta) -> None:
        if delta.tokens and self.scored is not None and self.scored.left:
            raise ContractBreach(f"scores of {self.scored.left} prompt tokens are missing")
        if delta.start > self.count:
            raise ContractBreach(f"tokens {self.count} to {delta.start} of a request are missing")
        if delta.start + len(delta.tokens) > self.max_tokens:
            raise ContractBreach(f"more than {self.max_tokens} tokens for a request with that budget")
        if self.logprobs and len(delta.logprobs) != len(delta.tokens):
            raise ContractBreach(f"{len(delta.logprobs)} log probabilities for {len(delta.tokens)} tokens")
        if delta.sources and len(delta.sources) != len(delta.tokens):
            raise ContractBreach(f"{len(delta.sources)} sources for {len(delta.tokens)} tokens")

    def _show(self, data: bytes) -> str:
        text = self._detokenizer.feed(data)
        self._decoded += len(text)
        # Below `min_tokens` nothing may end the request, so that text is not searched (as in vLLM).
        return self.stops.feed(text) if self.count + 1 >= self.min_tokens else text

    def _close(self, finish: Finish) -> str:
        """Releases what was held; an incomplete character may still complete a stop string."""
        text = self.stops.feed(self._detokenizer.flush())
        self.finish = "stop" if self.cut else finish
        return text + self.stops.flush()
