"""Each field that is served, by its effect on what the scheduler is told, over real HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from shared.messages.common import Sampling
from shared.messages.scheduler import Submit
from tests.frontend.conftest import Deployment
from tests.frontend.small_core import CONTEXT, END, VOCABULARY, make_tokenizer


def submitted(served: Deployment, **fields: Any) -> Submit:
    served.scheduler.received.clear()
    served.chat.whole(**{"max_tokens": 1, **fields})
    [submit] = served.scheduler.of(Submit)
    return submit


def test_defaults_are_those_of_the_core(served: Deployment) -> None:
    submit = submitted(served)
    law = submit.sampling
    assert (law.temperature, law.top_p, law.top_k, law.min_p) == (0.7, 0.9, 20, 0.05)
    assert (law.logprobs, law.min_tokens, law.logit_bias) == (-1, 0, ())
    assert submit.end_ids == (END,)
    text = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert list(submit.prompt) == make_tokenizer().encode(text).ids


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
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
        ({"logprobs": True}, {"logprobs": 0}),
        ({"logprobs": True, "top_logprobs": 20}, {"logprobs": 20}),
        ({"logprobs": False, "top_logprobs": 0}, {"logprobs": -1}),
    ],
)
def test_sampling(served: Deployment, fields: dict[str, Any], expected: dict[str, Any]) -> None:
    law: Sampling = submitted(served, **fields).sampling
    assert {name: getattr(law, name) for name in expected} == expected


def test_a_missing_seed_is_random(served: Deployment) -> None:
    assert len({submitted(served).sampling.seed for _ in range(3)}) == 3


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_output_budget(served: Deployment, name: str) -> None:
    prompt = len(submitted(served).prompt)
    assert submitted(served, **{"max_tokens": None, name: 3}).max_tokens == 3
    assert submitted(served, **{"max_tokens": None, name: 3, "stop": "hello"}).max_tokens == 3
    served.scheduler.script = type(served.scheduler.script)(tokens=(END,))
    assert submitted(served, **{"max_tokens": None, name: 10**30}).max_tokens == CONTEXT - prompt
    assert submitted(served, max_tokens=None).max_tokens == CONTEXT - prompt
    assert submitted(served, max_tokens=4, max_completion_tokens=4).max_tokens == 4


def test_ignore_eos_clears_the_end_tokens(served: Deployment) -> None:
    assert submitted(served, ignore_eos=True).end_ids == ()
    assert submitted(served, ignore_eos=False).end_ids == (END,)


@pytest.mark.parametrize("content", ["one\ntwo", [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]])
@pytest.mark.parametrize(("role", "shown"), [("user", "user"), ("developer", "system"), ("assistant", "assistant")])
def test_roles_and_parts(served: Deployment, content: Any, role: str, shown: str) -> None:
    submit = submitted(served, messages=[{"role": role, "content": content, "name": "n", "tool_calls": None}])
    text = f"<|im_start|>{shown}\none\ntwo<|im_end|>\n<|im_start|>assistant\n"
    assert list(submit.prompt) == make_tokenizer().encode(text).ids


def test_neutral_values_of_fields_not_built_ask_for_nothing(served: Deployment) -> None:
    neutral: dict[str, Any] = {"n": 1, "tools": [], "tool_choice": "none", "response_format": {"type": "text"}}
    neutral |= {"user": "somebody", "model": "small", "functions": None, "stop": [], "echo": False, "store": False}
    neutral |= {"best_of": 1, "stop_token_ids": [], "add_generation_prompt": True, "stream_options": None}
    assert submitted(served, **neutral).max_tokens == 1


def test_request_ids_travel(served: Deployment) -> None:
    client = served.chat.client
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    for wanted, kept in (("trace-1.a:b", True), ("a/b", False), ("x" * 65, False), ("é", False)):
        headers = {b"x-request-id": wanted.encode()}
        response = client.post("/v1/chat/completions", json=body, headers=headers)
        given = response.headers["x-request-id"]
        assert (given == wanted) == kept
        assert response.json()["id"] == f"chatcmpl-{given}"
        assert served.scheduler.of(Submit)[-1].request == given
    again = client.post("/v1/chat/completions", json=body, headers={"x-request-id": "trace-1.a:b"})
    assert again.headers["x-request-id"].startswith("trace-1.a:b-")
    assert client.get("/health").headers["x-request-id"]
