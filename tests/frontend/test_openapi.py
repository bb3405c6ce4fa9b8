"""The served OpenAPI document: valid, complete, and true to what the server takes and answers (B53)."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator
from starlette.routing import Route

from services.frontend.api import app as application
from services.frontend.api.descriptions import DESCRIPTIONS
from services.frontend.api.openapi import document
from services.frontend.api.order import COMPLETION_TOKENS
from services.frontend.api.schema import MAXIMUM_CHOICES, MAXIMUM_STOP_CHARACTERS, MAXIMUM_STOPS
from services.frontend.api.surface import OPERATIONS
from tests.frontend.client import MESSAGES, PATH
from tests.frontend.conftest import Deployment
from tests.frontend.scripted_scheduler import Script
from tests.frontend.small_core import END

DOCUMENT: dict[str, Any] = json.loads(document())
SCHEMAS: dict[str, Any] = DOCUMENT["components"]["schemas"]
BODIES = [operation.body for operation in OPERATIONS if operation.body is not None]


def validator(name: str) -> jsonschema_rs.Draft202012Validator:
    """Checks against one schema of the document."""
    return jsonschema_rs.Draft202012Validator({"$ref": f"#/components/schemas/{name}", **DOCUMENT})


def test_the_document_is_valid_and_served(served: Deployment) -> None:
    response = served.chat.client.get("/openapi.json")
    assert response.headers["content-type"] == "application/json"
    assert response.json() == DOCUMENT
    OpenAPIV31SpecValidator(DOCUMENT).validate()


def test_every_route_is_in_the_document_and_the_reverse() -> None:
    routed = {
        (method.lower(), route.path.replace(":path}", "}"))
        for route in application.routes(None, None)  # type: ignore[arg-type]  # nothing is served
        if isinstance(route, Route) and route.include_in_schema
        for method in route.methods or ()
        if method != "HEAD"
    }
    assert routed == {(operation.method, operation.path) for operation in OPERATIONS}


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_every_served_field_is_described(body: type[msgspec.Struct]) -> None:
    """`Raw` is the type of those that must stay empty: they are known, and not offered."""
    described = SCHEMAS[body.__name__]
    served = {f.encode_name for f in msgspec.structs.fields(body) if f.type is not msgspec.Raw}
    assert set(described["properties"]) == served
    assert described["additionalProperties"] is False


def test_every_property_of_requests_and_answers_has_a_description() -> None:
    """At the property, where viewers look, and not in one of its alternatives."""
    bare = [
        f"{name}.{field}"
        for name, schema in SCHEMAS.items()
        for field, value in schema.get("properties", {}).items()
        if not value.get("description", "").endswith(".")
    ]
    assert bare == []
    assert {body.__name__ for body in BODIES} | {"Usage", "SpeculativeDecoding", "TextChoice"} <= set(SCHEMAS)


@pytest.mark.parametrize("kind", DESCRIPTIONS, ids=lambda kind: kind.__name__)
def test_no_description_is_left_over(kind: type[msgspec.Struct]) -> None:
    assert set(DESCRIPTIONS[kind]) <= set(kind.__struct_encode_fields__)


def test_ranges_stand_at_the_property() -> None:
    """The alternatives are kinds alone, null among them."""
    for schema in SCHEMAS.values():
        for value in schema.get("properties", {}).values():
            for branch in value.get("anyOf", ()):
                assert set(branch) <= {"$ref", "type", "items", "additionalProperties"}
    temperature = SCHEMAS["ChatRequest"]["properties"]["temperature"]
    assert (temperature["minimum"], temperature["maximum"]) == (0, 2)
    assert temperature["anyOf"] == [{"type": "number"}, {"type": "null"}]
    for name in ("temperature", "top_p", "top_k", "min_p"):
        assert "core's generation default" in SCHEMAS["CompletionRequest"]["properties"][name]["description"]
    budget = SCHEMAS["CompletionRequest"]["properties"]["max_tokens"]["description"]
    assert f"{COMPLETION_TOKENS} tokens" in budget
    assert "clipped" in budget
    assert "a multiple of 64" in SCHEMAS["PromptDetails"]["properties"]["cached_tokens"]["description"]


def test_numbers_in_descriptions_are_those_that_hold() -> None:
    properties = SCHEMAS["ChatRequest"]["properties"]
    assert f"at most {MAXIMUM_CHOICES}" in properties["n"]["description"]
    assert f"up to {MAXIMUM_STOPS} of at most {MAXIMUM_STOP_CHARACTERS} characters" in properties["stop"]["description"]


def test_nothing_that_is_refused_is_offered() -> None:
    text = json.dumps(SCHEMAS)
    for name in ("tool_calls", "image_url", "response_format", "logits_processors"):
        assert f'"{name}"' not in text


def test_answers_are_as_described(served: Deployment) -> None:
    client = served.chat.client
    served.scheduler.script = Script(tuple(b"hello"), (2,))
    fields = {"logprobs": True, "top_logprobs": 2, "max_tokens": 5}
    validator("ChatCompletion").validate(served.chat.post(**fields).json())
    for event in served.chat.stream(**fields).events:
        validator("ChatChunk").validate(event)
    validator("ModelList").validate(client.get("/v1/models").json())
    validator("Readiness").validate(client.get("/ready").json())
    validator("Index").validate(client.get("/", headers={"accept": "application/json"}).json())
    for response in (served.chat.post(temperature=9), client.get("/nothing"), client.put(PATH)):
        validator("ErrorAnswer").validate(response.json())


def test_every_error_that_was_seen_is_declared(served: Deployment) -> None:
    declared = set(DOCUMENT["paths"][PATH]["post"]["responses"])
    client = served.chat.client
    seen = {
        served.chat.post(temperature=9).status_code,
        served.chat.post(model="other").status_code,
        client.post(PATH, content=b"x", headers={"content-type": "text/plain"}).status_code,
        client.post(PATH, content=b"x" * ((1 << 20) + 1)).status_code,
    }
    assert seen == {400, 404, 415, 413}
    assert {str(status) for status in seen} <= declared


@pytest.mark.parametrize(
    ("fields", "valid"),
    [
        ({}, True),
        ({"temperature": None, "stop": None}, True),
        ({"stop": ["a", "b"], "logit_bias": {"5": 1.5}}, True),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]}, True),
        ({"temperature": "1"}, False),
        ({"max_tokens": 1.5}, False),
        ({"max_tokens": 0}, False),
        ({"nobody_knows": 1}, False),
        ({"messages": "x"}, False),
        ({"messages": [{"role": "user", "content": "x", "colour": "red"}]}, False),
        ({"messages": []}, False),
        ({"messages": [{"role": "tool", "content": "x"}]}, False),
        ({"messages": [{"role": "user", "content": None}]}, False),
        ({"messages": [{"role": "user"}]}, False),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, False),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "text": "x"}]}]}, False),
        ({"logit_bias": {"x": 1}}, False),
        ({"logit_bias": {"01": 1}}, False),
        ({"stream": True, "stream_options": {"include_usage": True}}, True),
        ({"stream": True, "stream_options": {"continuous_usage_stats": True}}, False),
        ({"max_tokens": 10**30}, True),
        ({"temperature": 2.5}, False),
        ({"stop": ""}, False),
        ({"stop": []}, True),
    ],
)
def test_document_and_server_agree(served: Deployment, fields: dict[str, Any], valid: bool) -> None:
    body = {"messages": MESSAGES, "max_tokens": 2, **fields}
    assert validator("ChatRequest").is_valid(body) is valid
    served.scheduler.script = Script((*b"hello", END), (2,))
    assert served.chat.client.post(PATH, json=body).status_code == (200 if valid else 400)


@pytest.mark.parametrize(
    ("prompt", "valid"),
    [
        ("x", True),
        (["x", "y"], True),
        ([104, 105], True),
        ([[104], [105, 106]], True),
        ([], False),
        ([[]], False),
        (["x", 5], False),
        ([5, [5]], False),
        ([-1], False),
        ([1.5], False),
        (None, False),
        ({}, False),
    ],
)
def test_document_and_server_agree_on_prompts(served: Deployment, prompt: Any, valid: bool) -> None:
    body = {"prompt": prompt, "max_tokens": 2}
    assert validator("CompletionRequest").is_valid(body) is valid
    assert served.chat.client.post("/v1/completions", json=body).status_code == (200 if valid else 400)
