"""What a chat request orders: its values checked, defaults filled in, prompt encoded. Frontend process, worker thread.

Pure but for the random seed. Explicit values win over the core's generation defaults; null means the default.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

import msgspec

from services.frontend.api.conversation import turns
from services.frontend.api.schema import ChatRequest, decode_body
from services.frontend.core import Core
from shared.errors import ContextOverflow, InvalidRequest, ModelNotFound, NotBuilt
from shared.frames import MAXIMUM_BIAS, TOP_LOGPROBS
from shared.messages.common import MAXIMUM_SEED, Sampling, sampling_defaults

MAXIMUM_STOPS = 16
MAXIMUM_STOP_CHARACTERS = 4096
GREEDY_BELOW = 1e-6
"""A smaller temperature is greedy: its law is the same point mass, and no device divides by it."""
_TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,9}")


@dataclass(frozen=True, slots=True)
class Order:
    """A checked request, ready to be submitted."""

    prompt: tuple[int, ...]
    sampling: Sampling
    max_tokens: int
    end_ids: tuple[int, ...]
    stops: tuple[str, ...]
    stream: bool
    include_usage: bool


def _seed(value: int | None) -> int:
    if value is None:
        return int.from_bytes(os.urandom(8), "little")
    if not -(1 << 63) <= value <= MAXIMUM_SEED:
        raise InvalidRequest("seed must be between -2^63 and 2^64-1", param="seed")
    return value % (1 << 64)


def _stops(value: str | list[str] | None) -> tuple[str, ...]:
    strings = [] if value is None else [value] if isinstance(value, str) else value
    if len(strings) > MAXIMUM_STOPS:
        raise InvalidRequest(f"stop takes at most {MAXIMUM_STOPS} strings", param="stop")
    for string in strings:
        if not 0 < len(string) <= MAXIMUM_STOP_CHARACTERS:
            raise InvalidRequest(
                f"a stop string must have between 1 and {MAXIMUM_STOP_CHARACTERS} characters", param="stop"
            )
    return tuple(strings)


def _bias(value: dict[str, float] | None) -> tuple[tuple[int, float], ...]:
    if not value:
        return ()
    if len(value) > MAXIMUM_BIAS:
        raise InvalidRequest(f"logit_bias takes at most {MAXIMUM_BIAS} tokens", param="logit_bias")
    if not all(_TOKEN_ID.fullmatch(key) for key in value):
        raise InvalidRequest("the keys of logit_bias must be token ids", param="logit_bias")
    return tuple(sorted((int(key), bias) for key, bias in value.items()))


def _logprobs(request: ChatRequest) -> int:
    top = request.top_logprobs
    if top is not None and not 0 <= top <= TOP_LOGPROBS:
        raise InvalidRequest(f"top_logprobs must be between 0 and {TOP_LOGPROBS}", param="top_logprobs")
    if not request.logprobs:
        if top:
            raise InvalidRequest("top_logprobs needs logprobs to be true", param="top_logprobs")
        return -1
    return top or 0


def _sampling(request: ChatRequest, core: Core) -> Sampling:
    """The sampling law. Raises `InvalidRequest` naming the field."""
    geometry = core.manifest.geometry
    law = sampling_defaults(core.manifest.defaults)
    plain = (
        "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty",
    )  # fmt: skip
    given = {name: value for name in plain if (value := getattr(request, name)) is not None}
    if given.get("top_k") == -1:  # vLLM's way to say none
        given["top_k"] = 0
    law = msgspec.structs.replace(
        law, **given, seed=_seed(request.seed), logit_bias=_bias(request.logit_bias), logprobs=_logprobs(request)
    ).checked(geometry.vocab_size)
    return msgspec.structs.replace(
        law,
        temperature=0.0 if law.temperature < GREEDY_BELOW else law.temperature,
        top_k=min(law.top_k, geometry.vocab_size),
    )


def _wanted_tokens(request: ChatRequest) -> int | None:
    for name in ("max_tokens", "max_completion_tokens"):
        value = getattr(request, name)
        if value is not None and value < 1:
            raise InvalidRequest(f"{name} must be at least 1", param=name)
    old, new = request.max_tokens, request.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise InvalidRequest("max_tokens and max_completion_tokens differ: give one", param="max_completion_tokens")
    return new if new is not None else old


def _include_usage(request: ChatRequest) -> bool:
    options = request.stream_options
    if options is None:
        return False
    if not request.stream:
        raise InvalidRequest("stream_options needs stream to be true", param="stream_options")
    for name in ("include_obfuscation", "continuous_usage_stats"):
        if getattr(options, name):
            raise NotBuilt(f"{name} is known, but this version does not serve it yet", param=f"stream_options.{name}")
    return bool(options.include_usage)


def take_order(core: Core, body: bytes) -> Order:
    """Decodes, checks and encodes a request. Blocking. Raises a `RequestError` that names the field."""
    request = decode_body(body)
    if request.model is not None and request.model != core.model:
        raise ModelNotFound(f"this server serves the model {core.model}", param="model")
    conversation = turns(request.messages)
    sampling, wanted, stops = _sampling(request, core), _wanted_tokens(request), _stops(request.stop)
    include_usage = _include_usage(request)
    if request.min_tokens is not None and request.min_tokens < 0:
        raise InvalidRequest("min_tokens must not be negative", param="min_tokens")
    prompt = core.encode_chat(conversation)
    room = core.context - len(prompt)
    if room < 1:
        raise ContextOverflow(
            f"the prompt of {len(prompt)} tokens leaves no room in a context of {core.context}", param="messages"
        )
    budget = room if wanted is None else min(wanted, room)
    minimum = request.min_tokens or 0
    if minimum > budget:
        raise InvalidRequest(f"min_tokens exceeds the {budget} tokens that may come", param="min_tokens")
    return Order(
        prompt=prompt,
        sampling=msgspec.structs.replace(sampling, min_tokens=minimum),
        max_tokens=budget,
        end_ids=() if request.ignore_eos else core.manifest.end_ids,
        stops=stops,
        stream=bool(request.stream),
        include_usage=include_usage,
    )
