"""`return_token_sources`: one entry a token, whose texts make the content, on both endpoints, streamed and not."""

from __future__ import annotations

from typing import Any

import pytest

from tests.frontend.client import COMPLETIONS, PATH
from tests.frontend.conftest import Deployment
from tests.frontend.scripted_scheduler import Script
from tests.frontend.small_core import END

both_endpoints = pytest.mark.parametrize("path", [PATH, COMPLETIONS])


@both_endpoints
@pytest.mark.parametrize(
    ("tokens", "fields", "texts"),
    [
        ((*b"abcde", END), {}, ["a", "b", "c", "d", "e", ""]),
        ((*"aéb".encode(), END), {}, ["a", "", "é", "b", ""]),
        ((*b"abEND", END), {"stop": "END"}, ["a", "b", "", "", ""]),
        ((*b"abENx", END), {"stop": "END"}, ["a", "b", "", "", "ENx", ""]),
        (tuple(b"abEN"), {"stop": "END", "max_tokens": 4}, ["a", "b", "", "EN"]),
        ((*b"a", 0xC3), {"max_tokens": 2}, ["a", "\ufffd"]),
        ((END,), {}, [""]),
    ],
)
def test_one_entry_a_token(
    served: Deployment, path: str, tokens: tuple[int, ...], fields: dict[str, Any], texts: list[str]
) -> None:
    served.scheduler.script = Script(tokens, (3,))
    answer = served.at(path).both(**{"max_tokens": 20, **fields}, return_token_sources=True)
    assert [text for text, _ in answer.sources] == texts
    assert answer.usage is not None
    assert len(answer.sources) == answer.usage["completion_tokens"]


@both_endpoints
def test_sources_are_named(served: Deployment, path: str) -> None:
    served.scheduler.script = Script((*b"abcdefghij", END), (5,), copied=(1, 2, 4, 8))
    answer = served.at(path).both(max_tokens=20, return_token_sources=True)
    names = ["learned", "history", "prompt", "sampled", "sampled"]
    assert [source for _, source in answer.sources] == [*names, *names, "sampled"]


@both_endpoints
def test_every_choice_has_its_own(served: Deployment, path: str) -> None:
    served.scheduler.by_choice = {0: Script((*b"ab", END), (3,)), 1: Script((*b"cde", END))}
    answer = served.at(path).both(n=2, return_token_sources=True)
    assert answer.choices[0].sources == [("a", "prompt"), ("b", "prompt"), ("", "sampled")]
    assert answer.choices[1].sources == [(text, "sampled") for text in ("c", "d", "e", "")]


@both_endpoints
@pytest.mark.parametrize("value", [False, None])
def test_none_unless_asked(served: Deployment, path: str, value: bool | None) -> None:
    for event in served.at(path).both(max_tokens=5, return_token_sources=value).events:
        assert "token_sources" not in event["choices"][0]


@both_endpoints
def test_beside_log_probabilities(served: Deployment, path: str) -> None:
    served.scheduler.script = Script((*"é".encode(), END), (2,))
    answer = served.at(path).both(logprobs=True if path == PATH else 1, return_token_sources=True)
    assert len(answer.entries) == len(answer.sources) == 3
