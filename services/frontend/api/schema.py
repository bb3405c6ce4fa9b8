"""Bodies of `/v1/chat/completions` and `/v1/completions` as typed structs, with their ranges. Pure; frontend process.

Every field is served; null is the default everywhere. What a range cannot say is checked in `law.py`, `prompts.py` and
`order.py`.
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
_TokenId = Annotated[int, Meta(ge=0, description="A token id of the model's vocabulary.")]
_Budget = Annotated[int, Meta(ge=1, description="Most tokens to generate; clipped to what the context leaves.")]
_Seed = Annotated[
    int,
    Meta(
        description="The same seed gives the same answer; choice i draws with seed + i. Negative ones count from 2^64.",
        extra_json_schema={"minimum": LOWEST_SEED, "maximum": MAXIMUM_SEED},
    ),
]
_ids = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}}
_Prompt = Annotated[
    str | list[str | int | list[int]],
    Meta(
        description="A text, several texts, the token ids of a prompt, or those of several.",
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

    include_usage: Annotated[bool, Meta(description="A last chunk with the usage.")] | None = None
    include_obfuscation: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationRequest(msgspec.Struct, kw_only=True):
    """What both endpoints take. The core's generation defaults stand in for `temperature` to `min_p`."""

    model: str | None = None
    user: Annotated[str, Meta(description="Taken for compatibility; nothing depends on it.")] | None = None
    n: Annotated[int, Meta(ge=1, le=MAXIMUM_CHOICES, description="Choices for each prompt.")] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Meta(ge=0, le=2, description="0 takes the most likely token.")] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=1 << 31, description="0 and -1 filter nothing.")] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    seed: _Seed | None = None
    max_tokens: _Budget | None = None
    min_tokens: Annotated[int, Meta(ge=0, description="Nothing ends an answer before so many tokens.")] | None = None
    ignore_eos: Annotated[bool, Meta(description="The model's own end tokens do not end an answer.")] | None = None
    stop: _Stop | Annotated[list[_Stop], Meta(max_length=MAXIMUM_STOPS)] | None = None
    stop_token_ids: (
        Annotated[list[_TokenId], Meta(max_length=MAXIMUM_END_IDS, description="Tokens that end an answer, too.")]
        | None
    ) = None
    include_stop_str_in_output: (
        Annotated[bool, Meta(description="What ended an answer, stop string or stop token, stays in its text.")] | None
    ) = None
    skip_special_tokens: (
        Annotated[bool, Meta(description="False shows special tokens in the text; the default hides them.")] | None
    ) = None
    frequency_penalty: _Penalty | None = None
    presence_penalty: _Penalty | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100)] | None = None
    logit_bias: (
        Annotated[dict[str, _Bias], Meta(max_length=MAXIMUM_BIAS, description="Token id to what its logit gains.")]
        | None
    ) = None
    return_token_sources: (
        Annotated[
            bool,
            Meta(description="`token_sources` tells of each token whether it was sampled or whose draft it was."),
        ]
        | None
    ) = None


class ChatRequest(GenerationRequest, kw_only=True):
    """The body of `/v1/chat/completions`."""

    messages: list[Turn]
    max_completion_tokens: _Budget | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=TOP_LOGPROBS, description="Needs `logprobs`.")] | None = None
    add_generation_prompt: (
        Annotated[bool, Meta(description="Whether the prompt ends with the start of an assistant's turn.")] | None
    ) = None
    continue_final_message: (
        Annotated[bool, Meta(description="The answer goes on with the last message, which is the assistant's.")] | None
    ) = None
    chat_template_kwargs: (
        Annotated[dict[str, Any], Meta(description="Values of variables that the chat template uses.")] | None
    ) = None


class CompletionRequest(GenerationRequest, kw_only=True):
    """The body of `/v1/completions`."""

    prompt: _Prompt
    best_of: Annotated[int, Meta(ge=1, description="Must equal `n`.")] | None = None
    echo: Annotated[bool, Meta(description="The text of the prompt comes first.")] | None = None
    logprobs: (
        Annotated[int, Meta(ge=0, le=TOP_LOGPROBS, description="Alternatives that go with each token.")] | None
    ) = None
    add_special_tokens: (
        Annotated[bool, Meta(description="Whether the tokenizer adds what it adds, such as a start token.")] | None
    ) = None
