"""Requests that cannot be served: a clear error that names the field, small, without content (B49, B50, B53, B55)."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from shared.messages.scheduler import Submit
from tests.frontend.client import PATH
from tests.frontend.conftest import Deployment
from tests.frontend.scripted_scheduler import Script
from tests.frontend.small_core import CONTEXT, VOCABULARY

SECRET = "zebra-secret"


def check_error(response: httpx.Response, status: int, code: str | None = None, param: str | None = "any") -> None:
    assert response.status_code == status, response.text
    assert len(response.content) < 8192
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert SECRET not in response.text
    if code is not None:
        assert error["code"] == code
    if param != "any":
        assert error["param"] == param


def user(content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}]}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        *[({"temperature": value}, "temperature") for value in (-0.1, 2.1, 1e30, "1", True)],
        *[({"top_p": value}, "top_p") for value in (0, 1.1, -1)],
        *[({"top_k": value}, "top_k") for value in (-2, 1.5, 1 << 40)],
        *[({"min_p": value}, "min_p") for value in (-1, 2)],
        *[({"seed": value}, "seed") for value in (1 << 64, -(1 << 63) - 1, 1.0, "1", True)],
        *[({"max_tokens": value}, "max_tokens") for value in (0, -1, 5.0, "5", True)],
        *[({"max_completion_tokens": value}, "max_completion_tokens") for value in (0, 1e3)],
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_completion_tokens"),
        *[({"min_tokens": value}, "min_tokens") for value in (-1, CONTEXT)],
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        *[({"stop": value}, "stop") for value in ("", ["x"] * 17, 5, "x" * 5000)],
        *[({"stop": value}, f"stop[{len(value) - 1}]") for value in ([""], ["x", ""], [5], ["x" * 5000])],
        *[({"frequency_penalty": value}, "frequency_penalty") for value in (-2.1, 2.1)],
        *[({"presence_penalty": value}, "presence_penalty") for value in (-2.1, 2.1)],
        *[({"repetition_penalty": value}, "repetition_penalty") for value in (0, -1, 101)],
        *[({"logit_bias": {key: 1}}, "logit_bias") for key in ("-1", "abc", "1.0", str(VOCABULARY), "9" * 30, "٣")],
        *[({"logit_bias": {"1": value}}, "logit_bias") for value in (1e9, -101)],
        ({"logit_bias": {str(key): 1 for key in range(10_000)}}, "logit_bias"),
        ({"logit_bias": {"1": "2"}}, "logit_bias"),
        *[({"n": value}, "n") for value in (0, -1, 129, 1 << 70, True, 1.0)],
        *[({"stop_token_ids": [1, value]}, "stop_token_ids[1]") for value in (-1, VOCABULARY, 1 << 70, True, "1")],
        *[({"stop_token_ids": value}, "stop_token_ids") for value in (1, [*range(16)], [*range(17)])],
        ({"include_stop_str_in_output": 1}, "include_stop_str_in_output"),
        ({"skip_special_tokens": "no"}, "skip_special_tokens"),
        ({"return_token_sources": 1}, "return_token_sources"),
        ({"add_generation_prompt": True, "continue_final_message": True}, "continue_final_message"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"nonsense": 1}}, "chat_template_kwargs.nonsense"),
        ({"logprobs": 3}, "logprobs"),
        *[({"logprobs": True, "top_logprobs": value}, "top_logprobs") for value in (21, -1, 1.0)],
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x"),
        ({"ignore_eos": 1}, "ignore_eos"),
        ({"max_tokes": 5}, "max_tokes"),
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": [{"role": "king", "content": SECRET}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "a", "colour": SECRET}]}, "messages[0].colour"),
        ({"messages": [{"content": "a"}]}, "messages[0].role"),
        (user([{"type": "text"}]), "messages[0].content[0].text"),
        (user([{"type": "text", "text": "a"}, {"type": "haiku", "text": SECRET}]), "messages[0].content[1].type"),
        (user([5] * 3000), "messages[0].content[0]"),
        (user("refuse me"), "messages"),
    ],
)
def test_bad_values(served: Deployment, fields: dict[str, Any], param: str) -> None:
    check_error(served.chat.post(**fields), 400, param=param)
    assert served.scheduler.of(Submit) == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"audio": {}}, "audio"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"prediction": {"type": "content", "content": SECRET}}, "prediction"),
        ({"guided_json": {}}, "guided_json"),
        ({"best_of": 2}, "best_of"),
        ({"echo": True}, "echo"),
        ({"suffix": SECRET}, "suffix"),
        ({"metadata": {"a": "b"}}, "metadata"),
        ({"stream": True, "stream_options": {"continuous_usage_stats": True}}, "stream_options.continuous_usage_stats"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "assistant", "content": "x", "tool_calls": [1]}]}, "messages[0].tool_calls"),
        (user([{"type": "image_url", "image_url": {"url": SECRET}}]), "messages[0].content[0].type"),
    ],
)
def test_known_but_not_built(served: Deployment, fields: dict[str, Any], param: str) -> None:
    check_error(served.chat.post(**fields), 400, "unsupported_parameter", param)
    assert served.scheduler.of(Submit) == []


def test_another_model(served: Deployment) -> None:
    check_error(served.chat.post(model="gpt-9"), 404, "model_not_found", "model")


def test_a_prompt_that_fills_the_context(served: Deployment) -> None:
    check_error(served.chat.post(**user("x" * CONTEXT)), 400, "context_length_exceeded", "messages")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"\xff\xfe",
        b'{"messages": ' + b"[" * 100_000,
        b'{"tools": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"temperature": NaN}',
        b'{"' + b"k" * 100_000 + b'": 1}',
        b'{"messages": [{"role": "user", "content": "a", "' + b"k" * 100_000 + b'": 1}]}',
        b'{"temperature": 1' + b"0" * 5000 + b"}",
        b'{"seed": 1' + b"0" * 5000 + b"}",
    ],
)
def test_bodies_that_are_no_request(served: Deployment, body: bytes) -> None:
    check_error(served.chat.client.post(PATH, content=body), 400)


def test_unknown_paths_and_methods(served: Deployment) -> None:
    client = served.chat.client
    check_error(client.get("/nowhere"), 404, "not_found")
    check_error(client.get(PATH), 405, "method_not_allowed")
    check_error(client.get("/v1/models/other"), 404, "model_not_found")


@pytest.mark.parametrize(
    ("code", "status"), [("overloaded", 429), ("context_length_exceeded", 400), ("round_failed", 500), ("new", 500)]
)
@pytest.mark.parametrize("stream", [False, True])
def test_early_failures_keep_their_status(served: Deployment, code: str, status: int, stream: bool) -> None:
    served.scheduler.script = Script(tokens=(), failure=(code, "no"))
    response = served.chat.post(stream=stream)
    check_error(response, status, code if code != "new" else "request_error")
    assert ("retry-after" in response.headers) == (status == 429)
