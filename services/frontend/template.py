"""The checkpoint's chat template in a sandbox, with the conventions of Hugging Face. Frontend process, worker thread.

A template is code of the checkpoint's author over text of a stranger: it may neither change objects nor reach
attributes outside the sandbox, and each of its errors costs one request.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import orjson
from jinja2 import Template, TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from shared.errors import InvalidRequest, ProcessError

Message = dict[str, str]
"""A message as templates know it: "role", "content" and perhaps "name"."""


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As transformers has it: plain JSON, without the HTML escapes of jinja2's own filter."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class ChatTemplate:
    """A compiled template with its special tokens."""

    def __init__(self, source: str, special: dict[str, str]) -> None:
        try:
            self._template: Template = _environment().from_string(source)
        except TemplateError as error:
            raise ProcessError(f"the core's chat template does not compile: {error}") from error
        self._special = special

    def render(self, turns: Sequence[Message]) -> str:
        """The prompt of a conversation. Raises `InvalidRequest` when the template refuses it."""
        try:
            return self._template.render(
                messages=list(turns), tools=None, documents=None, add_generation_prompt=True, **self._special
            )
        except TemplateError as error:
            raise InvalidRequest(
                f"the chat template refuses these messages: {error.message}"[:300], param="messages"
            ) from error
        except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
            # Templates index and concatenate freely; what they cannot take is the conversation, not the server.
            raise InvalidRequest("the chat template cannot render these messages", param="messages") from error


def _text_of(token: Any) -> str | None:
    """A special token in tokenizer_config.json is a string or an object with `content`."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def _source(declared: Any, file: Path) -> str:
    if file.exists():
        return file.read_text(encoding="utf-8")
    if isinstance(declared, list):
        named = {entry.get("name"): entry.get("template") for entry in declared if isinstance(entry, dict)}
        declared = named.get("default")
    if not isinstance(declared, str):
        raise ProcessError(f"{file.parent} has no chat template: neither {file.name} nor one in tokenizer_config.json")
    return declared


def read_template(core: Path) -> ChatTemplate:
    """The chat template of a core folder. Raises `ProcessError`."""
    path = core / "tokenizer_config.json"
    try:
        settings = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise ProcessError(f"cannot read {path}: {error}") from error
    special = {
        name: text
        for name, token in settings.items()
        if name.endswith("_token") and (text := _text_of(token)) is not None
    }
    return ChatTemplate(_source(settings.get("chat_template"), core / "chat_template.jinja"), special)
