"""`/v1/completions`: every form of prompt, `echo`, and old log probabilities; what is refused (B32, B50)."""

from __future__ import annotations

from typing import Any

import pytest

from shared.messages.scheduler import Submit
from tests.frontend.conftest import Deployment
from tests.frontend.scripted_scheduler import Script
from tests.frontend.small_core import END, START, VOCABULARY, make_tokenizer
from tests.frontend.test_refusals import SECRET, check_error


def ids(text: str) -> tuple[int, ...]:
    return tuple(make_tokenizer().encode(text).ids)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("hello", [ids("hello")]),
        (["hello"], [ids("hello")]),
        (["hello", "é"], [ids("hello"), ids("é")]),
        ([5], [(5,)]),
        ([0, VOCABULARY - 1], [(0, VOCABULARY - 1)]),
        ([[5, 6], [7]], [(5, 6), (7,)]),
        ("<|im_start|>x", [(START, ord("x"))]),
    ],
)
def test_forms_of_a_prompt(served: Deployment, prompt: Any, expected: list[tuple[int, ...]]) -> None:
    answer = served.completions.both(prompt=prompt, max_tokens=5)
    assert answer.texts == ["hello"] * len(expected)
    assert [submit.prompt for submit in served.scheduler.of(Submit)] == expected * 2
    assert answer.usage is not None
    assert answer.usage["prompt_tokens"] == sum(len(one) for one in expected)


def test_form_of_an_answer(served: Deployment) -> None:
    served.scheduler.script = Script((*b"hi", END), cached_tokens=1)
    body = served.completions.post().json()
    assert (body["object"], body["model"]) == ("text_completion", "small")
    assert body["choices"] == [{"text": "hi", "index": 0, "logprobs": None, "finish_reason": "stop"}]
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 1}
    assert body["metrics"]["speculative_decoding"]["num_spec_tokens"] == 7
    events = served.completions.stream().events
    assert {event["object"] for event in events} == {"text_completion"}
    assert events[-2]["choices"] == [{"text": "", "index": 0, "logprobs": None, "finish_reason": "stop"}]
    assert events[-1]["choices"] == []


@pytest.mark.parametrize(
    ("prompt", "shown"),
    [
        ("say hé ", "say hé "),
        (list("hé".encode()), "hé"),
        ([START, 0xFF, 5], "<|im_start|>\ufffd\x05"),
        (["a", "b"], None),
    ],
)
@pytest.mark.parametrize("stop", [None, "he", "say"])
def test_echo_brings_the_prompt_first_and_stops_nowhere_in_it(
    served: Deployment, prompt: Any, shown: str | None, stop: str | None
) -> None:
    answer = served.completions.both(prompt=prompt, echo=True, stop=stop, max_tokens=5)
    said = "" if stop == "he" else "hello"
    assert answer.texts == ([f"a{said}", f"b{said}"] if shown is None else [shown + said])
    assert served.completions.both(prompt=prompt, echo=False, max_tokens=5).texts[0] == "hello"


@pytest.mark.parametrize("top", [0, 2, 20])
def test_logprobs_in_the_old_form(served: Deployment, top: int) -> None:
    served.scheduler.script = Script((*"aé".encode(), START, *b"b", END), (3,))
    answer = served.completions.both(logprobs=top)
    tokens, scores, alternatives, offsets = zip(*answer.entries, strict=True)
    assert tokens == ("a", "bytes:\\xc3", "bytes:\\xa9", "<|im_start|>", "b", "<|im_end|>")
    assert scores == pytest.approx([-token / 1000 for token in (*"aé".encode(), START, *b"b", END)])
    assert offsets == (0, 1, 1, 2, 2, 3)
    assert [token in found for token, found in zip(tokens, alternatives, strict=True)] == [True] * 6
    # The script's alternatives begin with the token itself; beyond the tokenizer's last id they have no text.
    assert len(alternatives[0]) == max(1, top)
    assert answer.text == "aéb"


def test_logprobs_end_with_the_text(served: Deployment) -> None:
    served.scheduler.script = Script(tuple(b"abcXYd"), (6,))
    answer = served.completions.both(logprobs=1, stop="XY", max_tokens=6)
    assert [entry[0] for entry in answer.entries] == list("abcXY")
    assert [entry[3] for entry in answer.entries] == [0, 1, 2, 3, 4]
    assert answer.usage is not None
    assert answer.usage["completion_tokens"] == 5


ONE: list[Any] = [[[]], [-1], [VOCABULARY], [1 << 31], [1 << 70], [True], [1.0], [None], [{}]]
TWO: list[Any] = [[1, "a"], ["a", 1], ["a", [1]], [[1], "a"], [1, [1]], [[1], []], [1, -1], [[1], 1], ["a", None]]
NONE: list[Any] = ["", [], [""], {}, None, 5, True, 1.5]
INSIDE: list[Any] = [-1, VOCABULARY, 1 << 70, "a", True, 1.0]
BAD: list[tuple[Any, str]] = [
    *[(value, "prompt") for value in NONE],
    *[(value, "prompt[0]") for value in ONE],
    *[(value, "prompt[1]") for value in TWO],
    *[([[1], [2, value]], "prompt[1][1]") for value in INSIDE],
    (["a", ""], "prompt"),
]


@pytest.mark.parametrize(("prompt", "param"), BAD)
def test_bad_prompts(served: Deployment, prompt: Any, param: str) -> None:
    check_error(served.completions.post(prompt=prompt), 400, param=param)
    assert served.scheduler.of(Submit) == []
    assert served.completions.whole(max_tokens=5).text == "hello"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        *[({"max_tokens": value}, "max_tokens") for value in (0, -1, 5.0, True)],
        ({"min_tokens": 17}, "min_tokens"),
        *[({"logprobs": value}, "logprobs") for value in (-1, 21, 1.0)],
        ({"best_of": 0}, "best_of"),
        ({"echo": 1}, "echo"),
        ({"echo": True, "return_token_sources": True}, "return_token_sources"),
        ({"add_special_tokens": 1}, "add_special_tokens"),
        ({"max_tokes": 5}, "max_tokes"),
    ],
)
def test_bad_values(served: Deployment, fields: dict[str, Any], param: str) -> None:
    check_error(served.completions.post(**fields), 400, param=param)
    assert served.scheduler.of(Submit) == []
    assert served.completions.whole(max_tokens=5).text == "hello"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"suffix": SECRET}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"messages": [{"role": "user", "content": SECRET}]}, "messages"),
        ({"top_logprobs": 1}, "top_logprobs"),
        ({"max_completion_tokens": 1}, "max_completion_tokens"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"truncate_prompt_tokens": 1}, "truncate_prompt_tokens"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"stream": True, "stream_options": {"continuous_usage_stats": True}}, "stream_options.continuous_usage_stats"),
    ],
)
def test_known_but_not_built(served: Deployment, fields: dict[str, Any], param: str) -> None:
    check_error(served.completions.post(**fields), 400, "unsupported_parameter", param)
    assert served.scheduler.of(Submit) == []


def test_best_of_may_equal_n(served: Deployment) -> None:
    assert served.completions.whole(n=2, best_of=2, max_tokens=5).texts == ["hello"] * 2


def test_a_prompt_that_fills_the_context(served: Deployment) -> None:
    for prompt in ("x" * 512, [1] * 512, ["a", "x" * 512], [[1], [1] * 600]):
        check_error(served.completions.post(prompt=prompt), 400, "context_length_exceeded", "prompt")


def test_a_refusal_of_the_scheduler_names_this_endpoints_field(served: Deployment) -> None:
    served.scheduler.script = Script((), failure=("context_length_exceeded", "no pages"), param="messages")
    check_error(served.completions.post(), 400, "context_length_exceeded", "prompt")
    check_error(served.chat.post(), 400, "context_length_exceeded", "messages")


def test_another_model(served: Deployment) -> None:
    check_error(served.completions.post(model="gpt-9"), 404, "model_not_found", "model")
