"""Several choices of one request: submitted and cancelled together, told apart in the answer (B24)."""

from __future__ import annotations

import gc
import time
from typing import Any

import httpx
import pytest

from services.frontend.flight import Flight
from shared.messages.frontend import Delta, Tokens
from shared.messages.scheduler import Ack, Cancel, Submit
from tests.frontend.client import COMPLETIONS, PATH
from tests.frontend.conftest import Deployment
from tests.frontend.scripted_scheduler import EPOCH, SOON_S, Script
from tests.frontend.small_core import END

both_endpoints = pytest.mark.parametrize("path", [PATH, COMPLETIONS])
STUCK = Script(tuple(b"hello"), (2,), hang_after=1)
SILENT = Script((), hang_after=0)


def flights() -> int:
    """Flights alive in this process, whose frontend is a thread of it."""
    gc.collect()
    return sum(type(found) is Flight for found in gc.get_objects())  # isinstance would ask proxies for their class


def by_choice(served: Deployment, *scripts: Script) -> None:
    served.scheduler.by_choice = dict(enumerate(scripts))


@both_endpoints
def test_choices_are_told_apart(served: Deployment, path: str) -> None:
    by_choice(
        served,
        Script((*b"one", END), (1,), pause_s=0.01),
        Script(tuple(b"two two two"), (4,)),
        Script((*b"three END", END), (2,), cached_tokens=1),
    )
    answer = served.at(path).both(n=3, max_tokens=9, stop="END")
    assert answer.texts == ["one", "two two t", "three "]
    assert [answer.choices[i].finish for i in range(3)] == ["stop", "length", "stop"]
    assert answer.usage is not None
    prompt = served.at(path).both(max_tokens=1).usage
    assert prompt is not None
    assert answer.usage["prompt_tokens"] == prompt["prompt_tokens"]
    assert answer.usage["completion_tokens"] == 4 + 9 + 9
    assert answer.usage["prompt_tokens_details"] == {"cached_tokens": 1}
    assert answer.metrics is not None
    drafts = answer.metrics["speculative_decoding"]
    assert drafts["num_spec_steps"] == 4 + 3 + 5
    assert drafts["num_accepted_draft_tokens"] == 3 + 3 + 0 + 4 * 1 + 0
    assert sum(drafts["acceptance_histogram"]) == drafts["num_spec_steps"]
    assert drafts["acceptance_histogram_by_draft_length"] == {"7": drafts["acceptance_histogram"]}


def test_what_one_message_told_one_message_acknowledges(served: Deployment) -> None:
    """A scheduler with many requests would hear of nothing else between two rounds."""
    served.scheduler.script = SILENT
    with served.chat.streaming(n=3, max_tokens=2) as events:
        names = [submit.request for submit in served.scheduler.wait_for(Submit, 3)]
        deltas = tuple(
            Delta(request=name, epoch=EPOCH, start=0, tokens=tuple(b"no"), sources=(0, 0), finish="length")
            for name in names
        )
        served.scheduler.send_raw(Tokens(instance=served.scheduler.instance, sequence=0, deltas=deltas))
        *_, answer = events
    assert answer.texts == ["no"] * 3
    [ack] = served.scheduler.wait_for(Ack)
    assert [(one.request, one.epoch, one.upto) for one in ack.safe] == [(name, EPOCH, 2) for name in names]
    for name in names:
        served.scheduler.fail(name, "round_failed")  # its script knows nothing of what was told above


@both_endpoints
@pytest.mark.parametrize(("fields", "text", "count"), [({"n": 1}, "hello", 5), ({"n": None}, "hello", 5)])
def test_one_choice_is_the_plain_request(
    served: Deployment, path: str, fields: dict[str, Any], text: str, count: int
) -> None:
    answer = served.at(path).both(max_tokens=count, **fields)
    assert answer.texts == [text]
    assert {"/" in submit.request for submit in served.scheduler.of(Submit)} == {False}


@both_endpoints
def test_a_stream_interleaves_choices(served: Deployment, path: str) -> None:
    served.scheduler.script = Script((*b"abcdef", END), (1,), pause_s=0.02)
    answer = served.at(path).stream(n=3)
    assert answer.texts == ["abcdef"] * 3
    order = [choice["index"] for event in answer.events for choice in event["choices"]]
    assert order != sorted(order)
    assert [event["usage"] is None for event in answer.events] == [True] * (len(answer.events) - 1) + [False]


@both_endpoints
@pytest.mark.parametrize("seed", [5, -1])
def test_choice_i_draws_with_seed_plus_i(served: Deployment, path: str, seed: int) -> None:
    response = served.at(path).client.post(
        path,
        json={"messages": [{"role": "user", "content": "hi"}], "n": 3, "seed": seed, "max_tokens": 1}
        if path == PATH
        else {"prompt": "hi", "n": 3, "seed": seed, "max_tokens": 1},
    )
    assert response.status_code == 200
    submits = served.scheduler.of(Submit)
    name = response.headers["x-request-id"]
    assert [(submit.request, submit.choice) for submit in submits] == [(f"{name}/{i}", i) for i in range(3)]
    assert [submit.sampling.seed for submit in submits] == [(seed + i) % (1 << 64) for i in range(3)]


def test_equal_prompts_without_a_seed_differ(served: Deployment) -> None:
    served.completions.whole(prompt=["a", "a"], n=2, max_tokens=1)
    a0, a1, b0, b1 = (submit.sampling.seed for submit in served.scheduler.of(Submit))
    assert (a1, b1) == ((a0 + 1) % (1 << 64), (b0 + 1) % (1 << 64))
    assert a0 != b0


def test_prompts_times_n(served: Deployment) -> None:
    answer = served.completions.both(prompt=["one", "three"], n=2, max_tokens=2, seed=3, echo=True)
    assert answer.texts == ["onehe"] * 2 + ["threehe"] * 2
    assert answer.usage == {
        "prompt_tokens": 8, "completion_tokens": 8, "total_tokens": 16, "prompt_tokens_details": {"cached_tokens": 0}
    }  # fmt: skip
    assert [submit.sampling.seed for submit in served.scheduler.of(Submit)[:4]] == [3, 4, 3, 4]


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"prompt": ["a"] * 129}, "prompt"), ({"prompt": ["a"] * 43, "n": 3}, "n"), ({"prompt": [[1]] * 129}, "prompt")],
)
def test_too_many_choices(served: Deployment, fields: dict[str, Any], param: str) -> None:
    response = served.completions.post(**fields)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    assert served.scheduler.of(Submit) == []


@both_endpoints
def test_the_most_choices(served: Deployment, path: str) -> None:
    assert served.at(path).both(n=128, max_tokens=5).texts == ["hello"] * 128
    deadline = time.monotonic() + SOON_S
    while flights() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert flights() == 0, "the frontend keeps what is over"


@both_endpoints
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("code", "status"), [("overloaded", 429), ("service_unavailable", 503)])
def test_one_refusal_is_the_answer_and_cancels_the_rest(
    served: Deployment, path: str, stream: bool, code: str, status: int
) -> None:
    by_choice(served, SILENT, Script((), failure=(code, "no")), SILENT)
    response = served.at(path).post(n=3, stream=stream)
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    name = response.headers["x-request-id"]
    assert {cancel.request for cancel in served.scheduler.wait_for(Cancel, 2)} == {f"{name}/0", f"{name}/2"}
    assert len(served.scheduler.of(Cancel)) == 2


@both_endpoints
def test_an_error_in_mid_stream_ends_the_whole_stream(served: Deployment, path: str) -> None:
    by_choice(served, STUCK, STUCK, Script(tuple(b"abcdef"), (1,), pause_s=0.02))
    with served.at(path).streaming(n=3) as events:
        for answer in events:
            if {0, 1, 2} <= {i for i, said in answer.choices.items() if said.text}:
                break
        [name] = {submit.request.partition("/")[0] for submit in served.scheduler.of(Submit)}
        served.scheduler.fail(f"{name}/1", "round_failed")
        *_, answer = events
    assert answer.error is not None
    assert answer.error["code"] == "round_failed"
    assert not answer.done
    cancelled = {cancel.request for cancel in served.scheduler.wait_for(Cancel)}
    assert f"{name}/0" in cancelled
    assert f"{name}/1" not in cancelled


def leave(client: httpx.Client, path: str, body: dict[str, Any]) -> None:
    """Reads for as long as the client waits, and goes."""
    started = time.monotonic()
    try:
        with client.stream("POST", path, json=body) as response:
            for _ in response.iter_raw():
                if time.monotonic() - started > 0.3:
                    return
    except httpx.ReadTimeout:
        return
    raise AssertionError("the answer was at its end")


@both_endpoints
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("script", [SILENT, STUCK, Script(tuple(b"hello" * 60), (1,), pause_s=0.02)])
def test_a_client_that_leaves_cancels_every_choice(served: Deployment, path: str, stream: bool, script: Script) -> None:
    served.scheduler.script = script
    url = served.chat.client.base_url
    body: dict[str, Any] = {"stream": stream, "n": 3, "max_tokens": 400, "ignore_eos": True}
    body |= {"messages": [{"role": "user", "content": "hi"}]} if path == PATH else {"prompt": "hi"}
    with httpx.Client(base_url=url, timeout=0.3) as client:
        leave(client, path, body)
    submitted = {submit.request for submit in served.scheduler.wait_for(Submit, 3)}
    assert {cancel.request for cancel in served.scheduler.wait_for(Cancel, 3)} == submitted
    deadline = time.monotonic() + SOON_S
    while served.scheduler.running and time.monotonic() < deadline:
        time.sleep(0.01)
    assert served.scheduler.running == 0
    served.scheduler.script = Script((*b"ok", END))
    assert served.at(path).whole(n=2).texts == ["ok", "ok"]
