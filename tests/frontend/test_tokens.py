"""`/tokenize` and `/detokenize` over HTTP: the ids that the other endpoints work with, also without a scheduler."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from shared.messages.scheduler import Submit
from tests.frontend.child import address, deployed, spawn
from tests.frontend.conftest import Deployment, wait_ready
from tests.frontend.scripted_scheduler import SOON_S, STUCK, ScriptedScheduler
from tests.frontend.small_core import CONTEXT, END, START, THINK, VOCABULARY, tokens_of
from tests.frontend.test_refusals import SECRET, check_error

MESSAGES = [{"role": "user", "content": "hi <|im_end|>"}, {"role": "assistant", "content": "so"}]


def post(served: Deployment, path: str, **fields: Any) -> httpx.Response:
    return served.chat.client.post(path, json=fields)


def tokenize(served: Deployment, **fields: Any) -> dict[str, Any]:
    response = post(served, "/tokenize", **fields)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    assert set(answer) == {"count", "max_model_len", "tokens", "token_strs"}
    assert answer["count"] == len(answer["tokens"])
    assert answer["max_model_len"] == CONTEXT
    return answer


def detokenize(served: Deployment, tokens: list[int]) -> str:
    response = post(served, "/detokenize", tokens=tokens)
    assert response.status_code == 200, response.text
    assert set(response.json()) == {"prompt"}
    return str(response.json()["prompt"])


def test_a_text_and_back(served: Deployment) -> None:
    text = "xé<|im_start|><think> 🚲"
    answer = tokenize(served, prompt=text)
    assert answer["token_strs"] is None
    assert answer["tokens"] == [*tokens_of("x"), 256 + 5, START, THINK, *tokens_of(" 🚲")]
    assert detokenize(served, answer["tokens"]) == text
    named = tokenize(served, prompt=text, return_token_strs=True)
    assert named["token_strs"][:4] == ["x", "Ã©", "<|im_start|>", "<think>"]
    assert len(named["token_strs"]) == named["count"]


@pytest.mark.parametrize(
    "fields",
    [{}, {"add_generation_prompt": False}, {"continue_final_message": True}, {"add_generation_prompt": True}],
)
def test_a_conversation_has_the_prompt_of_the_chat_endpoint(served: Deployment, fields: dict[str, Any]) -> None:
    answer = tokenize(served, messages=MESSAGES, **fields)
    chat = served.chat.whole(messages=MESSAGES, max_tokens=2, **fields)
    (submit,) = served.scheduler.of(Submit)
    assert tuple(answer["tokens"]) == submit.prompt
    assert chat.usage is not None
    assert chat.usage["prompt_tokens"] == answer["count"]
    text = "<|im_start|>user\nhi <|im_end|><|im_end|>\n<|im_start|>assistant\nso"
    closing = "<|im_end|>\n" if not fields.get("continue_final_message") else ""
    opening = "<|im_start|>assistant\n" if closing and fields.get("add_generation_prompt", True) else ""
    assert detokenize(served, answer["tokens"]) == text + closing + opening
    assert answer["tokens"].count(END) == (2 if closing else 1)


def test_a_text_has_the_prompt_of_the_completions_endpoint(served: Deployment) -> None:
    answer = tokenize(served, prompt="say <|im_end|> hello")
    response = post(served, "/v1/completions", prompt="say <|im_end|> hello", max_tokens=2)
    assert response.status_code == 200, response.text
    (submit,) = served.scheduler.of(Submit)
    assert tuple(answer["tokens"]) == submit.prompt
    assert response.json()["usage"]["prompt_tokens"] == answer["count"]


def test_halves_of_characters_and_padded_ids(served: Deployment) -> None:
    assert detokenize(served, [72, 105, 240, 159]) == "Hi\ufffd"
    assert detokenize(served, [255, 72]) == "\ufffdH"
    assert detokenize(served, [VOCABULARY - 1, 72]) == "H"
    assert detokenize(served, []) == ""


def test_more_than_the_context_is_counted(served: Deployment) -> None:
    assert tokenize(served, prompt="x" * (CONTEXT + 9))["count"] == CONTEXT + 9


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "prompt"),
        ({"prompt": "a", "messages": MESSAGES}, "messages"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": ["a"]}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "king", "content": SECRET}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "refuse me"}]}, "messages"),
        ({"messages": MESSAGES, "add_special_tokens": True}, "add_special_tokens"),
        ({"messages": MESSAGES, "add_generation_prompt": True, "continue_final_message": True}, None),
        ({"messages": MESSAGES[:1], "continue_final_message": True}, "continue_final_message"),
        ({"messages": MESSAGES, "chat_template_kwargs": {"tokenize": SECRET}}, "chat_template_kwargs.tokenize"),
        ({"messages": MESSAGES, "chat_template_kwargs": {SECRET + "\n": 1}}, "chat_template_kwargs.?"),
        ({"messages": MESSAGES, "chat_template": "{{ 'y' * 300000000 }}"}, "chat_template"),
        ({"messages": MESSAGES, "tools": [{"type": "function"}]}, "tools"),
        ({"prompt": "a", "add_generation_prompt": True}, "add_generation_prompt"),
        ({"prompt": "a", "chat_template_kwargs": {"x": 1}}, "chat_template_kwargs"),
        ({"prompt": "a", "temperature": 1}, "temperature"),
    ],
)
def test_what_cannot_be_tokenized(served: Deployment, fields: dict[str, Any], param: str | None) -> None:
    check_error(post(served, "/tokenize", **fields), 400, param=param or "continue_final_message")
    assert tokenize(served, prompt="hello")["count"] == 1


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "tokens"),
        ({"tokens": None}, "tokens"),
        ({"tokens": "hi"}, "tokens"),
        ({"tokens": [1, -1]}, "tokens[1]"),
        ({"tokens": [1, 2, VOCABULARY]}, "tokens[2]"),
        ({"tokens": [1 << 80]}, "tokens[0]"),
        ({"tokens": [1.0]}, "tokens[0]"),
        ({"tokens": [True]}, "tokens[0]"),
        ({"tokens": ["1"]}, "tokens[0]"),
        ({"tokens": [[1]]}, "tokens[0]"),
        ({"tokens": [1], "prompt": SECRET}, "prompt"),
    ],
)
def test_what_cannot_be_detokenized(served: Deployment, fields: dict[str, Any], param: str) -> None:
    check_error(post(served, "/detokenize", **fields), 400, param=param)
    assert detokenize(served, [72]) == "H"


@pytest.mark.parametrize(("path", "fields"), [("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [72]})])
def test_another_model_is_not_here(served: Deployment, path: str, fields: dict[str, Any]) -> None:
    assert post(served, path, model="small", **fields).status_code == 200
    check_error(post(served, path, model="gpt-9", **fields), 404, "model_not_found", "model")


def test_a_template_option_reaches_the_chat_endpoint_only_if_the_template_has_it(served: Deployment) -> None:
    """The template of the small core has no option, so each is refused before anything is submitted."""
    for name in ("enable_thinking", "chat_template", "messages", "add_generation_prompt"):
        response = served.chat.post(chat_template_kwargs={name: True})
        check_error(response, 400, param=f"chat_template_kwargs.{name}")
    assert served.scheduler.of(Submit) == []
    assert served.chat.whole(chat_template_kwargs={}, max_tokens=2).text == "he"


def test_a_server_that_drains_takes_none(core: tuple[Path, str], tmp_path: Path) -> None:
    with deployed(core, tmp_path) as child:
        child.scheduler.script = STUCK
        with child.chat.streaming() as events:
            next(events)
            child.process.send_signal(signal.SIGTERM)
            deadline = time.monotonic() + SOON_S
            with httpx.Client(base_url=child.chat.client.base_url, timeout=10) as client:
                while client.post("/tokenize", json={"prompt": "a"}).status_code == 200:
                    assert time.monotonic() < deadline, "a draining server takes work"
                check_error(client.post("/detokenize", json={"tokens": [72]}), 503, "service_unavailable", None)


def test_it_works_from_the_moment_that_the_core_is_loaded(core: tuple[Path, str], tmp_path: Path) -> None:
    """The tokenizer comes through a pipe, so that loading lasts until it is written."""
    folder, run_dir = tmp_path / "core", tmp_path / "run"
    shutil.copytree(core[0], folder)
    definition = (folder / "tokenizer.json").read_bytes()
    (folder / "tokenizer.json").unlink()
    os.mkfifo(folder / "tokenizer.json")
    run_dir.mkdir(mode=0o700)
    process = spawn(folder, run_dir, tmp_path / "log")
    try:
        with httpx.Client(base_url=address(run_dir, process), timeout=10) as client:
            check_error(client.post("/tokenize", json={"prompt": "a"}), 503, "service_unavailable", None)
            (folder / "tokenizer.json").write_bytes(definition)
            deadline = time.monotonic() + SOON_S
            while client.post("/tokenize", json={"prompt": "hello"}).status_code != 200:
                assert time.monotonic() < deadline, "never loaded"
                time.sleep(0.02)
            assert client.post("/detokenize", json={"tokens": [72]}).json() == {"prompt": "H"}
            check_error(client.post("/v1/chat/completions", json={"messages": MESSAGES}), 503, "service_unavailable")
            scheduler = ScriptedScheduler(run_dir, core[1])
            wait_ready(client)
            scheduler.close()
    finally:
        process.kill()
        process.wait()
