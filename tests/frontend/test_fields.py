"""Each field that is served, by its effect on what the scheduler is told or on the text, on both endpoints (B53)."""

from __future__ import annotations

from typing import Any

import pytest

from shared.messages.common import Sampling
from shared.messages.scheduler import Submit
from tests.frontend.client import COMPLETIONS, PATH
from tests.frontend.conftest import Deployment
from tests.frontend.scripted_scheduler import Script
from tests.frontend.small_core import CONTEXT, END, START, VOCABULARY, make_tokenizer

both_endpoints = pytest.mark.parametrize("path", [PATH, COMPLETIONS])


def submitted(served: Deployment, path: str = PATH, **fields: Any) -> Submit:
    served.scheduler.received.clear()
    served.at(path).whole(**{"max_tokens": 1, **fields})
    [submit] = served.scheduler.of(Submit)
    return submit


def ids(text: str) -> list[int]:
    found: list[int] = make_tokenizer().encode(text).ids
    return found


@both_endpoints
def test_defaults_are_those_of_the_core(served: Deployment, path: str) -> None:
    submit = submitted(served, path)
    law = submit.sampling
    assert (law.temperature, law.top_p, law.top_k, law.min_p) == (0.7, 0.9, 20, 0.05)
    assert (law.logprobs, law.min_tokens, law.logit_bias) == (-1, 0, ())
    assert submit.end_ids == (END,)
    text = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert list(submit.prompt) == ids(text if path == PATH else "hi")


SAMPLING: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"temperature": 0}, {"temperature": 0.0}),
    ({"temperature": 1e-9}, {"temperature": 0.0}),
    ({"temperature": 1e-4}, {"temperature": 1e-4}),
    ({"temperature": 2.0}, {"temperature": 2.0}),
    ({"temperature": None}, {"temperature": 0.7}),
    ({"top_p": 0.5}, {"top_p": 0.5}),
    ({"top_p": 1}, {"top_p": 1.0}),
    ({"top_k": 5}, {"top_k": 5}),
    ({"top_k": 0}, {"top_k": 0}),
    ({"top_k": -1}, {"top_k": 0}),
    ({"top_k": 1 << 31}, {"top_k": VOCABULARY}),
    ({"min_p": 0.25}, {"min_p": 0.25}),
    ({"seed": 0}, {"seed": 0}),
    ({"seed": -1}, {"seed": (1 << 64) - 1}),
    ({"seed": (1 << 64) - 1}, {"seed": (1 << 64) - 1}),
    ({"seed": -(1 << 63)}, {"seed": 1 << 63}),
    ({"frequency_penalty": -2}, {"frequency_penalty": -2.0}),
    ({"presence_penalty": 1.5}, {"presence_penalty": 1.5}),
    ({"repetition_penalty": 1.1}, {"repetition_penalty": 1.1}),
    ({"logit_bias": {"7": -100, "3": 1.5}}, {"logit_bias": ((3, 1.5), (7, -100.0))}),
    ({"logit_bias": {}}, {"logit_bias": ()}),
    ({"min_tokens": 2, "max_tokens": 2}, {"min_tokens": 2}),
]


@both_endpoints
@pytest.mark.parametrize(("fields", "expected"), SAMPLING)
def test_sampling(served: Deployment, path: str, fields: dict[str, Any], expected: dict[str, Any]) -> None:
    law: Sampling = submitted(served, path, **fields).sampling
    assert {name: getattr(law, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("path", "fields", "expected"),
    [
        (PATH, {"logprobs": True}, 0),
        (PATH, {"logprobs": True, "top_logprobs": 20}, 20),
        (PATH, {"logprobs": False, "top_logprobs": 0}, -1),
        (COMPLETIONS, {"logprobs": 0}, 0),
        (COMPLETIONS, {"logprobs": 20}, 20),
        (COMPLETIONS, {"logprobs": None}, -1),
    ],
)
def test_logprobs(served: Deployment, path: str, fields: dict[str, Any], expected: int) -> None:
    assert submitted(served, path, **fields).sampling.logprobs == expected


@both_endpoints
def test_a_missing_seed_is_random(served: Deployment, path: str) -> None:
    assert len({submitted(served, path).sampling.seed for _ in range(3)}) == 3


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_output_budget_of_a_chat(served: Deployment, name: str) -> None:
    prompt = len(submitted(served).prompt)
    assert submitted(served, PATH, **{"max_tokens": None, name: 3}).max_tokens == 3
    assert submitted(served, PATH, **{"max_tokens": None, name: 3, "stop": "hello"}).max_tokens == 3
    served.scheduler.script = Script(tokens=(END,))
    assert submitted(served, PATH, **{"max_tokens": None, name: 10**30}).max_tokens == CONTEXT - prompt
    assert submitted(served, max_tokens=None).max_tokens == CONTEXT - prompt
    assert submitted(served, max_tokens=4, max_completion_tokens=4).max_tokens == 4


def test_output_budget_of_a_completion(served: Deployment) -> None:
    served.scheduler.script = Script(tokens=(END,))
    assert submitted(served, COMPLETIONS, max_tokens=None).max_tokens == 16
    assert submitted(served, COMPLETIONS, max_tokens=3).max_tokens == 3
    assert submitted(served, COMPLETIONS, max_tokens=10**30).max_tokens == CONTEXT - len(ids("hi"))
    assert submitted(served, COMPLETIONS, prompt=[1] * (CONTEXT - 5), max_tokens=None).max_tokens == 5


@both_endpoints
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"ignore_eos": True}, ()),
        ({"ignore_eos": False}, (END,)),
        ({"stop_token_ids": []}, (END,)),
        ({"stop_token_ids": [7, 3, 7, END]}, (END, 7, 3)),
        ({"stop_token_ids": [*range(15)]}, (END, *range(15))),
        ({"stop_token_ids": [*range(16)], "ignore_eos": True}, tuple(range(16))),
    ],
)
def test_end_tokens(served: Deployment, path: str, fields: dict[str, Any], expected: tuple[int, ...]) -> None:
    assert submitted(served, path, **fields).end_ids == expected


@both_endpoints
@pytest.mark.parametrize(
    ("fields", "text", "count"),
    [
        ({}, "abcXYd", 8),
        ({"stop": []}, "abcXYd", 8),
        ({"stop": "XY"}, "abc", 5),
        ({"stop": ["Y", "XY"]}, "abc", 5),
        ({"stop": "XY", "include_stop_str_in_output": True}, "abcXY", 5),
        ({"stop": ["q"], "include_stop_str_in_output": True}, "abcXYd", 8),
        ({"stop_token_ids": [ord("X")]}, "abc", 4),
        ({"stop_token_ids": [ord("X")], "include_stop_str_in_output": True}, "abcX", 4),
        ({"stop_token_ids": [ord("X")], "ignore_eos": True}, "abc", 4),
        ({"stop": "X", "min_tokens": 5}, "abcXYd", 8),
        ({"stop": "Y", "min_tokens": 5}, "abcX", 5),
        ({"skip_special_tokens": True}, "abcXYd", 8),
        ({"skip_special_tokens": False}, "abcXY<|im_start|>d", 8),
        ({"skip_special_tokens": False, "include_stop_str_in_output": True}, "abcXY<|im_start|>d<|im_end|>", 8),
    ],
)
@pytest.mark.parametrize("rounds", [(1,), (8,)])
def test_what_ends_a_text_and_what_is_shown(
    served: Deployment, path: str, fields: dict[str, Any], text: str, count: int, rounds: tuple[int, ...]
) -> None:
    served.scheduler.script = Script((*b"abcXY", START, *b"d", END, *b"more"), rounds)
    answer = served.at(path).both(max_tokens=20, **fields)
    assert (answer.text, answer.finish) == (text, "stop")
    assert answer.usage is not None
    assert answer.usage["completion_tokens"] == count


@pytest.mark.parametrize("content", ["one\ntwo", [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]])
@pytest.mark.parametrize(("role", "shown"), [("user", "user"), ("developer", "system"), ("assistant", "assistant")])
def test_roles_and_parts(served: Deployment, content: Any, role: str, shown: str) -> None:
    submit = submitted(served, messages=[{"role": role, "content": content, "name": "n", "tool_calls": None}])
    text = f"<|im_start|>{shown}\none\ntwo<|im_end|>\n<|im_start|>assistant\n"
    assert list(submit.prompt) == ids(text)


@pytest.mark.parametrize(
    ("fields", "ending"),
    [
        ({}, "<|im_end|>\n<|im_start|>assistant\n"),
        ({"add_generation_prompt": True, "continue_final_message": False}, "<|im_end|>\n<|im_start|>assistant\n"),
        ({"add_generation_prompt": False}, "<|im_end|>\n"),
        ({"continue_final_message": True}, ""),
        ({"continue_final_message": True, "add_generation_prompt": False}, ""),
    ],
)
def test_how_a_prompt_ends(served: Deployment, fields: dict[str, Any], ending: str) -> None:
    submit = submitted(served, messages=[{"role": "assistant", "content": "It is"}], **fields)
    assert list(submit.prompt) == ids("<|im_start|>assistant\nIt is" + ending)


@both_endpoints
def test_neutral_values_of_fields_not_built_ask_for_nothing(served: Deployment, path: str) -> None:
    neutral: dict[str, Any] = {"n": 1, "tools": [], "tool_choice": "none", "response_format": {"type": "text"}}
    neutral |= {"safety_identifier": "somebody", "prompt_cache_key": "somebody's"}
    neutral |= {"user": "somebody", "model": "small", "functions": None, "stop": [], "echo": False, "store": False}
    neutral |= {"best_of": 1, "add_special_tokens": False, "stream_options": None, "continue_final_message": False}
    neutral |= {"service_tier": "auto", "metadata": {}, "length_penalty": 1.0, "stream": False}
    assert submitted(served, path, **neutral).max_tokens == 1


@pytest.mark.parametrize(("path", "prefix"), [(PATH, "chatcmpl-"), (COMPLETIONS, "cmpl-")])
def test_request_ids_travel(served: Deployment, path: str, prefix: str) -> None:
    client, name = served.chat.client, f"trace.{prefix}:b"
    body = {"messages": [{"role": "user", "content": "hi"}]} if path == PATH else {"prompt": "hi"}
    for wanted, kept in ((name, True), ("a/b", False), ("x" * 65, False), ("é", False)):
        headers = {b"x-request-id": wanted.encode()}
        response = client.post(path, json={**body, "max_tokens": 1}, headers=headers)
        given = response.headers["x-request-id"]
        assert (given == wanted) == kept
        assert response.json()["id"] == f"{prefix}{given}"
        assert served.scheduler.of(Submit)[-1].request == given
    again = client.post(path, json={**body, "max_tokens": 1}, headers={"x-request-id": name})
    assert again.headers["x-request-id"].startswith(f"{name}-")
    assert client.get("/health").headers["x-request-id"]
