"""The `openai` client with strict validation of responses against a real server: both endpoints, streamed and not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from typing import Any

import openai
import pytest
from openai.types import Completion

from tests.fixtures.harness import Server, wait_until
from tests.fixtures.scripted.vocabulary import render
from tests.system.observer import Observer, observing

MODEL = "scripted"
TEXT = "hello world, and the naïve café 😀 END. of it"


def strict(server: Server) -> openai.OpenAI:
    """A client that refuses what its own types do not allow, and tries nothing twice."""
    return openai.OpenAI(
        base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60, _strict_response_validation=True
    )


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    """A strict client of the shared server."""
    with strict(server) as made:
        yield made


def user(text: str) -> list[openai.types.chat.ChatCompletionMessageParam]:
    return [{"role": "user", "content": text}]


def test_chat(client: openai.OpenAI) -> None:
    found = client.chat.completions.create(
        model=MODEL,
        messages=user(f"say:{TEXT}"),
        temperature=0,
        max_completion_tokens=100,
        logprobs=True,
        top_logprobs=2,
    )
    [choice] = found.choices
    assert (choice.message.content, choice.finish_reason) == (TEXT, "stop")
    assert found.usage is not None
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    assert len(choice.logprobs.content) == found.usage.completion_tokens
    raw = b"".join(bytes(entry.bytes or ()) for entry in choice.logprobs.content[:-1])
    assert raw.decode() == TEXT
    assert all(len(entry.top_logprobs) == 2 for entry in choice.logprobs.content)


def test_streamed_chat_with_usage(client: openai.OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model=MODEL, messages=user(f"say:{TEXT}"), temperature=0, max_tokens=100, stream=True, logprobs=True,
            stream_options={"include_usage": True},
        )
    )  # fmt: skip
    assert "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices) == TEXT
    assert [c.finish_reason for chunk in chunks for c in chunk.choices if c.finish_reason] == ["stop"]
    usage = chunks[-1].usage
    assert usage is not None
    entries = [e for chunk in chunks for c in chunk.choices if c.logprobs for e in c.logprobs.content or ()]
    assert len(entries) == usage.completion_tokens


def test_three_choices_with_a_seed(client: openai.OpenAI) -> None:
    def ask() -> list[str | None]:
        found = client.chat.completions.create(
            model=MODEL, messages=user("tell me"), temperature=1, seed=7, n=3, max_tokens=24
        )
        return [choice.message.content for choice in found.choices]

    def streamed() -> list[str]:
        texts: defaultdict[int, str] = defaultdict(str)
        for chunk in client.chat.completions.create(
            model=MODEL, messages=user("tell me"), temperature=1, seed=7, n=3, max_tokens=24, stream=True
        ):
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
        return [texts[index] for index in range(3)]

    first = ask()
    assert len(set(first)) == 3
    assert ask() == first == streamed()


def test_stop(client: openai.OpenAI) -> None:
    found = client.chat.completions.create(
        model=MODEL, messages=user(f"say:{TEXT}"), temperature=0, max_tokens=100, stop=["END", "nowhere"]
    )
    assert found.choices[0].message.content == TEXT[: TEXT.index("END")]
    assert found.choices[0].finish_reason == "stop"


def test_completions(client: openai.OpenAI) -> None:
    prompts = [render(("user", "say:hello world")), render(("user", "say:café"))]
    found = client.completions.create(model=MODEL, prompt=prompts, temperature=0, n=2, logprobs=2, max_tokens=50)
    assert [choice.text for choice in found.choices] == ["hello world"] * 2 + ["café"] * 2
    assert {choice.finish_reason for choice in found.choices} == {"stop"}
    assert found.usage is not None
    tokens = 0
    for choice in found.choices:
        assert choice.logprobs is not None
        assert choice.logprobs.tokens is not None
        assert choice.logprobs.text_offset is not None
        assert choice.logprobs.text_offset[0] == 0
        tokens += len(choice.logprobs.tokens)
    assert tokens == found.usage.completion_tokens


def test_streamed_completions(server: Server) -> None:
    """The wire has `finish_reason: null` in all chunks but the last, as OpenAI's own; the client's type forgets it.

    So the client is not strict here; every chunk is held against its type with that one field filled in.
    """
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        chunks = list(
            client.completions.create(
                model=MODEL, prompt=render(("user", f"say:{TEXT}")), temperature=0, max_tokens=100, stream=True,
                stream_options={"include_usage": True}, echo=False,
            )
        )  # fmt: skip
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == TEXT
    assert [c.finish_reason for chunk in chunks for c in chunk.choices if c.finish_reason] == ["stop"]
    assert chunks[-1].usage is not None
    for chunk in chunks:
        event: dict[str, Any] = chunk.to_dict()
        for choice in event["choices"]:
            choice["finish_reason"] = choice["finish_reason"] or "stop"
        Completion.model_validate(event, strict=True)


def test_refusals_become_the_clients_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=MODEL, messages=user("hi"), temperature=3)
    assert refused.value.param == "temperature"
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="gpt-9", prompt="hi")


def running(observer: Observer, count: int) -> bool:
    return observer.status().running == count


def test_leaving_in_mid_stream_frees_everything(slow: Server) -> None:
    with strict(slow) as client, observing(slow) as observer:
        pages = observer.status().free_pages
        for n in (1, 3):
            chat = client.chat.completions.create(
                model=MODEL, messages=user("tell me"), n=n, max_tokens=900, stream=True, temperature=0
            )
            assert next(iter(chat)).choices
            next(iter(chat))
            wait_until(partial(running, observer, n), 10, "all choices run")
            chat.close()
            wait_until(lambda: observer.idle(pages), 5, "lanes and pages free")
            with pytest.raises(openai.APITimeoutError):
                client.with_options(timeout=0.5).completions.create(
                    model=MODEL, prompt=render(("user", "tell me")), n=n, max_tokens=900, temperature=0
                )
            wait_until(lambda: observer.idle(pages), 5, "lanes and pages free")
        found = client.chat.completions.create(model=MODEL, messages=user("say:on"), temperature=0, max_tokens=9)
        assert found.choices[0].message.content == "on"
