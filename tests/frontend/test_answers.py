"""Answers over real HTTP: streamed equals whole, and text, log probabilities and usage end together (B04, B10, B21)."""

from __future__ import annotations

import random
from typing import Any

import pytest

from shared.messages.scheduler import StoppedAt, Submit
from tests.frontend.client import COMPLETIONS, PATH, Answer
from tests.frontend.conftest import Deployment
from tests.frontend.scripted_scheduler import EPOCH, Script
from tests.frontend.small_core import END, START, THINK


def both(served: Deployment, script: Script, path: str = PATH, **fields: Any) -> Answer:
    """The same request whole and streamed; they must agree."""
    served.scheduler.script = script
    return served.at(path).both(**fields)


def test_form_of_a_stream(served: Deployment) -> None:
    served.scheduler.script = Script(tokens=(*b"hello", END), rounds=(2,), pause_s=0.02, cached_tokens=5)
    answer = served.chat.stream()
    first, *middle, finish, last = answer.events
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all(event["choices"][0]["delta"]["content"] for event in middle)
    assert finish["choices"][0] == {"delta": {}, "index": 0, "logprobs": None, "finish_reason": "stop"}
    assert last["choices"] == []
    assert all(event["usage"] is None for event in answer.events[:-1])
    assert {event["id"] for event in answer.events} == {first["id"]}
    assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": 5}
    assert last["metrics"]["speculative_decoding"]["num_spec_tokens"] == 7


def test_usage_only_when_asked(served: Deployment) -> None:
    served.scheduler.script = Script(tokens=(*b"hi", END))
    with served.chat.streaming() as events:
        *_, answer = events
    assert answer.done
    assert all("usage" not in event and "metrics" not in event for event in answer.events)


@pytest.mark.parametrize("rounds", [(1,), (2, 3), (8,)])
@pytest.mark.parametrize(
    ("tokens", "fields", "text", "finish", "count"),
    [
        ((*b"count", END, *b"x"), {}, "count", "stop", 6),
        (tuple(b"count on me"), {"max_tokens": 8}, "count on", "length", 8),
        (tuple(b"count on me"), {"stop": "t o"}, "coun", "stop", 7),
        (tuple(b"abEND"), {"stop": ["END"], "max_tokens": 5}, "ab", "stop", 5),
        (tuple(b"abEND"), {"stop": ["END"], "max_tokens": 4}, "abEN", "length", 4),
        ((*b"ab\nUs", END), {"stop": ["\nUser:"]}, "ab\nUs", "stop", 6),
        (tuple("🙂👨‍👩‍👧".encode()), {"max_tokens": 6}, "🙂\ufffd", "length", 6),
        ((0xFF, *b"ok", END), {}, "\ufffdok", "stop", 4),
        ((*b"a", START, END, *b"b"), {"ignore_eos": True, "max_tokens": 4}, "ab", "length", 4),
        ((THINK, *b"a", END), {}, "<think>a", "stop", 3),
        ((END,), {}, "", "stop", 1),
    ],
)
def test_endings(
    served: Deployment, tokens: tuple[int, ...], fields: dict[str, Any], text: str, finish: str, count: int,
    rounds: tuple[int, ...],
) -> None:  # fmt: skip
    answer = both(served, Script(tokens, rounds), logprobs=True, top_logprobs=2, **fields)
    assert (answer.text, answer.finish) == (text, finish)
    assert answer.usage is not None
    assert answer.usage["completion_tokens"] == len(answer.entries) == count
    assert answer.usage["total_tokens"] == answer.usage["prompt_tokens"] + count


def test_logprobs_have_raw_bytes(served: Deployment) -> None:
    answer = both(served, Script((*"é".encode(), END), (3,)), logprobs=True, top_logprobs=1)
    assert answer.text == "é"
    assert [entry["bytes"] for entry in answer.entries] == [[0xC3], [0xA9], list(b"<|im_end|>")]
    assert answer.entries[0]["token"] == "\ufffd"
    assert answer.entries[0]["logprob"] == pytest.approx(-0xC3 / 1000)
    assert answer.entries[1]["top_logprobs"][0]["bytes"] == [0xA9]
    assert both(served, Script((*b"a", END)), logprobs=True).entries[0]["top_logprobs"] == []
    assert both(served, Script((*b"a", END))).entries == []


@pytest.mark.parametrize("path", [PATH, COMPLETIONS])
def test_random_texts_and_rounds(served: Deployment, path: str) -> None:
    source = random.Random(5)
    for _ in range(25):
        tokens = [source.choice([*b"ab:\nUs", *"é🙂".encode(), 0xFF, START]) for _ in range(source.randint(1, 40))]
        rounds = tuple(source.randint(1, 8) for _ in range(5))
        script = Script((*tokens, END), rounds)
        stop = source.choice([None, "ab", ["\nUs", "é:"], ["a", "\ufffd"]])
        both(served, script, path, stop=stop, max_tokens=source.randint(1, 40))


@pytest.mark.parametrize("position", range(0, 8, 2))
@pytest.mark.parametrize("budget", range(1, 9, 2))
@pytest.mark.parametrize("accepted", [0, 3, 7])
def test_stop_and_budget_in_one_round(served: Deployment, position: int, budget: int, accepted: int) -> None:
    tokens = list(b"abcdefgh")
    tokens[position] = ord("X")
    served.scheduler.script = Script(tuple(tokens), (accepted + 1,))
    answer = served.chat.whole(stop="X", max_tokens=budget)
    stops = position < budget
    assert answer.finish == ("stop" if stops else "length")
    assert answer.text == "abcdefgh"[: min(position, budget)]
    assert answer.usage is not None
    assert answer.usage["completion_tokens"] == (position + 1 if stops else budget)


def test_acknowledgements(served: Deployment) -> None:
    served.scheduler.script = Script(tuple(b"abcdeX!"), (3,))
    served.chat.whole(stop="X!x", max_tokens=7)
    [submit] = served.scheduler.of(Submit)
    safe = served.scheduler.safe(submit.request, 3)
    assert [(one.epoch, one.upto) for one in safe] == [(EPOCH, 3), (EPOCH, 6), (EPOCH, 7)]
    assert served.scheduler.of(StoppedAt, submit.request) == []


def test_a_stop_is_told_at_once_and_what_follows_is_ignored(served: Deployment) -> None:
    served.scheduler.script = Script(tuple(b"abXcdefghijk"), (5,))
    answer = served.chat.stream(stop="bX")
    [submit] = served.scheduler.of(Submit)
    [stopped] = served.scheduler.wait_for(StoppedAt, request=submit.request)
    assert (stopped.epoch, stopped.visible) == (EPOCH, 3)
    assert answer.text == "a"
    assert answer.metrics is not None
    assert answer.metrics["speculative_decoding"]["num_accepted_draft_tokens"] == 3


def test_models_health_and_metrics(served: Deployment) -> None:
    client = served.chat.client
    [model] = client.get("/v1/models").json()["data"]
    assert model["id"] == "small"
    assert client.get("/v1/models/small").json() == model
    assert client.get("/health").status_code == 200
    assert client.get("/").json()["model"] == "small"
    served.scheduler.script = Script((*b"ab", END))
    before, _ = served.chat.whole(), served.chat.post(tools=[1])
    assert before.text == "ab"
    text = client.get("/metrics").text
    for line in ('flare:request_success_total{finished_reason="stop",model_name="small"}',
                 'flare:request_failure_total{code="unsupported_parameter",', "flare:time_to_first_token_seconds_count",
                 "process_resident_memory_bytes"):  # fmt: skip
        assert line in text
