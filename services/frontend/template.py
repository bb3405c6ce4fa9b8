"""The checkpoint's chat template, compiled once, and what a client may tell it. Frontend process, worker thread.

Each error of a template costs one request; what its author says there is the client's to read, the source is not, and
no text of a client comes back in it (cases.md, B29).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
from jinja2 import Template, TemplateError, nodes
from jinja2.meta import find_undeclared_variables

from services.frontend.sandbox import SAYINGS, Sandbox, timed
from shared.errors import InvalidRequest, ProcessError

Message = dict[str, str]
"""A message as templates know it: "role", "content" and perhaps "name"."""

RENDERED_FACTOR = 4
RENDERED_MINIMUM = 1 << 20
"""A prompt may have this many characters, and this many times the client's, before it is refused."""
LONGEST_OPTION = 256
_LARGEST_OPTION = 1 << 53
_LONGEST_REASON = 2000
_SHORTEST_SAYING = 2
_PLACE = re.compile(r"%[-#0 +]*\d*(?:\.\d+)?[a-zA-Z]|\{[^{}]*\}")
"""Where a format puts something."""
_OURS = frozenset(
    {"messages", "tools", "documents", "chat_template", "tokenize", "add_generation_prompt", "continue_final_message"}
)

_SEARCHES = frozenset({"split", "rsplit", "partition", "rpartition", "replace", "startswith", "endswith", "find"})

_BROKEN = (TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError)
"""Templates index, concatenate and recurse freely; what they cannot take is the conversation, not the server."""


def _sayings(tree: nodes.Template) -> tuple[str, ...]:
    """What the template's author wrote as text, longest first; texts to be formatted fall into their pieces."""
    written = {c.value for c in tree.find_all(nodes.Const) if isinstance(c.value, str)} | set(SAYINGS)
    pieces = {piece for text in written for piece in _PLACE.split(text) if piece and len(piece) >= _SHORTEST_SAYING}
    return tuple(sorted(pieces, key=len, reverse=True))


def _told(message: str, sayings: Sequence[str]) -> str:
    """What of an error's message is the template's own; anything else may be a client's text and becomes dots."""
    if len(message) > _LONGEST_REASON:
        return "its reason is too long to tell"
    told: list[str] = []
    place = 0
    while place < len(message):
        own = next((saying for saying in sayings if message.startswith(saying, place)), None)
        if own is None and (not told or told[-1] != "..."):
            told.append("...")
        elif own is not None:
            told.append(own)
        place += len(own or " ")
    return "".join(c if c.isprintable() else " " for c in "".join(told)[:300])


def _sought(tree: nodes.Template) -> Iterator[str]:
    """Constants that the template looks for in strings: of `in`, and of methods such as `split`."""
    found = [c.expr for c in tree.find_all(nodes.Compare) if any(o.op in ("in", "notin") for o in c.ops)]
    for call in tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Getattr) and call.node.attr in _SEARCHES:
            found += call.args
    return (node.value for node in found if isinstance(node, nodes.Const) and isinstance(node.value, str))


class ChatTemplate:
    """A compiled template with its special tokens.

    `variables` are the names that a client may set, `sought` the texts at which it may take strings apart.
    """

    def __init__(self, source: str, special: Mapping[str, str]) -> None:
        environment = Sandbox()
        try:
            self._template: Template = environment.from_string(source)
            tree = environment.parse(source)
            found = find_undeclared_variables(tree)
        except TemplateError as error:
            raise ProcessError(f"the core's chat template does not compile: {error}") from error
        self.variables = frozenset(name for name in found - _OURS if not name.endswith("_token"))
        self.sought = frozenset(_sought(tree))
        self._sayings = _sayings(tree)
        self._special = dict(special)

    def options(self, kwargs: Mapping[str, object] | None) -> dict[str, object]:
        """`chat_template_kwargs`, checked: scalars under names that the template reads and that are not ours.

        Null is as if it were not given. Raises `InvalidRequest` naming the option.
        """
        checked: dict[str, object] = {}
        for name, value in (kwargs or {}).items():
            shown = name if name.isidentifier() and name.isascii() and len(name) <= 64 else "?"
            param = f"chat_template_kwargs.{shown}"
            if name not in self.variables:
                raise InvalidRequest("the chat template of this model has no such option", param=param)
            if isinstance(value, str):
                if len(value) > LONGEST_OPTION:
                    raise InvalidRequest(f"an option has at most {LONGEST_OPTION} characters", param=param)
            elif isinstance(value, bool | int | float):
                if not math.isfinite(value) or abs(value) > _LARGEST_OPTION:
                    raise InvalidRequest("this number is too large", param=param)
            elif value is not None:
                raise InvalidRequest("an option must be a boolean, a number or a string", param=param)
            if value is not None:
                checked[name] = value
        return checked

    def render(
        self,
        turns: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        options: Mapping[str, object] | None = None,
    ) -> str:
        """The prompt of a conversation; `options` were checked. Raises `InvalidRequest` if the template refuses it."""
        given = {
            "messages": list(turns),
            "tools": None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        room = RENDERED_MINIMUM + RENDERED_FACTOR * sum(len(text) for turn in turns for text in turn.values())
        parts: list[str] = []
        try:
            with timed():
                for part in self._template.generate({**(options or {}), **self._special, **given}):
                    parts.append(part)
                    room -= len(part)
                    if room < 0:
                        raise InvalidRequest("the chat template makes too long a prompt of it", param="messages")
        except TemplateError as error:
            told = _told(error.message or "no reason given", self._sayings)
            reason = f"the chat template refuses these messages: {told}"
            raise InvalidRequest(reason, param="messages") from error
        except _BROKEN as error:
            raise InvalidRequest("the chat template cannot render these messages", param="messages") from error
        return "".join(parts)

    def render_open(self, turns: Sequence[Message], end: str, *, options: Mapping[str, object] | None = None) -> str:
        """The prompt of a conversation up to the end of its last message, which is to be continued.

        `end` is a character that no message has: it stands after the last message while the template renders. As in
        transformers, white space that the template trims there is trimmed here. Raises `InvalidRequest`.
        """
        *earlier, last = turns
        tried = self.render(
            [*earlier, {**last, "content": f"{last['content']}{end} "}], add_generation_prompt=False, options=options
        )
        text, found, after = tried.rpartition(end)
        if not found or last["content"].strip() not in text:
            raise InvalidRequest(
                "the chat template does not keep the last message, so it cannot be continued",
                param="continue_final_message",
            )
        return text if after.startswith(" ") else text.rstrip()


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


def read_settings(core: Path) -> dict[str, Any]:
    """tokenizer_config.json of a core folder. Raises `ProcessError`."""
    path = core / "tokenizer_config.json"
    try:
        settings = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise ProcessError(f"cannot read {path}: {error}") from error
    if not isinstance(settings, dict):
        raise ProcessError(f"{path} is not an object")
    return settings


def special_texts(settings: Mapping[str, Any]) -> dict[str, str]:
    """`bos_token` and its kin, by name."""
    return {
        name: text
        for name, token in settings.items()
        if name.endswith("_token") and (text := _text_of(token)) is not None
    }


def read_template(core: Path) -> ChatTemplate:
    """The chat template of a core folder. Raises `ProcessError`."""
    settings = read_settings(core)
    return ChatTemplate(_source(settings.get("chat_template"), core / "chat_template.jinja"), special_texts(settings))
