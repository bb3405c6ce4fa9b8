"""Every operation of the HTTP API as data: what it takes, what it answers, whom it lets in. Pure; frontend process.

`openapi.py` makes the document from it, and a test holds it against the routes of `app.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from services.frontend.api import operations
from services.frontend.api.chat_answer import ChatChunk, ChatCompletion
from services.frontend.api.conversation import ROLES
from services.frontend.api.schema import ChatRequest, CompletionRequest, Part, StreamOptions, Turn
from services.frontend.api.text_answer import TextChunk, TextCompletion
from services.frontend.api.tokens import DetokenizeAnswer, DetokenizeRequest, TokenizeAnswer, TokenizeRequest

JSON = "application/json"
EVENTS = "text/event-stream"
HTML = "text/html"
TEXT = "text/plain"

READING = (400, 408, 413, 415)
"""What may become of a body."""
WORKING = (404, 429, 503)
"""What may become of work: another model, too much of it, or a service that is away."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path. `parameters` are those of the path, with what they mean.

    `answer` is the JSON of a 200 and `event` that of each event when it is streamed instead; `texts` are media types
    of a 200 that have no schema. `failures` are statuses in the error form, `others` those with an answer of their own.
    """

    method: str
    path: str
    summary: str
    tag: str
    body: type[msgspec.Struct] | None = None
    answer: type[msgspec.Struct] | None = None
    event: type[msgspec.Struct] | None = None
    texts: tuple[str, ...] = ()
    failures: tuple[int, ...] = ()
    others: dict[int, type[msgspec.Struct]] = field(default_factory=dict)
    parameters: dict[str, str] = field(default_factory=dict)
    keyed: bool = False


@dataclass(frozen=True, slots=True)
class Truth:
    """What the checks behind a struct's decoding add to its schema: to properties, and to the whole.

    `required` are more required properties, `unserved` are those to leave out.
    """

    properties: dict[str, Any] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    unserved: tuple[str, ...] = ()
    whole: dict[str, Any] = field(default_factory=dict)


_BIASED = {"logit_bias": {"propertyNames": {"pattern": "^(0|[1-9][0-9]{0,9})$"}}}


def _only(given: str, absent: str) -> dict[str, Any]:
    """One of two properties is there, and the other is not."""
    return {"required": [given], "properties": {given: {"not": {"type": "null"}}, absent: {"type": "null"}}}


_PARTS = {"type": "array", "minItems": 1, "items": {"$ref": "#/components/schemas/Part"}}
TRUTHS: dict[type[msgspec.Struct], Truth] = {
    Part: Truth({"type": {"const": "text"}, "text": {"anyOf": [{"type": "string"}]}}, required=("text",)),
    Turn: Truth(
        {"role": {"enum": list(ROLES)}, "content": {"anyOf": [{"type": "string"}, _PARTS]}}, required=("content",)
    ),
    StreamOptions: Truth(unserved=("include_obfuscation", "continuous_usage_stats")),
    ChatRequest: Truth({"messages": {"minItems": 1}, **_BIASED}),
    CompletionRequest: Truth(_BIASED),
    TokenizeRequest: Truth(whole={"oneOf": [_only("prompt", "messages"), _only("messages", "prompt")]}),
}

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "post", "/v1/chat/completions", "An answer to a conversation, whole or as a stream of events", "generation",
        ChatRequest, ChatCompletion, ChatChunk, failures=(*READING, *WORKING), keyed=True,
    ),
    Operation(
        "post", "/v1/completions", "What follows a text, whole or as a stream of events", "generation",
        CompletionRequest, TextCompletion, TextChunk, failures=(*READING, *WORKING), keyed=True,
    ),
    Operation(
        "post", "/tokenize", "The token ids of a text or of a conversation", "text",
        TokenizeRequest, TokenizeAnswer, failures=(*READING, *WORKING), keyed=True,
    ),
    Operation(
        "post", "/detokenize", "The text of token ids", "text",
        DetokenizeRequest, DetokenizeAnswer, failures=(*READING, *WORKING), keyed=True,
    ),
    Operation(
        "get", "/v1/models", "The served model", "models", answer=operations.ModelList, failures=(503,), keyed=True,
    ),
    Operation(
        "get", "/v1/models/{name}", "One model by its name", "models", answer=operations.Model,
        failures=(404, 503), parameters={"name": "The model's name; it may contain slashes."}, keyed=True,
    ),
    Operation("get", "/health", "Whether this process answers", "operation", answer=operations.Liveness),
    Operation(
        "get", "/ready", "Whether work would be taken", "operation",
        answer=operations.Readiness, others={503: operations.Readiness},
    ),
    Operation("get", "/metrics", "Counters and gauges in Prometheus' text format", "operation", texts=(TEXT,)),
    Operation("get", "/version", "The server's version", "operation", answer=operations.Version),
    Operation("get", "/openapi.json", "This document", "operation", texts=(JSON,)),
    Operation(
        "get", "/", "The chat page, or for who takes JSON, where things are", "operation",
        answer=operations.Index, texts=(HTML,),
    ),
)  # fmt: skip
