"""Where a string holds a control token or could become part of one: against plain definitions of both."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.frontend import control_tokens
from services.frontend.control_tokens import ControlTokens

LITERALS = ("<a>", "<a>b", "<ab|>", "[a]", "a|b", "<<a>")
TOKENS = ControlTokens({literal: index for index, literal in enumerate(LITERALS)})
TEXTS = st.text(st.sampled_from("<ab>|[] "), max_size=30)


def leftmost_longest(text: str) -> list[tuple[int, int]]:
    found, position = [], 0
    while position < len(text):
        fitting = [literal for literal in LITERALS if text.startswith(literal, position)]
        if fitting:
            found.append((position, position + max(map(len, fitting))))
            position = found[-1][1]
        else:
            position += 1
    return found


@pytest.mark.parametrize("window", [1, 2, 5, 1 << 16])
def test_literals_are_found_as_the_tokenizer_finds_them(monkeypatch: pytest.MonkeyPatch, window: int) -> None:
    monkeypatch.setattr(control_tokens, "WINDOW", window)

    @settings(max_examples=400, deadline=None, database=None)
    @given(TEXTS)
    def holds(text: str) -> None:
        assert list(TOKENS.find(text)) == leftmost_longest(text)

    holds()


@settings(max_examples=400, deadline=None, database=None)
@given(TEXTS, TEXTS.filter(bool), TEXTS)
def test_what_is_left_can_form_no_literal_with_its_neighbours(before: str, text: str, after: str) -> None:
    """Spans are cut out of the text; a literal may then lie in what stands around it, but not reach into its rest."""
    spans = TOKENS.spans(text)
    assert all(0 <= start < end <= len(text) for start, end in spans)
    assert all(left[1] <= right[0] for left, right in pairwise(spans))
    pieces, position = [], 0
    for start, end in spans:
        pieces.append(text[position:start])
        position = end
    pieces.append(text[position:])
    first, last = before, after
    if len(pieces) == 1:
        joined = first + pieces[0] + last
        reaching = (len(first), len(first) + len(pieces[0]))
        assert not [s for s in leftmost_longest_anywhere(joined) if s[0] < reaching[1] and s[1] > reaching[0]]
        return
    for piece in pieces[1:-1]:
        assert not leftmost_longest_anywhere(piece)
    head, tail = first + pieces[0], pieces[-1] + last
    assert not [span for span in leftmost_longest_anywhere(head) if span[1] > len(first)]
    assert not [span for span in leftmost_longest_anywhere(tail) if span[0] < len(pieces[-1])]


def leftmost_longest_anywhere(text: str) -> list[tuple[int, int]]:
    """Every occurrence of every literal, overlapping ones too."""
    return [
        (start, start + len(literal))
        for literal in LITERALS
        for start in range(len(text))
        if text.startswith(literal, start)
    ]


def test_a_tokenizer_without_control_tokens_finds_nothing() -> None:
    nothing = ControlTokens({})
    assert not nothing.spans("<a>")
    assert not list(nothing.find("<a>"))
    assert not nothing.touches("<a>")


def test_an_inside_of_a_literal_matters_only_alone() -> None:
    assert TOKENS.spans("ab|") == [(0, 3)]
    assert not TOKENS.spans("x ab| x")
    assert not TOKENS.touches("ab")
    assert TOKENS.touches("b")
