"""The sampling law that a request asks for, and what ends its answers. Pure; frontend process, worker threads.

Explicit values win over the core's generation defaults. The seed is no part of it: each choice has its own.
"""

from __future__ import annotations

import re

import msgspec

from services.frontend.api.schema import LOWEST_SEED, ChatRequest, CompletionRequest, GenerationRequest
from shared.errors import InvalidRequest
from shared.frames import MAXIMUM_END_IDS
from shared.manifest import Manifest
from shared.messages.common import MAXIMUM_SEED, Sampling, sampling_defaults

GREEDY_BELOW = 1e-6
"""A smaller temperature is greedy: its law is the same point mass, and no device divides by it."""
_TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,9}")
_PLAIN = (
    "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty",
)  # fmt: skip


def base_seed(value: int | None) -> int | None:
    """The seed of choice 0, unsigned. Raises `InvalidRequest`."""
    if value is None:
        return None
    if not LOWEST_SEED <= value <= MAXIMUM_SEED:
        raise InvalidRequest("seed must be between -2^63 and 2^64-1", param="seed")
    return value % (1 << 64)


def stop_strings(value: str | list[str] | None) -> tuple[str, ...]:
    """The stop strings, each once."""
    return (value,) if isinstance(value, str) else tuple(dict.fromkeys(value or ()))


def end_ids(request: GenerationRequest, manifest: Manifest) -> tuple[int, ...]:
    """What ends an answer on the device: the core's tokens, unless ignored, and the request's own.

    Raises `InvalidRequest`.
    """
    wanted = request.stop_token_ids or []
    vocabulary = manifest.geometry.vocab_size
    for index, token in enumerate(wanted):
        if not 0 <= token < vocabulary:
            raise InvalidRequest(f"token ids lie between 0 and {vocabulary - 1}", param=f"stop_token_ids[{index}]")
    found = tuple(dict.fromkeys((*(() if request.ignore_eos else manifest.end_ids), *wanted)))
    if len(found) > MAXIMUM_END_IDS:
        own = len(found) - len(set(wanted))
        raise InvalidRequest(
            f"at most {MAXIMUM_END_IDS - own} stop tokens are possible beside the model's own", param="stop_token_ids"
        )
    return found


def _bias(value: dict[str, float] | None) -> tuple[tuple[int, float], ...]:
    if not value:
        return ()
    if not all(_TOKEN_ID.fullmatch(key) for key in value):
        raise InvalidRequest("the keys of logit_bias must be token ids", param="logit_bias")
    return tuple(sorted((int(key), bias) for key, bias in value.items()))


def _logprobs(request: GenerationRequest) -> int:
    """How many alternatives go with each token; -1 for no log probabilities at all."""
    if isinstance(request, CompletionRequest):
        return -1 if request.logprobs is None else request.logprobs
    if isinstance(request, ChatRequest) and request.logprobs:
        return request.top_logprobs or 0
    if isinstance(request, ChatRequest) and request.top_logprobs:
        raise InvalidRequest("top_logprobs needs logprobs to be true", param="top_logprobs")
    return -1


def sampling_law(request: GenerationRequest, manifest: Manifest) -> Sampling:
    """The law without its seed. Raises `InvalidRequest` naming the field."""
    vocabulary = manifest.geometry.vocab_size
    given = {name: value for name in _PLAIN if (value := getattr(request, name)) is not None}
    if given.get("top_k") == -1:  # vLLM's way to say none
        given["top_k"] = 0
    law = msgspec.structs.replace(
        sampling_defaults(manifest.defaults),
        **given,
        min_tokens=request.min_tokens or 0,
        logit_bias=_bias(request.logit_bias),
        logprobs=_logprobs(request),
    ).checked(vocabulary)
    return msgspec.structs.replace(
        law,
        temperature=0.0 if law.temperature < GREEDY_BELOW else law.temperature,
        top_k=min(law.top_k, vocabulary),
    )
