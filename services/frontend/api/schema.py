"""Bodies of `/v1/chat/completions` and `/v1/completions` as typed structs, with their ranges. Pure; frontend process.

Every field is served; null is the default everywhere. What a range cannot say is checked in `law.py`, `prompts.py` and
`order.py`; what fields mean is written in `descriptions.py`.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from shared.frames import MAXIMUM_BIAS, MAXIMUM_END_IDS, TOP_LOGPROBS
from shared.messages.common import MAXIMUM_SEED

MAXIMUM_CHOICES = 128
"""Choices of one request: prompts times `n`."""
MAXIMUM_STOPS = 16
MAXIMUM_STOP_CHARACTERS = 4096
LOWEST_SEED = -(1 << 63)

_Penalty = Annotated[float, Meta(ge=-2, le=2)]
_Bias = Annotated[float, Meta(ge=-100, le=100)]
_Stop = Annotated[str, Meta(min_length=1, max_length=MAXIMUM_STOP_CHARACTERS)]
TokenId = Annotated[int, Meta(ge=0)]
_Budget = Annotated[int, Meta(ge=1)]
_Seed = Annotated[int, Meta(extra_json_schema={"minimum": LOWEST_SEED, "maximum": MAXIMUM_SEED})]
_ids = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}}
_Prompt = Annotated[
    str | list[str | int | list[int]],
    Meta(
        extra_json_schema={
            "oneOf": [
                {"type": "string"},
                {"type": "array", "minItems": 1, "items": {"type": "string"}},
                _ids,
                {"type": "array", "minItems": 1, "items": _ids},
            ]
        },
    ),
]


class Part(msgspec.Struct, forbid_unknown_fields=True):
    """One part of a message's content; every type but "text" is refused in `conversation.py`."""

    type: str
    text: str | None = None
    image_url: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    input_audio: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    video_url: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    audio_url: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    file: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    refusal: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)


class Turn(msgspec.Struct, forbid_unknown_fields=True):
    """One message. Fields typed `Raw` are known and must be empty."""

    role: str
    content: str | list[Part] | None = None
    name: str | None = None
    refusal: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    tool_calls: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    tool_call_id: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    function_call: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    audio: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    annotations: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    reasoning: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    reasoning_content: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """`stream_options`; the two last are known and must be off."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationRequest(msgspec.Struct, kw_only=True):
    """What both endpoints take. The core's generation defaults stand in for `temperature` to `min_p`."""

    model: str | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    n: Annotated[int, Meta(ge=1, le=MAXIMUM_CHOICES)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=1 << 31)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    seed: _Seed | None = None
    max_tokens: Annotated[int, Meta(ge=0)] | None = None
    min_tokens: Annotated[int, Meta(ge=0)] | None = None
    ignore_eos: bool | None = None
    stop: _Stop | Annotated[list[_Stop], Meta(max_length=MAXIMUM_STOPS)] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=MAXIMUM_END_IDS)] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    frequency_penalty: _Penalty | None = None
    presence_penalty: _Penalty | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100)] | None = None
    logit_bias: Annotated[dict[str, _Bias], Meta(max_length=MAXIMUM_BIAS)] | None = None
    return_token_sources: bool | None = None


class ChatRequest(GenerationRequest, kw_only=True):
    """The body of `/v1/chat/completions`."""

    messages: list[Turn]
    max_tokens: _Budget | None = None
    max_completion_tokens: _Budget | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=TOP_LOGPROBS)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class CompletionRequest(GenerationRequest, kw_only=True):
    """The body of `/v1/completions`."""

    prompt: _Prompt
    best_of: Annotated[int, Meta(ge=1)] | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=TOP_LOGPROBS)] | None = None
    add_special_tokens: bool | None = None
