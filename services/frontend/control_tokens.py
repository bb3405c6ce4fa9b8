"""The control tokens of a tokenizer as text: where a string holds one, or could become part of one. Pure; frontend.

Control tokens are all added tokens, special or not (`<think>` too), except runs of white space, which some vocabularies
add as ordinary text. What a client writes must never become one (cases.md, B28), so this module errs on one side: a
span that it reports costs a little work, a literal that it misses would be a forged turn.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

WINDOW = 1 << 16
"""Characters searched in one call of the regular expression, which holds the interpreter's lock meanwhile."""

Span = tuple[int, int]
"""Start and end in a string, half open."""


def _branch(node: dict[str, Any]) -> str:
    """The regular expression of a trie below `node`, longest first; the key "" says that a literal ends here."""
    written = ""
    while len(node) == 1 and "" not in node:
        ((character, node),) = node.items()
        written += re.escape(character)
    branches = [re.escape(c) + _branch(child) for c, child in sorted(node.items()) if c]
    if not branches:
        return written
    return f"{written}(?:{'|'.join(branches)}){'?' if '' in node else ''}"


def _pattern(literals: Iterable[str]) -> re.Pattern[str]:
    """Matches the leftmost and of those the longest literal, as the tokenizers library does, in linear time."""
    root: dict[str, Any] = {}
    for literal in literals:
        node = root
        for character in literal:
            node = node.setdefault(character, {})
        node[""] = {}
    return re.compile(_branch(root) if root else r"(?!)")


def _starts(ordered: list[str], head: str) -> bool:
    """Whether `head` is a proper prefix of one of the sorted strings."""
    index = bisect_left(ordered, head)
    if index < len(ordered) and ordered[index] == head:
        index += 1
    return index < len(ordered) and ordered[index].startswith(head)


def _merged(spans: list[Span]) -> list[Span]:
    """Sorted, with those that overlap made one."""
    found: list[Span] = []
    for start, end in sorted(spans):
        if found and start < found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


@dataclass(slots=True)
class ControlTokens:
    """The literals with their ids. Read-only after construction."""

    ids: dict[str, int]
    _search: re.Pattern[str] = field(init=False)
    _ordered: list[str] = field(init=False)
    _mirrored: list[str] = field(init=False)
    _together: str = field(init=False)
    _longest: int = field(init=False)

    def __post_init__(self) -> None:
        self._search = _pattern(self.ids)
        self._ordered = sorted(self.ids)
        self._mirrored = sorted(literal[::-1] for literal in self.ids)
        self._together = "\0".join(self.ids)
        self._longest = max(map(len, self.ids), default=0)

    def find(self, text: str) -> Iterator[Span]:
        """Each whole literal, as the tokenizer would match it."""
        position = 0
        while position < len(text):
            limit = min(position + WINDOW + self._longest, len(text))
            found = self._search.search(text, position, limit)
            if found is None:
                position = limit if limit == len(text) else limit - self._longest + 1
            elif limit < len(text) and found.start() + self._longest > limit:
                position = found.start()  # the window may have cut a longer literal
            else:
                yield found.span()
                position = found.end()

    def spans(self, text: str) -> list[Span]:
        """What of a client's string must be kept from becoming a control token, sorted, without overlap.

        Whole literals; an end that could be completed by what follows, a beginning by what stands before; and a string
        that is wholly the inside of a literal.
        """
        if not self.ids or not text:
            return []
        if len(text) < self._longest and text in self._together:
            return [(0, len(text))]
        return _merged([*self.find(text), *self._borders(text)])

    def touches(self, text: str) -> bool:
        """Whether the string holds a literal, or one could reach into it from outside."""
        return any(True for _ in self.find(text)) or any(True for _ in self._borders(text))

    def _borders(self, text: str) -> Iterator[Span]:
        """Open ends, of the string as it is and as a template's `trim` leaves it."""
        size = len(text)
        for end in {size, len(text.rstrip())}:
            for length in range(min(self._longest - 1, end), 0, -1):
                if _starts(self._ordered, text[end - length : end]):
                    yield end - length, end
                    break
        for start in {0, size - len(text.lstrip())}:
            for length in range(min(self._longest - 1, size - start), 0, -1):
                if _starts(self._mirrored, text[start : start + length][::-1]):
                    yield start, start + length
                    break
