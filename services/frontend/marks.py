"""Marks around spans of client text that a chat template carries into its prompt, and the cuts at them. Pure; frontend.

A mark is a few noncharacters (U+FDD0 to U+FDEF), of those that no string of the request has, and it tells which span
opens or closes. Where both marks of a span stand around a text, that text is the client's; every mark is a cut, so
nothing on one side of it can form a control token with what is on the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from services.frontend.control_tokens import Span
from shared.errors import InvalidRequest

NONCHARACTERS = tuple(map(chr, range(0xFDD0, 0xFDF0)))
_BASE = 16


def unused(strings: Iterable[str], count: int) -> list[str]:
    """Noncharacters that none of the strings has. Raises `InvalidRequest` if fewer than `count` are left."""
    left = set(NONCHARACTERS)
    for string in strings:
        if not string.isascii():
            left = {character for character in left if character not in string}
    if len(left) < count:
        raise InvalidRequest("the messages use too many of the noncharacters U+FDD0 to U+FDEF", param="messages")
    return sorted(left)[:count]


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the rendered prompt between two cuts; `client` if it is a marked span."""

    text: str
    client: bool


@dataclass(frozen=True, slots=True)
class _Mark:
    opens: bool
    span: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Tear:
    """A span that lost one of its two marks, and what of its text may stand where the text should be."""

    span: int
    left: str


@dataclass(slots=True)
class Marks:
    """The marks of one request. `spared` are numbers of spans that get none.

    `sought` are texts at which the template takes strings apart: between the marks of such a span there may be text of
    the template, which put the halves together again.
    """

    alphabet: Sequence[str]
    count: int
    sought: frozenset[str] = frozenset()
    spared: frozenset[int] = frozenset()
    texts: list[str] = field(default_factory=list)
    """The text of each span, by its number."""
    _width: int = field(init=False)

    CHARACTERS = 2 + _BASE
    """How many characters `alphabet` must have."""

    def __post_init__(self) -> None:
        self._width = max(1, len(f"{max(self.count - 1, 0):x}"))

    def _mark(self, kind: int, span: int) -> str:
        digits = f"{span:0{self._width}x}"
        return self.alphabet[kind] + "".join(self.alphabet[2 + int(digit, _BASE)] for digit in digits)

    def wrap(self, text: str, spans: Sequence[Span]) -> str:
        """The text with marks around its spans, which are numbered from call to call."""
        parts, position = [], 0
        for start, end in spans:
            number = len(self.texts)
            self.texts.append(text[start:end])
            if number not in self.spared:
                parts += [text[position:start], self._mark(0, number), text[start:end], self._mark(1, number)]
                position = end
        return "".join([*parts, text[position:]])

    def _found(self, rendered: str) -> list[_Mark]:
        opening, closing, *digits = self.alphabet
        value = {character: f"{index:x}" for index, character in enumerate(digits)}
        pattern = f"[{opening}{closing}][{''.join(digits)}]{{{self._width}}}"
        return [
            _Mark(
                found[0][0] == opening,
                int("".join(value[character] for character in found[0][1:]), _BASE),
                found.start(),
                found.end(),
            )
            for found in re.finditer(pattern, rendered)
        ]

    def _whole(self, before: _Mark | None, text: str, after: _Mark | None) -> bool:
        """Whether the text between two marks is the client's."""
        if before is None or after is None or not before.opens or after.opens or before.span != after.span:
            return False
        span = self.texts[before.span]
        return text == span or span not in self.sought

    def cut(self, rendered: str) -> tuple[list[Piece], list[Tear]]:
        """The pieces of a prompt without its marks, and the spans that the template tore."""
        pieces: list[Piece] = []
        tears: list[Tear] = []
        start, before = 0, None
        for mark in [*self._found(rendered), None]:
            text = rendered[start : mark.start if mark else len(rendered)]
            whole = self._whole(before, text, mark)
            if not whole and before is not None and before.opens:
                tears.append(Tear(before.span, _head(text, self.texts[before.span])))
            if not whole and mark is not None and not mark.opens:
                tears.append(Tear(mark.span, _head(text[::-1], self.texts[mark.span][::-1])[::-1]))
            if text:
                pieces.append(Piece(text, whole))
            start, before = (mark.end, mark) if mark else (start, None)
        return pieces, tears


def _head(text: str, span: str) -> str:
    """What both begin with."""
    length = 0
    while length < min(len(text), len(span)) and text[length] == span[length]:
        length += 1
    return span[:length]
