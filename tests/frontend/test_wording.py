"""What a newcomer is told: errors that say in JSON's words what is wrong and what to send instead (B49, B53)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from services.frontend.api.decoding import decode
from services.frontend.api.known import ENDPOINTS, NOT_BUILT
from services.frontend.api.surface import OPERATIONS
from services.frontend.api.tokens import TokenizeRequest
from shared.errors import InvalidRequest, RequestError
from tests.frontend.client import COMPLETIONS, MESSAGES, PATH
from tests.frontend.conftest import Deployment
from tests.frontend.test_refusals import SECRET, check_error


def refusal(body: Any, path: str = PATH) -> RequestError:
    """What the decoding of a body raises."""
    raw = body if isinstance(body, bytes) else msgspec.json.encode(body)
    with pytest.raises(InvalidRequest) as caught:
        decode(ENDPOINTS[path], raw)
    assert SECRET not in str(caught.value)
    return caught.value


def told(path: str = PATH, **fields: Any) -> str:
    return str(refusal({"messages": MESSAGES, **fields} if path == PATH else {"prompt": "x", **fields}, path))


def turn(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "x", **fields}]}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_tokens": "5"}, "max_tokens must be an integer or null, not a string"),
        ({"max_tokens": True}, "max_tokens must be an integer or null, not a boolean"),
        ({"max_tokens": 5.0}, "max_tokens must be an integer or null, not a number with a fraction or an exponent"),
        ({"max_tokens": 0}, "max_tokens must be at least 1"),
        ({"temperature": "1"}, "temperature must be a number or null, not a string"),
        ({"temperature": 3}, "temperature must be at most 2"),
        ({"top_p": 0}, "top_p must be above 0"),
        ({"repetition_penalty": 0}, "repetition_penalty must be at least 0.01"),
        ({"stream": 1}, "stream must be a boolean or null, not an integer"),
        ({"stop": [""]}, "stop[0] must not be empty"),
        ({"stop": ""}, "stop must not be empty"),
        ({"stop": 5}, "stop must be a string, an array or null, not an integer"),
        ({"stop": ["x" * 5000]}, "stop[0] must have at most 4096 characters"),
        ({"stop": ["x"] * 17}, "stop must have at most 16 items"),
        ({"logit_bias": {SECRET: "1"}}, "each value of logit_bias must be a number, not a string"),
        ({"logit_bias": {SECRET: 101}}, "each value of logit_bias must be at most 100"),
        ({"logit_bias": []}, "logit_bias must be an object or null, not an array"),
        ({"messages": None}, "messages must be an array, not null"),
        ({"messages": ["x"]}, "messages[0] must be an object, not a string"),
        ({"messages": [{"content": SECRET}]}, "messages[0].role is required"),
        (turn(content=5), "messages[0].content must be a string, an array or null, not an integer"),
    ],
)
def test_kinds_and_ranges_in_the_words_of_json(fields: dict[str, Any], message: str) -> None:
    assert told(**fields) == message


@pytest.mark.parametrize(
    ("path", "body", "message", "param"),
    [
        (PATH, {}, "messages is required", "messages"),
        (COMPLETIONS, {}, "prompt is required", "prompt"),
        (COMPLETIONS, [], "the body must be an object, not an array", None),
        (PATH, b"null", "the body must be an object, not null", None),
        (PATH, b'{"messages": 1e999}', "messages is out of range", "messages"),
        (PATH, b'{"messages": [{"role": "user", "content": "\xff"}]}', "the body is not valid UTF-8 (byte 43)", None),
        (PATH, "{}".encode("utf-16"), "the body is not valid UTF-8 (byte 0)", None),
        (PATH, b'{"messages": [}', "the body is not valid JSON: malformed (byte 14)", None),
        (PATH, b"{", "the body is not valid JSON: malformed or cut short", None),
    ],
)
def test_bodies_as_a_whole(path: str, body: Any, message: str, param: str | None) -> None:
    error = refusal(body, path)
    assert (str(error), error.param) == (message, param)


@pytest.mark.parametrize(
    ("path", "name", "message"),
    [
        (PATH, "prompt", f"prompt belongs to {COMPLETIONS}; {PATH} takes messages"),
        (PATH, "echo", f"echo belongs to {COMPLETIONS}; {PATH} does not take it"),
        (COMPLETIONS, "messages", f"messages belongs to {PATH}; {COMPLETIONS} takes prompt"),
        (COMPLETIONS, "top_logprobs", f"top_logprobs belongs to {PATH}; {COMPLETIONS} takes logprobs"),
    ],
)
def test_a_field_of_the_other_endpoint(path: str, name: str, message: str) -> None:
    error = refusal({name: [SECRET]}, path)
    assert (str(error), error.param, error.code) == (message, name, "unsupported_parameter")


def test_every_field_of_one_endpoint_alone_is_sent_to_it() -> None:
    """Also from `/tokenize`, and whatever fields there will be."""
    served = {operation.path: operation.body for operation in OPERATIONS}
    assert all(served[path] is body for path, body in ENDPOINTS.items())
    for path, body in ENDPOINTS.items():
        [other] = set(ENDPOINTS) - {path}
        mine = set(body.__struct_encode_fields__)
        for name in mine - set(ENDPOINTS[other].__struct_encode_fields__):
            assert told(other, **{name: [SECRET]}).startswith(f"{name} belongs to {path}; {other} ")
    with pytest.raises(InvalidRequest, match=f"^max_tokens belongs to {PATH} and {COMPLETIONS}$"):
        decode(TokenizeRequest, b'{"prompt": "x", "max_tokens": 5}', {})


@pytest.mark.parametrize(
    ("fields", "field", "meant"),
    [
        ({"max_tokes": 5}, "max_tokes", "max_tokens"),
        ({"maxTokens": 5}, "maxTokens", "max_tokens"),
        ({"max_new_tokens": 5}, "max_new_tokens", "max_tokens"),
        ({"temprature": 5}, "temprature", "temperature"),
        ({"top-p": 5}, "top-p", "top_p"),
        ({"response_formt": {}}, "response_formt", "response_format"),
        ({"stream_options": {"include_usge": True}}, "stream_options.include_usge", "include_usage"),
        (turn(contents="x"), "messages[0].contents", "content"),
        ({"messages": [{"role": "user", "content": [{"txt": "x"}]}]}, "messages[0].content[0].txt", "text"),
        ({"colour_of_it": SECRET}, "colour_of_it", None),
        (turn(colour=SECRET), "messages[0].colour", None),
    ],
)
def test_a_misspelt_field(fields: dict[str, Any], field: str, meant: str | None) -> None:
    hint = f"; did you mean {meant}?" if meant else ""
    assert told(**fields) == f"Unrecognized request argument supplied: {field}{hint}"


def test_every_field_is_found_by_a_misspelling() -> None:
    for body in ENDPOINTS.values():
        for name in {*body.__struct_encode_fields__, *NOT_BUILT}:
            raw = msgspec.json.encode({name.title().replace("_", "") + "_": 1})
            with pytest.raises(InvalidRequest, match=f"did you mean {name}\\?$"):
                decode(body, raw)


def test_a_strange_name_is_cut_and_printable(served: Deployment) -> None:
    for fields in ({"max_tokens\n\x1b[31m" + "k" * 9000: 1}, turn(**{"content\n\x1b" + "k" * 9000: 1})):
        response = served.chat.post(**fields)
        check_error(response, 400, "invalid_request")
        assert len(response.content) < 400
        assert response.json()["error"]["message"].isprintable()


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/v1/v1/chat/completions", PATH),
        ("/chat/completions", PATH),
        ("/v1/chat/completions/", PATH),
        ("/V1/Chat/Completions", PATH),
        ("//v1//chat//completions", PATH),
        ("/openai/v1/chat/completions", PATH),
        ("/v1/chat/completion", PATH),
        ("/v1/v1/completions", COMPLETIONS),
        ("/completions", COMPLETIONS),
        ("/models", "/v1/models"),
        ("/v1/models/", "/v1/models"),
        ("/v1/tokenize", "/tokenize"),
        ("/v1/health", "/health"),
        ("/healthz", "/health"),
        ("/v1", None),
        ("/v1/embeddings", None),
        (f"/{SECRET}", None),
        ("/v1/" * 2000 + "completions", None),
    ],
)
def test_a_path_that_is_nearly_one(served: Deployment, path: str, meant: str | None) -> None:
    url = served.chat.client.base_url.copy_with(raw_path=path.encode())
    response = served.chat.client.post(url, json={}) if meant in ENDPOINTS else served.chat.client.get(url)
    check_error(response, 404, "not_found", None)
    hint = f": did you mean {meant}?" if meant else ""
    assert response.json()["error"]["message"] == f"there is nothing at this path{hint}"


@pytest.mark.parametrize("path", [PATH, COMPLETIONS, "/tokenize", "/detokenize", f"/v1/models/{SECRET}"])
def test_another_model_is_not_told_back(served: Deployment, path: str) -> None:
    client = served.chat.client
    bodies: dict[str, dict[str, Any]] = {PATH: {"messages": MESSAGES}, "/detokenize": {"tokens": [1]}}
    body = bodies.get(path, {"prompt": "x"})
    response = client.get(path) if SECRET in path else client.post(path, json={"model": SECRET, **body})
    check_error(response, 404, "model_not_found", "model")
    message = response.json()["error"]["message"]
    assert message == "the model that was asked for is not served here; this server serves small"
