"""Prompts of `/v1/completions`: a text, texts, token ids, or several of them, as token ids. Pure; worker threads.

Ids are checked here, since behind this process they are indices into tables of the device (cases.md, B50).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from services.frontend.core import Core
from shared.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids, and the text that `echo` gives back."""

    ids: tuple[int, ...]
    text: str = ""

    def lead(self, core: Core) -> int:
        """Characters that the tokenizer put before the text. Blocking: decodes all of it."""
        return max(len(_decoded(core, self.ids)) - len(self.text), 0)


def _text(core: Core, text: str, add_special_tokens: bool) -> Prompt:
    return Prompt(core.encode_text(text, add_special_tokens=add_special_tokens), text)


def _ids(core: Core, ids: Sequence[object], path: str) -> Prompt:
    if not ids:
        raise InvalidRequest("a prompt needs at least one token", param=path)
    vocabulary = core.manifest.geometry.vocab_size
    taken = []
    for index, token in enumerate(ids):
        if not isinstance(token, int):
            raise InvalidRequest("a prompt is either a text or token ids, not a mixture", param=f"{path}[{index}]")
        if not 0 <= token < vocabulary:
            raise InvalidRequest(f"token ids lie between 0 and {vocabulary - 1}", param=f"{path}[{index}]")
        taken.append(token)
    return Prompt(tuple(taken), _decoded(core, taken))


def _decoded(core: Core, ids: Sequence[int]) -> str:
    return b"".join(core.vocabulary.raw(token) for token in ids).decode("utf-8", "replace")


def prompts(core: Core, value: str | list[str | int | list[int]], add_special_tokens: bool) -> list[Prompt]:
    """The prompts in order. Blocking. Raises `InvalidRequest` with the path of what is wrong."""
    if isinstance(value, str):
        return [_text(core, value, add_special_tokens)]
    if not value:
        raise InvalidRequest("prompt must not be empty", param="prompt")
    if isinstance(value[0], int):
        return [_ids(core, value, "prompt")]
    found = []
    for index, item in enumerate(value):
        if type(item) is not type(value[0]):
            raise InvalidRequest("the prompts are either all texts or all token ids", param=f"prompt[{index}]")
        if isinstance(item, str):
            found.append(_text(core, item, add_special_tokens))
        elif isinstance(item, list):
            found.append(_ids(core, item, f"prompt[{index}]"))
    return found
