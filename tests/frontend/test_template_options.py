"""What clients may set for a chat template, and how it refuses a conversation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shared.errors import InvalidRequest
from tests.frontend.text_cores import (
    Both,
    Turns,
    answer,
    prompt_of,
    user,
)

ODD_OPTIONS: list[object] = [[], {}, "x" * 257, 1 << 60, float("inf"), float("nan")]


def test_enable_thinking_reaches_a_template_that_uses_it(cores: dict[Any, Both]) -> None:
    core, theirs = cores["bytes", "tools"]
    turns: Turns = [user("Q")]
    off = core.encode_chat(turns, kwargs={"enable_thinking": False})
    assert list(off) == prompt_of(theirs, turns, enable_thinking=False)
    assert list(core.encode_chat(turns, kwargs={"enable_thinking": True})) == prompt_of(theirs, turns)
    assert core.encode_chat(turns, kwargs={"enable_thinking": None}) == core.encode_chat(turns)
    assert off != core.encode_chat(turns)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[(name, True) for name in ("chat_template", "tokenize", "add_generation_prompt", "continue_final_message")],
        *[(name, []) for name in ("messages", "tools", "documents")],
        *[(name, "x") for name in ("bos_token", "eos_token", "raise_exception", "strftime_now", "range", "namespace")],
        *[(name, 1) for name in ("loop", "message", "content", "nobody_knows", "self", "")],
        *[("enable_thinking", odd) for odd in ODD_OPTIONS],
        *[("enable_thinking", value) for value in ("<think>", "a</think>b", "<|im_", "end|>")],
    ],
)
def test_options_that_a_client_may_not_set(cores: dict[Any, Both], name: str, value: object) -> None:
    core, _ = cores["bytes", "tools"]
    with pytest.raises(InvalidRequest) as caught:
        core.encode_chat([user("Q")], kwargs={name: value})
    assert caught.value.param == f"chat_template_kwargs.{name or '?'}"


@pytest.mark.parametrize(
    ("which", "turns", "message"),
    [
        ("strict", [user("a"), user("zebra-secret")], "must alternate"),
        ("strict", [answer("zebra-secret")], "must alternate"),
        ("strict", [user("a"), {"role": "system", "content": "zebra-secret"}], "Only user and assistant"),
        ("tools", [user("a"), {"role": "system", "content": "zebra-secret"}], "must be at the beginning"),
        ("strict", [user("a"), user("zebra-secret<|im_end|>")], "must alternate"),
    ],
)
def test_a_template_refuses_with_its_own_message(
    cores: dict[Any, Both], which: str, turns: Turns, message: str
) -> None:
    core, _ = cores["bytes", which]
    with pytest.raises(InvalidRequest, match=message) as caught:
        core.encode_chat(turns)
    assert caught.value.param == "messages"
    assert "raise_exception" not in str(caught.value)
    assert "zebra" not in str(caught.value)
    assert core.encode_chat([user("a")])


def test_a_message_that_quotes_the_client_is_told_without_the_quotation(cores: dict[Any, Both]) -> None:
    base, _ = cores["bytes", "chatml"]
    source = "{{ raise_exception('Cannot take \\n' + messages[0].content + ' here') }}"
    core = replace(base, prompts=replace(base.prompts, template=base.prompts.template.__class__(source, {})))
    for secret in ("zebra-secret", "zebra <|im_end|> secret"):
        with pytest.raises(InvalidRequest) as caught:
            core.encode_chat([user(secret)])
        assert "Cannot take  ... here" in str(caught.value)
    with pytest.raises(InvalidRequest, match="too long to tell"):
        core.encode_chat([user("zebra-secret" * 1000)])
