"""Stop strings over decoded text: a pure policy of the frontend process; no socket, no clock.

The scan goes character by character, so the cut depends on the text alone and never on how tokens or rounds split it:
the stop that is *completed* first ends the text, and of several that end at one character the one that began first.
Only a suffix that is a proper prefix of some stop is held back (cases.md, B01 and B21).
"""

from __future__ import annotations

from dataclasses import dataclass, field


def _failures(pattern: str) -> tuple[int, ...]:
    """Knuth-Morris-Pratt: for each prefix, the length of its longest proper prefix that is also its suffix."""
    table = [0] * len(pattern)
    matched = 0
    for index in range(1, len(pattern)):
        while matched and pattern[index] != pattern[matched]:
            matched = table[matched - 1]
        matched += pattern[index] == pattern[matched]
        table[index] = matched
    return tuple(table)


@dataclass(slots=True)
class _Pattern:
    """One stop string and how much of it the text so far ends with."""

    text: str
    failures: tuple[int, ...]
    matched: int = 0

    def advance(self, character: str) -> bool:
        """Takes one character; True when the stop is complete."""
        while self.matched and self.text[self.matched] != character:
            self.matched = self.failures[self.matched - 1]
        self.matched += self.text[self.matched] == character
        return self.matched == len(self.text)


@dataclass(slots=True)
class StopStrings:
    """Holds text back while it may become a stop string. After `stopped` is set nothing more comes out.

    With `keep` the stop string itself is the last that comes out.
    """

    strings: tuple[str, ...]
    keep: bool = False
    stopped: str | None = None
    """The stop string that ended the text."""
    _patterns: list[_Pattern] = field(init=False)
    _held: str = field(init=False, default="")

    def __post_init__(self) -> None:
        self._patterns = [_Pattern(text, _failures(text)) for text in dict.fromkeys(self.strings)]

    def feed(self, text: str) -> str:
        """Takes decoded text and returns what can no longer become part of a stop."""
        if self.stopped is not None:
            return ""
        if not self._patterns:
            return text
        buffered = self._held + text
        for index in range(len(self._held), len(buffered)):
            complete = [p for p in self._patterns if p.advance(buffered[index])]
            if complete:
                self.stopped = max(complete, key=lambda p: len(p.text)).text
                self._held = ""
                return buffered[: index + 1 - (0 if self.keep else len(self.stopped))]
        keep = len(buffered) - max(p.matched for p in self._patterns)
        self._held = buffered[keep:]
        return buffered[:keep]

    def flush(self) -> str:
        """What was held, once no more text can come."""
        held, self._held = self._held, ""
        return held
