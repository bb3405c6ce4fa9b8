"""One request's output as a pure state machine: deltas of tokens in, visible text and an ending out.

Frontend process. Tokens are taken one by one, so that the first event in token order wins: a stop string, then what the
device said of the last token (cases.md, B01). Text, log probabilities and usage all end at token `count`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from services.frontend.detokenizer import Detokenizer
from services.frontend.stops import StopStrings
from services.frontend.usage import counts_until
from services.frontend.vocabulary import Vocabulary
from shared.errors import ContractBreach
from shared.messages.common import DraftCounts, TokenLogprobs
from shared.messages.frontend import Delta, Finish

Scored = tuple[int, TokenLogprobs]
"""A token id and its log probabilities."""


@dataclass(frozen=True, slots=True)
class Emission:
    """What one delta added to what a client may see."""

    text: str
    scored: tuple[Scored, ...] = ()


@dataclass(slots=True)
class Generation:
    """Output of one request. `max_tokens` is the budget that the device enforces."""

    vocabulary: Vocabulary
    stops: StopStrings
    max_tokens: int
    min_tokens: int = 0
    logprobs: bool = False
    count: int = 0
    """Generated tokens that stand; none of them can be cut off any more."""
    epoch: int = 0
    cached_tokens: int = 0
    counts: DraftCounts = field(default_factory=DraftCounts)
    finish: Finish = ""
    _detokenizer: Detokenizer = field(default_factory=Detokenizer)

    @property
    def cut(self) -> bool:
        """Whether a stop string ended it, which only the frontend knows."""
        return self.stops.stopped is not None

    def feed(self, delta: Delta) -> Emission:
        """Takes one round's tokens. Raises `ContractBreach` for a gap, a surplus or missing log probabilities."""
        self._check(delta)
        self.epoch = delta.epoch
        self.cached_tokens = max(self.cached_tokens, delta.cached_tokens)
        text, scored = [], []
        first = self.count - delta.start  # a preempted request may be told again what it has
        for index in range(first, len(delta.tokens)):
            token = delta.tokens[index]
            ends = delta.finish == "stop" and index == len(delta.tokens) - 1
            text.append(self._show(b"" if ends else self.vocabulary.visible(token)))
            self.count += 1
            if self.logprobs:
                scored.append((token, delta.logprobs[index]))
            if self.cut:
                break
        self.counts = counts_until(delta, self.count - delta.start)
        if self.cut:
            self.finish = "stop"
        elif delta.finish:
            text.append(self._close(delta.finish))
        return Emission("".join(text), tuple(scored))

    def _check(self, delta: Delta) -> None:
        if delta.start > self.count:
            raise ContractBreach(f"tokens {self.count} to {delta.start} of a request are missing")
        if delta.start + len(delta.tokens) > self.max_tokens:
            raise ContractBreach(f"more than {self.max_tokens} tokens for a request with that budget")
        if self.logprobs and len(delta.logprobs) != len(delta.tokens):
            raise ContractBreach(f"{len(delta.logprobs)} log probabilities for {len(delta.tokens)} tokens")

    def _show(self, data: bytes) -> str:
        text = self._detokenizer.feed(data)
        # Below `min_tokens` nothing may end the request, so that text is not searched (as in vLLM).
        return self.stops.feed(text) if self.count + 1 >= self.min_tokens else text

    def _close(self, finish: Finish) -> str:
        """Releases what was held; an incomplete character may still complete a stop string."""
        text = self.stops.feed(self._detokenizer.flush())
        self.finish = "stop" if self.cut else finish
        return text + self.stops.flush()
