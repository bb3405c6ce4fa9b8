"""No field without a test of its effect: the table of `effects.py` is complete and true, and what it lacked is here."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tokenizers import processors

from services.frontend.api.schema import ChatRequest, CompletionRequest, StreamOptions
from shared.messages.scheduler import Submit
from tests.frontend.client import COMPLETIONS, PATH
from tests.frontend.conftest import Deployment, deploy
from tests.frontend.effects import EFFECTS
from tests.frontend.small_core import START, make_tokenizer, tokens_of, write_core

ROOT = Path(__file__).resolve().parents[2]
REQUESTS: dict[str, type[msgspec.Struct]] = {PATH: ChatRequest, COMPLETIONS: CompletionRequest}
TEMPLATE = "{{ '[think]' if enable_thinking else '[plain]' }}{{ messages[0]['content'] }}"
NONE = "none: "


def fields_of(body: type[msgspec.Struct]) -> Iterator[str]:
    """Names of a struct's fields as clients write them, those of `stream_options` with their path."""
    for field in msgspec.structs.fields(body):
        yield field.encode_name
        if field.name == "stream_options":
            yield from (f"stream_options.{nested}" for nested in fields_of(StreamOptions))


def source_of(test: str) -> str:
    """The source of a test that pytest would collect, with its decorators. Raises `LookupError`."""
    path, _, name = test.partition("::")
    text = (ROOT / path).read_text()
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name == name and name.startswith("test_"):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            return "\n".join(text.splitlines()[first - 1 : node.end_lineno])
    raise LookupError(f"no test {test}")


def test_every_field_is_in_the_table_and_no_other() -> None:
    served = {(path, name) for path, body in REQUESTS.items() for name in fields_of(body)}
    assert set(EFFECTS) == served


@pytest.mark.parametrize("field", EFFECTS, ids=lambda field: f"{field[0]} {field[1]}")
def test_each_named_test_is_there_and_speaks_of_its_field(field: tuple[str, str]) -> None:
    _, name = field
    test = EFFECTS[field]
    if test.startswith(NONE):
        assert len(test) > len(NONE) + 10, "a reason"
        return
    source = source_of(test)
    if name != "messages":  # each chat has them
        assert name.rpartition(".")[2] in source


@pytest.fixture(scope="module")
def optional(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A frontend whose tokenizer opens a text and whose template has an option."""
    folder = tmp_path_factory.mktemp("optional")
    digest = write_core(folder)
    tokenizer = make_tokenizer()
    opening = "<|im_start|>"
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{opening} $A", pair=f"{opening} $A {opening} $B", special_tokens=[(opening, START)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"chat_template": TEMPLATE, "eos_token": "<|im_end|>", "bos_token": opening}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    with deploy((folder, digest), tmp_path_factory.mktemp("run")) as deployed:
        yield deployed


def prompt_of(served: Deployment, path: str, **fields: Any) -> tuple[int, ...]:
    """What the scheduler was given."""
    served.scheduler.received.clear()
    served.at(path).both(max_tokens=2, **fields)
    first, second = served.scheduler.of(Submit)
    assert first.prompt == second.prompt
    return tuple(first.prompt)


def test_a_template_option_changes_the_prompt(optional: Deployment) -> None:
    plain = tuple(tokens_of("[plain]hi"))
    assert prompt_of(optional, PATH) == plain
    assert prompt_of(optional, PATH, chat_template_kwargs={"enable_thinking": False}) == plain
    thinking = prompt_of(optional, PATH, chat_template_kwargs={"enable_thinking": True})
    assert thinking == tuple(tokens_of("[think]hi"))


def test_special_tokens_of_the_tokenizer_are_added_unless_refused(optional: Deployment) -> None:
    bare = tuple(tokens_of("hi"))
    assert prompt_of(optional, COMPLETIONS) == (START, *bare)
    assert prompt_of(optional, COMPLETIONS, add_special_tokens=True) == (START, *bare)
    assert prompt_of(optional, COMPLETIONS, add_special_tokens=False) == bare


@pytest.mark.parametrize("path", [PATH, COMPLETIONS])
def test_a_stream_is_events_and_its_usage_is_asked_for(served: Deployment, path: str) -> None:
    whole = served.at(path).post(stream=False, max_tokens=5)
    assert whole.headers["content-type"] == "application/json"
    assert whole.json()["usage"]["completion_tokens"] == 5
    for options in (None, {}, {"include_usage": False}):
        with served.at(path).streaming(stream_options=options, max_tokens=5) as events:
            *_, answer = events
        assert (answer.done, answer.text, answer.usage) == (True, "hello", None)
    with served.at(path).streaming(stream_options={"include_usage": True}, max_tokens=5) as events:
        *_, answer = events
    assert answer.usage == whole.json()["usage"]
    assert answer.events[-1]["choices"] == []
