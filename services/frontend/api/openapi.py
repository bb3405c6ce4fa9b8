"""`GET /openapi.json`: the OpenAPI 3.1 document of this API, made from the structs that decode and encode it.

Pure but for the answer; frontend process. What the document calls valid is not refused for its shape: fields that are
known but not served are left out, and nothing besides the fields is allowed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from services.frontend.api.descriptions import DESCRIPTIONS, described
from services.frontend.api.errors import ErrorAnswer
from services.frontend.api.operations import VERSION
from services.frontend.api.surface import EVENTS, JSON, OPERATIONS, TRUTHS, Operation, Truth

Json = dict[str, Any]
"""A piece of the document: free JSON, whose form OpenAPI's own schema checks in a test."""

REFERENCE = "#/components/schemas/{name}"
KEY = "key"
_DESCRIPTION = (
    "OpenAI's API as far as this server serves it. A null is the same as leaving the field out. Integers are written "
    "without a fraction: 5.0 is refused where 5 is meant. A field that this document does not have is refused by name, "
    "never ignored, unless its value asks for nothing. Each answer bears `X-Request-Id`, the request's own if it is "
    "clean and new."
)
_EVENT = "One server-sent event: a part of the answer, an error that ends the stream, or `[DONE]`, its regular end."


_HOISTED = frozenset(
    {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength", "minItems", "maxItems"}
    | {"minProperties", "maxProperties"}
)
"""Ranges, each of which binds values of one type alone, so that it may stand beside the alternatives."""


def _told(value: Json, description: str) -> Json:
    """A property with its description, and with the ranges of its alternatives where viewers show them."""
    branches = value.get("anyOf", ())
    ranges = {key: limit for branch in branches for key, limit in branch.items() if key in _HOISTED}
    if branches:
        bare = [{key: item for key, item in branch.items() if key not in _HOISTED} for branch in branches]
        value = {**value, "anyOf": bare}
    return {"description": description, **value, **ranges}


def _request(schema: Json, truth: Truth) -> Json:
    """A request's object as the client sees it. A property of any type is one that must be empty."""
    served = {
        name: {**value, **truth.properties.get(name, {})}
        for name, value in schema["properties"].items()
        if set(value) - {"default"} and name not in truth.unserved
    }
    for name in truth.required:
        served[name].pop("default", None)
    required = [*schema.get("required", ()), *truth.required]
    return {**schema, "properties": served, "required": required, "additionalProperties": False, **truth.whole}


def _components() -> tuple[dict[type, Json], Json]:
    """References by struct, and all schemas by name."""
    taken = [operation.body for operation in OPERATIONS if operation.body is not None]
    given = [kind for operation in OPERATIONS for kind in (operation.answer, operation.event) if kind is not None]
    given += [kind for operation in OPERATIONS for kind in operation.others.values()]
    kinds: list[type] = list(dict.fromkeys((*taken, *given, ErrorAnswer)))
    references, schemas = msgspec.json.schema_components(kinds, ref_template=REFERENCE)
    _, requests = msgspec.json.schema_components(taken, ref_template=REFERENCE)
    truths = {kind.__name__: truth for kind, truth in TRUTHS.items()}
    schemas |= {
        name: _request(schemas[name], truths.get(name, Truth())) for name in requests if "properties" in schemas[name]
    }
    for kind in DESCRIPTIONS:
        properties = schemas.get(kind.__name__, {}).get("properties", {})
        properties |= {
            name: _told(properties[name], text) for name, text in described(kind).items() if name in properties
        }
    return dict(zip(kinds, references, strict=True)), schemas


def _content(operation: Operation, references: Mapping[type, Json]) -> Json:
    content: Json = {kind: {"schema": {} if kind == JSON else {"type": "string"}} for kind in operation.texts}
    if operation.answer is not None:
        content[JSON] = {"schema": references[operation.answer]}
    if operation.event is not None:
        told = {"anyOf": [references[operation.event], references[ErrorAnswer]]}
        data = {"type": "string", "anyOf": [{"const": "[DONE]"}, {"contentMediaType": JSON, "contentSchema": told}]}
        content[EVENTS] = {
            "schema": {"type": "object", "description": _EVENT, "properties": {"data": data}, "required": ["data"]}
        }
    return content


def _answers(operation: Operation, references: Mapping[type, Json]) -> Json:
    error = {JSON: {"schema": references[ErrorAnswer]}}
    answers: Json = {"200": {"description": operation.summary, "content": _content(operation, references)}}
    for status in (*operation.failures, *((401,) if operation.keyed else ())):
        answers[str(status)] = {"description": HTTPStatus(status).phrase, "content": error}
    for status, kind in operation.others.items():
        answers[str(status)] = {
            "description": HTTPStatus(status).phrase,
            "content": {JSON: {"schema": references[kind]}},
        }
    return answers


def _operation(operation: Operation, references: Mapping[type, Json]) -> Json:
    made: Json = {
        "operationId": operation.method + "".join(c if c.isalnum() else "_" for c in operation.path).rstrip("_"),
        "summary": operation.summary,
        "tags": [operation.tag],
        "responses": _answers(operation, references),
        "security": [{}, {KEY: []}] if operation.keyed else [],
    }
    if operation.parameters:
        made["parameters"] = [
            {"name": name, "in": "path", "required": True, "description": text, "schema": {"type": "string"}}
            for name, text in operation.parameters.items()
        ]
    if operation.body is not None:
        made["requestBody"] = {"required": True, "content": {JSON: {"schema": references[operation.body]}}}
    return made


def _paths(operations: Iterable[Operation], references: Mapping[type, Json]) -> Json:
    paths: Json = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation, references)
    return paths


@cache
def document() -> bytes:
    """The document as JSON, made once."""
    references, schemas = _components()
    keys = {"type": "http", "scheme": "bearer", "description": "Needed where the server was started with API keys."}
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {"title": "Flare", "version": VERSION, "description": _DESCRIPTION},
            "paths": _paths(OPERATIONS, references),
            "components": {"schemas": schemas, "securitySchemes": {KEY: keys}},
        }
    )


async def answer(request: Request) -> Response:
    """`GET /openapi.json`."""
    return Response(document(), media_type=JSON)
