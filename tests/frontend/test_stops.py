"""Stop strings over text: the first completed stop cuts, whatever the pieces; only proper prefixes are held (B21)."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.frontend.stops import StopStrings

TEXT = st.text(alphabet="abcé", max_size=24)
STOPS = st.lists(st.text(alphabet="abcé", min_size=1, max_size=4), max_size=3).map(tuple)


def reference(text: str, stops: tuple[str, ...]) -> tuple[str, str | None]:
    """Grows the text by one character at a time and cuts at the longest stop that it ends with."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, None


def run(pieces: list[str], stops: tuple[str, ...]) -> tuple[str, str | None]:
    matcher = StopStrings(stops)
    text = "".join(matcher.feed(piece) for piece in pieces)
    return text + matcher.flush(), matcher.stopped


@settings(max_examples=1000, deadline=None)
@given(text=TEXT, stops=STOPS, cuts=st.sets(st.integers(0, 24)))
def test_every_split_equals_the_reference(text: str, stops: tuple[str, ...], cuts: set[int]) -> None:
    edges = [0, *sorted(c for c in cuts if c < len(text)), len(text)]
    pieces = [text[a:b] for a, b in pairwise(edges)]
    assert run(pieces, stops) == reference(text, stops)


@settings(max_examples=300, deadline=None)
@given(text=TEXT, stops=STOPS)
def test_only_a_proper_prefix_of_a_stop_is_held(text: str, stops: tuple[str, ...]) -> None:
    matcher, released = StopStrings(stops), ""
    for index, character in enumerate(text):
        released += matcher.feed(character)
        if matcher.stopped is not None:
            break
        held = text[len(released) : index + 1]
        longest = max(
            (n for stop in stops for n in range(len(stop)) if text[: index + 1].endswith(stop[:n])), default=0
        )
        assert len(held) == longest


@pytest.mark.parametrize(
    ("pieces", "stops", "expected"),
    [
        (["fox w", "n f", "oxes"], ("\nUser:", "wn fo"), ("fox ", "wn fo")),
        (["a\nUs"], ("\nUser:",), ("a\nUs", None)),
        (["xabc"], ("abc", "ab"), ("x", "ab")),
        (["xabcd"], ("bcd", "abcd"), ("x", "abcd")),
        (["aab"], ("ab",), ("a", "ab")),
        (["plain"], (), ("plain", None)),
    ],
)
def test_known_cases(pieces: list[str], stops: tuple[str, ...], expected: tuple[str, str | None]) -> None:
    assert run(pieces, stops) == expected


def test_nothing_comes_out_after_a_stop() -> None:
    matcher = StopStrings(("x",))
    assert matcher.feed("axb") == "a"
    assert matcher.feed("more") == ""
    assert matcher.flush() == ""
