"""Bodies that no client library would send, over raw sockets, each before a healthy request (B32, B48-B50)."""

from __future__ import annotations

import socket

import orjson
import pytest

from shared.messages.scheduler import Submit
from tests.frontend.client import COMPLETIONS, PATH
from tests.frontend.conftest import Deployment
from tests.frontend.scripted_scheduler import SOON_S
from tests.frontend.small_core import VOCABULARY

PROMPTS = {PATH: b'"messages": [{"role": "user", "content": "hi"}]', COMPLETIONS: b'"prompt": "hi"'}
NUMBERS = ("temperature", "top_p", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty")
NO_NUMBER = (
    b"NaN",
    b"-NaN",
    b"Infinity",
    b"-Infinity",
    b"1e999",
    b"-1e999",
    b'"nan"',
    b"true",
    b'"0.7"',
    b"[0.7]",
    b"",
)
NO_COUNT = (b"0", b"-1", b"5.0", b'"5"', b"true", b"1e2", b"NaN", b"-9223372036854775809")


def exchange(served: Deployment, path: str, body: bytes) -> tuple[int, bytes]:
    """Status and body of the answer to one raw request."""
    url = served.chat.client.base_url
    head = b"POST %s HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % (
        path.encode(),
        len(body),
    )
    with socket.create_connection((url.host, url.port or 80), timeout=SOON_S) as connection:
        connection.sendall(head + body)
        answer = b""
        while part := connection.recv(65536):
            answer += part
    first, _, rest = answer.partition(b"\r\n\r\n")
    return int(first.split(b" ", 2)[1]), rest


def refused(served: Deployment, path: str, body: bytes, param: str | None) -> None:
    """A 400 that is JSON and names the field; nothing reaches the scheduler, and the next request works."""
    status, answer = exchange(served, path, body)
    assert status == 400, (body[:200], answer)
    error = orjson.loads(answer)["error"]
    assert len(answer) < 8192
    assert param is None or error["param"].partition("[")[0] == param, (body[:200], error)
    assert served.scheduler.of(Submit) == []
    status, answer = exchange(served, path, b"{" + PROMPTS[path] + b', "max_tokens": 5}')
    assert status == 200
    assert b"hello" in answer
    served.scheduler.received.clear()


@pytest.mark.parametrize("path", [PATH, COMPLETIONS])
@pytest.mark.parametrize("name", NUMBERS)
def test_no_numbers(served: Deployment, path: str, name: str) -> None:
    for value in NO_NUMBER:
        # What is no JSON has no field that could be named.
        param = name if value[:1] in b'1t"[' or value == b"-1e999" else None
        refused(served, path, b'{%s, "%s": %s}' % (PROMPTS[path], name.encode(), value), param if value else None)


@pytest.mark.parametrize("path", [PATH, COMPLETIONS])
def test_logit_bias_that_is_no_number(served: Deployment, path: str) -> None:
    for value in NO_NUMBER:
        param = "logit_bias" if value[:1] in b'1t"[' and value else None
        refused(served, path, b'{%s, "logit_bias": {"1": %s}}' % (PROMPTS[path], value), param)
    for key in (b"-1", b"%d" % VOCABULARY, b"abc", b"1.0", b"", b"1" * 40):
        refused(served, path, b'{%s, "logit_bias": {"%s": 1}}' % (PROMPTS[path], key), "logit_bias")
    many = b", ".join(b'"%d": 1' % token for token in range(10_000))
    refused(served, path, b'{%s, "logit_bias": {%s}}' % (PROMPTS[path], many), "logit_bias")


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (PATH, "max_tokens"),
        (PATH, "max_completion_tokens"),
        (PATH, "n"),
        (COMPLETIONS, "max_tokens"),
        (COMPLETIONS, "n"),
    ],
)
def test_no_counts(served: Deployment, path: str, name: str) -> None:
    for value in NO_COUNT * 2:  # twice in a row: the second one must not be worse off
        param = None if value == b"NaN" else name
        refused(served, path, b'{%s, "%s": %s}' % (PROMPTS[path], name.encode(), value), param)


@pytest.mark.parametrize(
    "value",
    [b"[]", b"{}", b"null", b"[{}]", b'[{"role":"user"}]', b'"hi"', b"5", b"[null]", b"[[]]", b'["hi"]', b'{"0": {}}'],
)
def test_messages_of_a_wrong_shape(served: Deployment, value: bytes) -> None:
    refused(served, PATH, b'{"messages": %s}' % value, "messages")


@pytest.mark.parametrize(
    "value",
    [b'""', b"[]", b"[[]]", b'[1,"a"]', b"{}", b"null", b"[{}]", b"[true]", b"[-1]", b"[%d]" % VOCABULARY,
     b"[2147483648]", b"[1180591620717411303424]", b"[1e2]", b"[[1],[%d]]" % VOCABULARY, b'["a",[1]]', b"[[[1]]]"],
)  # fmt: skip
def test_prompts_of_a_wrong_shape(served: Deployment, value: bytes) -> None:
    refused(served, COMPLETIONS, b'{"prompt": %s}' % value, "prompt")


@pytest.mark.parametrize("path", [PATH, COMPLETIONS])
@pytest.mark.parametrize(
    "value", [b"[%d]" % VOCABULARY, b"[-1]", b"[true]", b'["1"]', b"1", b"[1e1]", b"[1%s]" % (b"0" * 30)]
)
def test_stop_tokens_outside_the_vocabulary(served: Deployment, path: str, value: bytes) -> None:
    refused(served, path, b'{%s, "min_tokens": 1, "stop_token_ids": %s}' % (PROMPTS[path], value), "stop_token_ids")


@pytest.mark.parametrize(("path", "name"), [(PATH, "messages"), (COMPLETIONS, "prompt")])
def test_a_missing_prompt(served: Deployment, path: str, name: str) -> None:
    refused(served, path, b"{}", name)
    refused(served, path, b'{"max_tokens": 1}', name)


def test_many_turns_that_fit(served: Deployment) -> None:
    turns = b", ".join(b'{"role": "%s", "content": "a"}' % role for role in (b"user", b"assistant") * 15)
    status, _ = exchange(served, PATH, b'{"messages": [%s], "max_tokens": 5}' % turns)
    assert status == 200
    many = b", ".join(b'{"role": "user", "content": "a"}' for _ in range(10_000))
    served.scheduler.received.clear()
    refused(served, PATH, b'{"messages": [%s]}' % many, "messages")


@pytest.mark.parametrize("path", [PATH, COMPLETIONS])
@pytest.mark.parametrize("value", [b"0", b"-0.0", b"1e-6", b"1e-4", b"1e-320", b"2.0", b"2", b"null"])
def test_temperatures_at_the_edge_are_served(served: Deployment, path: str, value: bytes) -> None:
    status, _ = exchange(served, path, b'{%s, "max_tokens": 5, "temperature": %s}' % (PROMPTS[path], value))
    assert status == 200
    [submit] = served.scheduler.of(Submit)
    assert submit.sampling.temperature == {b"1e-6": 1e-6, b"1e-4": 1e-4, b"2.0": 2, b"2": 2, b"null": 0.7}.get(value, 0)
