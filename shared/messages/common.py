"""What several messages share: the base of all, sampling values, token deltas and statistics."""

from __future__ import annotations

import secrets

import msgspec

from shared.errors import InvalidRequest
from shared.manifest import GenerationDefaults

MAXIMUM_SEED = (1 << 64) - 1


class Message(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Base of everything that crosses a process. `instance` is the sender's."""

    instance: int


def new_instance() -> int:
    """A random positive 63-bit instance id."""
    return secrets.randbits(62) | 1


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """A request's sampling law. Temperature 0 is greedy; `top_k` 0, `top_p` 1, `min_p` 0 filter nothing.

    `logprobs` is -1 for none, else how many alternatives go with each token (0 .. 20). Seeds are unsigned 64-bit.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    seed: int = 0
    min_tokens: int = 0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int = -1

    @property
    def penalised(self) -> bool:
        """Whether it matters which tokens a text holds already."""
        return self.repetition_penalty != 1.0 or self.frequency_penalty != 0.0 or self.presence_penalty != 0.0

    def checked(self, vocab_size: int) -> Sampling:
        """Itself, if every value is in its range. Raises `InvalidRequest` naming the field."""
        ranges = (
            ("temperature", self.temperature, 0.0, 2.0),
            ("top_p", self.top_p, 0.0, 1.0),
            ("min_p", self.min_p, 0.0, 1.0),
            ("frequency_penalty", self.frequency_penalty, -2.0, 2.0),
            ("presence_penalty", self.presence_penalty, -2.0, 2.0),
            ("repetition_penalty", self.repetition_penalty, 1e-2, 1e2),
            ("top_k", self.top_k, 0, 1 << 31),
            ("logprobs", self.logprobs, -1, 20),
            ("seed", self.seed, 0, MAXIMUM_SEED),
        )
        for name, value, low, high in ranges:
            if not low <= value <= high:
                raise InvalidRequest(f"{name} must be between {low} and {high}", param=name)
        if self.top_p == 0.0:
            raise InvalidRequest("top_p must be above 0", param="top_p")
        for token, bias in self.logit_bias:
            if not 0 <= token < vocab_size:
                raise InvalidRequest(
                    f"logit_bias names token {token}, and token ids lie between 0 and {vocab_size - 1}",
                    param="logit_bias",
                )
            if not -100.0 <= bias <= 100.0:
                raise InvalidRequest("the values of logit_bias lie between -100 and 100", param="logit_bias")
        return self


def sampling_defaults(defaults: GenerationDefaults) -> Sampling:
    """The law of a request that says nothing, by the core's generation defaults."""
    return Sampling(temperature=defaults.temperature, top_p=defaults.top_p, top_k=defaults.top_k, min_p=defaults.min_p)


class DraftCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Drafts of a request, offered and accepted, by source, and accepted by depth. `rounds` are those that drafted."""

    rounds: int = 0
    offered_learned: int = 0
    accepted_learned: int = 0
    offered_history: int = 0
    accepted_history: int = 0
    offered_prompt: int = 0
    accepted_prompt: int = 0
    accepted_by_depth: tuple[int, ...] = (0,) * 7

    @property
    def offered(self) -> int:
        return self.offered_learned + self.offered_history + self.offered_prompt

    @property
    def accepted(self) -> int:
        return self.accepted_learned + self.accepted_history + self.accepted_prompt


class TokenLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """Raw log probability of an emitted token and of the most likely alternatives, most likely first."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()
