"""The body of `/v1/chat/completions` as typed structs, and its decoding into them. Frontend process, worker thread.

Types are strict: "5" is no number and 5.0 no integer. An error names the field and its path, never the content.
"""

from __future__ import annotations

import re

import msgspec

from services.frontend.api.known import check_field, printable
from shared.errors import InvalidRequest


class Part(msgspec.Struct, forbid_unknown_fields=True):
    """One part of a message's content; every type but "text" is refused in `conversation.py`."""

    type: str
    text: str | None = None
    image_url: msgspec.Raw = msgspec.Raw()
    input_audio: msgspec.Raw = msgspec.Raw()
    video_url: msgspec.Raw = msgspec.Raw()
    audio_url: msgspec.Raw = msgspec.Raw()
    file: msgspec.Raw = msgspec.Raw()
    refusal: msgspec.Raw = msgspec.Raw()


class Turn(msgspec.Struct, forbid_unknown_fields=True):
    """One message. Fields typed `Raw` are known and must be empty."""

    role: str
    content: str | list[Part] | None = None
    name: str | None = None
    refusal: msgspec.Raw = msgspec.Raw()
    tool_calls: msgspec.Raw = msgspec.Raw()
    tool_call_id: msgspec.Raw = msgspec.Raw()
    function_call: msgspec.Raw = msgspec.Raw()
    audio: msgspec.Raw = msgspec.Raw()
    annotations: msgspec.Raw = msgspec.Raw()
    reasoning: msgspec.Raw = msgspec.Raw()
    reasoning_content: msgspec.Raw = msgspec.Raw()


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """`stream_options`; the two last are known and must be off."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    continuous_usage_stats: bool | None = None


class ChatRequest(msgspec.Struct):
    """Every field served; null is the default everywhere. Ranges are checked in `order.py`."""

    messages: list[Turn]
    model: str | None = None
    user: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop: str | list[str] | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None


_FIELDS = frozenset(ChatRequest.__struct_fields__)
_top_level: msgspec.json.Decoder[dict[str, msgspec.Raw]] = msgspec.json.Decoder(dict[str, msgspec.Raw])
_body: msgspec.json.Decoder[ChatRequest] = msgspec.json.Decoder(ChatRequest)
_PATH = re.compile(r" - at `(?:key in )?\$\.?(.*)`$", re.DOTALL)
_UNKNOWN = re.compile(r"^Object contains unknown field `(.*)`$", re.DOTALL)


def _explain(error: msgspec.ValidationError) -> InvalidRequest:
    """msgspec's message without its path, and the path as the field; unknown names are cut to a printable length."""
    text = str(error)
    found = _PATH.search(text)
    path = found.group(1) if found else ""
    reason = text[: found.start()] if found else text
    unknown = _UNKNOWN.match(reason)
    if unknown:
        path = f"{path}.{printable(unknown.group(1))}".lstrip(".")
        return InvalidRequest(f"Unrecognized request argument supplied: {path}", param=path)
    if not path:
        missing = re.search(r"missing required field `(\w+)`", reason)
        path = missing.group(1) if missing else ""
    return InvalidRequest(f"{path or 'body'}: {reason}", param=path or None)


def decode_body(body: bytes) -> ChatRequest:
    """The request in a JSON body. Raises `InvalidRequest` or `NotBuilt`."""
    try:
        for name, value in _top_level.decode(body).items():
            if name not in _FIELDS:
                check_field(name, value)
        return _body.decode(body)
    except msgspec.ValidationError as error:
        raise _explain(error) from error
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"the body is not valid JSON: {_offset(str(error))}") from error
    except (UnicodeDecodeError, RecursionError) as error:
        reason = "is nested too deeply" if isinstance(error, RecursionError) else "is not valid UTF-8"
        raise InvalidRequest(f"the body {reason}") from error


def _offset(reason: str) -> str:
    """Where the JSON breaks, without any of it."""
    found = re.search(r"\(byte \d+\)", reason)
    return f"malformed {found.group()}" if found else "malformed or cut short"
