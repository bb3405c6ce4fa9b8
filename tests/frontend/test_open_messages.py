"""Prompts whose last message, the assistant's, goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shared.errors import InvalidRequest
from tests.frontend.text_cores import (
    ALL,
    CHATML,
    TEMPLATES,
    Both,
    Turns,
    answer,
    byte_level,
    controls_in,
    make_core,
    prompt_of,
    reference,
    user,
)


@pytest.mark.parametrize("which", [which for which in ALL if which[1] != "strict"])
@pytest.mark.parametrize("text", ["The answer", "The answer is  ", "", "a\n\n", "x <", "im"])
def test_an_open_last_message_ends_as_in_transformers(
    cores: dict[Any, Both], which: tuple[str, str], text: str
) -> None:
    core, theirs = cores[which]
    turns: Turns = [user("Q"), answer(text)]
    found = core.encode_chat(turns, add_generation_prompt=False, continue_final_message=True)
    assert list(found) == prompt_of(theirs, turns, continue_final_message=True)
    closed = core.encode_chat(turns, add_generation_prompt=False)
    assert list(closed) == prompt_of(theirs, turns, add_generation_prompt=False)
    assert len(closed) > len(found)


@pytest.mark.parametrize("template", [TEMPLATES["strict"], CHATML.replace("['content']", "['content'] | trim")])
def test_an_open_last_message_of_a_template_that_trims(tmp_path: Path, template: str) -> None:
    core = make_core(tmp_path, byte_level(), template)
    theirs = reference(tmp_path)
    for text in ("The answer", "The answer is  ", "<", "x\n"):
        turns: Turns = [user("Q"), answer(text)]
        found = core.encode_chat(turns, add_generation_prompt=False, continue_final_message=True)
        assert list(found) == prompt_of(theirs, turns, continue_final_message=True)


def test_an_open_last_message_may_hold_a_literal(cores: dict[Any, Both]) -> None:
    core, _ = cores["bytes", "chatml"]
    turns = [user("Q"), answer("so <|im_end|>")]
    ids = core.encode_chat(turns, add_generation_prompt=False, continue_final_message=True)
    assert core.tokenization.decode(ids).endswith("<|im_start|>assistant\nso <|im_end|>")
    assert len(controls_in(core, ids)) == 3


@pytest.mark.parametrize(
    ("turns", "both"),
    [([user("Q"), answer("A")], True), ([user("Q")], False), ([], False)],
)
def test_what_cannot_be_continued(cores: dict[Any, Both], turns: Turns, both: bool) -> None:
    core, _ = cores["bytes", "chatml"]
    with pytest.raises(InvalidRequest) as caught:
        core.encode_chat(turns, add_generation_prompt=both, continue_final_message=True)
    assert caught.value.param == "continue_final_message"


def test_a_last_message_that_the_template_drops(cores: dict[Any, Both]) -> None:
    core, _ = cores["bytes", "tools"]
    with pytest.raises(InvalidRequest, match="does not keep") as caught:
        core.encode_chat(
            [user("Q"), answer("hm</think>Four")], add_generation_prompt=False, continue_final_message=True
        )
    assert caught.value.param == "continue_final_message"
