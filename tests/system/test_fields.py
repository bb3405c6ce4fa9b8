"""What fields do to the text of a real server over T1, on both endpoints, streamed and not (B53, B49)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fixtures.harness import Server
from tests.fixtures.scripted.vocabulary import TOKEN_BYTES, encode, render
from tests.frontend.client import COMPLETIONS, PATH, Answer, Chat

both_endpoints = pytest.mark.parametrize("path", [PATH, COMPLETIONS])
FREE = "tell me"
"""A prompt whose answer goes on for ever."""
SAMPLED = {"temperature": 1, "seed": 3, "max_tokens": 32}


def ask(server: Server, path: str, text: str, **fields: Any) -> Answer:
    """The whole answer to a user's message; the streamed one must be the same."""
    body: dict[str, Any] = {"temperature": 0, "max_tokens": 24, **fields}
    body |= {"messages": [{"role": "user", "content": text}]} if path == PATH else {"prompt": render(("user", text))}
    with server.client() as client:
        whole, stream = Chat(client, path).whole(**body), Chat(client, path).stream(**body)
    assert stream.done
    for name in ("texts", "finish", "entries", "usage"):
        assert getattr(stream, name) == getattr(whole, name), name
    return whole


def count(answer: Answer) -> int:
    assert answer.usage is not None
    found: int = answer.usage["completion_tokens"]
    return found


@both_endpoints
def test_endings(server: Server, path: str) -> None:
    plain = ask(server, path, "say:hello world")
    assert (plain.text, plain.finish, count(plain)) == ("hello world", "stop", 3)
    [world] = encode(" world")
    stopped = ask(server, path, "say:hello world", stop_token_ids=[world])
    assert (stopped.text, stopped.finish, count(stopped)) == ("hello", "stop", 2)
    both = ask(server, path, "say:hello world", stop_token_ids=[world], ignore_eos=True)
    assert (both.text, both.finish) == ("hello", "stop")
    endless = ask(server, path, "say:hello world", ignore_eos=True)
    assert (endless.text.startswith("hello world"), endless.finish, count(endless)) == (True, "length", 24)
    longer = ask(server, path, "say:hello world", min_tokens=10)
    assert count(longer) >= 10
    assert ask(server, path, "say:hello world", stop=["o w"]).text == "hell"
    assert ask(server, path, "say:hello world", stop=["o w"], include_stop_str_in_output=True).text == "hello w"
    shown = ask(server, path, "say:hello world", skip_special_tokens=False, include_stop_str_in_output=True)
    assert shown.text == "hello world<|end|>"
    assert count(ask(server, path, FREE, max_tokens=1)) == 1


@both_endpoints
def test_filters_and_temperature(server: Server, path: str) -> None:
    greedy = ask(server, path, FREE, max_tokens=32).text
    assert ask(server, path, FREE, max_tokens=32, temperature=1e-6).text == greedy
    sampled = ask(server, path, FREE, **SAMPLED).text
    assert sampled != greedy
    assert ask(server, path, FREE, **{**SAMPLED, "seed": 4}).text != sampled
    for narrow in ({"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1}):
        assert ask(server, path, FREE, **SAMPLED, **narrow).text == greedy


A = encode("a")[0]


@both_endpoints
@pytest.mark.parametrize(
    ("fields", "repeats"),
    [
        ({}, 12),
        ({"frequency_penalty": 2}, 3),  # the next one would be at 4 - 3 * 2
        ({"frequency_penalty": 1}, 5),
        ({"frequency_penalty": 2, "logit_bias": {A: -1.5}}, 2),
        ({"presence_penalty": 2, "logit_bias": {A: -1.5}}, 12),  # once and for all, not for each
        ({"presence_penalty": 2, "logit_bias": {A: -3}}, 1),
        ({"logit_bias": {A: -3}}, 12),
        ({"repetition_penalty": 20, "logit_bias": {A: -1}}, 0),  # those of the prompt count, too
        ({"repetition_penalty": 0.05, "logit_bias": {A: -5}}, 12),
        ({"logit_bias": {A: -5}}, 0),
        ({"logit_bias": {A: 100}}, 24),
        ({"frequency_penalty": -2}, 24),  # the end token, too, falls behind what was said
    ],
)
def test_penalties_and_bias_have_their_direction(
    server: Server, path: str, fields: dict[str, Any], repeats: int
) -> None:
    """How often the favourite token is repeated: its logit is 4, those of all others lie below 0 (T1), greedy."""
    text = ask(server, path, f"say:{'a' * 12}", **fields).text
    assert len(text) - len(text.lstrip("a")) == repeats


@both_endpoints
def test_a_bias_removes_tokens_from_samples(server: Server, path: str) -> None:
    removed = {str(token): -100 for token, raw in enumerate(TOKEN_BYTES) if set(raw) & set(b"abc")}
    assert set("abc") & set(ask(server, path, FREE, **SAMPLED).text)
    assert not set("abc") & set(ask(server, path, FREE, **SAMPLED, logit_bias=removed).text)


@both_endpoints
def test_cached_tokens_are_those_up_to_the_last_boundary_of_64(server: Server, path: str) -> None:
    text = f"{path} say:hello {'x' * 200}"
    body: dict[str, Any] = {"temperature": 0, "max_tokens": 2}
    body |= {"messages": [{"role": "user", "content": text}]} if path == PATH else {"prompt": render(("user", text))}
    for turn in range(3):
        with server.client() as client:
            answer = Chat(client, path).stream(**body) if turn == 1 else Chat(client, path).whole(**body)
        usage = answer.usage
        assert usage is not None
        assert usage["prompt_tokens"] > 200
        cached = usage["prompt_tokens"] // 64 * 64 if turn else 0
        assert usage["prompt_tokens_details"] == {"cached_tokens": cached}


@both_endpoints
def test_log_probabilities_are_of_the_raw_distribution(server: Server, path: str) -> None:
    wanted: dict[str, Any] = {"logprobs": True, "top_logprobs": 2} if path == PATH else {"logprobs": 2}
    first = []
    for law in ({"temperature": 0}, {"temperature": 2, "top_k": 1}, {"logit_bias": {"0": 5}}):
        answer = ask(server, path, "say:hello world", **wanted, **law)
        entry = answer.entries[0]
        first.append(entry["logprob"] if path == PATH else entry[1])
        assert len(answer.entries) == count(answer)
    assert first == pytest.approx([first[0]] * 3, abs=1e-5)


@both_endpoints
def test_three_choices_with_a_seed(server: Server, path: str) -> None:
    three = ask(server, path, FREE, n=3, **SAMPLED)
    assert len(set(three.texts)) == 3
    assert ask(server, path, FREE, n=3, **SAMPLED).texts == three.texts
    alone = [ask(server, path, FREE, **{**SAMPLED, "seed": 3 + i}).text for i in range(3)]
    assert three.texts == alone
    assert count(three) == 3 * 32


def test_forms_of_a_prompt_and_echo(server: Server) -> None:
    text = render(("user", "say:hello"))
    with server.client() as client:
        texts = Chat(client, COMPLETIONS)
        for prompt, shown in ((text, text), (list(encode(text)), text)):
            assert texts.whole(prompt=prompt, temperature=0).text == "hello"
            assert texts.stream(prompt=prompt, temperature=0, echo=True).text == shown + "hello"
        several = texts.whole(prompt=[text, render(("user", "say:END"))], temperature=0, n=2)
        assert several.texts == ["hello", "hello", "END", "END"]
        assert texts.whole(prompt=[1, 2, 3], temperature=0).finish == "length"


@both_endpoints
def test_sources_as_the_drafter_was_told(server: Server, path: str) -> None:
    text = "the quick brown fox jumps"
    answer = ask(server, path, f"d1:4/2;say:{text}", return_token_sources=True)
    assert answer.text == text
    assert "".join(piece for piece, _ in answer.sources) == text
    assert {source for _, source in answer.sources} >= {"sampled"}
    assert len({source for _, source in answer.sources}) > 1


def test_a_final_message_is_continued(server: Server) -> None:
    messages = [{"role": "user", "content": "say:hello world"}, {"role": "assistant", "content": "hello"}]
    with server.client() as client:
        chat = Chat(client)
        assert chat.whole(messages=messages, continue_final_message=True, temperature=0).text == " world"
        assert chat.post(messages=messages, continue_final_message=True, add_generation_prompt=True).status_code == 400
        unprompted = chat.whole(messages=messages[:1], add_generation_prompt=False, temperature=0, max_tokens=4)
        prompted = chat.whole(messages=messages[:1], temperature=0, max_tokens=4)
    assert unprompted.usage is not None
    assert prompted.usage is not None
    assert prompted.usage["prompt_tokens"] > unprompted.usage["prompt_tokens"]


def test_bad_ids_leave_a_neighbour_alone(server: Server) -> None:
    """A stream runs on beside requests whose ids lie outside the vocabulary (B50)."""
    fields = {"max_tokens": 200, "temperature": 0, "messages": [{"role": "user", "content": FREE}]}
    with server.client() as client, server.client() as other:
        expected = Chat(client).whole(**fields).text
        with Chat(client).streaming(**fields) as events:
            answer = next(events)
            for prompt in ([-1], [1 << 31], [1 << 70], [len(encode("a")) + 100_000], [True]):
                assert other.post(COMPLETIONS, json={"prompt": prompt}).status_code == 400
                assert other.post(PATH, json={**fields, "stop_token_ids": prompt}).status_code == 400
            *_, answer = events
    assert answer.text == expected


def test_the_most_choices_fit_the_queue(server: Server) -> None:
    """What the document allows must not meet a 429 that no waiting would cure."""
    answer = ask(server, COMPLETIONS, "say:hello", n=128)
    assert answer.texts == ["hello"] * 128
