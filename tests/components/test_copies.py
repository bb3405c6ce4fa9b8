"""A copy continuation is sliced at the pending token that the device has, not at the one the host knew."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from recipes.components.copies import continuation_slice

TEXT = [5, 6, 7, 8, 9, 10, 11, 12]


def test_the_slice_starts_behind_the_pending_token() -> None:
    assert continuation_slice(TEXT, 100, 101, 5, 6, 3) == (7, 8, 9)
    assert continuation_slice(TEXT, 100, 105, 9, 10, 7) == (11, 12)


def test_both_pending_and_predecessor_must_agree() -> None:
    assert continuation_slice(TEXT, 100, 101, 4, 6, 3) == ()
    assert continuation_slice(TEXT, 100, 101, 5, 9, 3) == ()


def test_a_continuation_that_does_not_cover_both_gives_nothing() -> None:
    assert continuation_slice(TEXT, 100, 100, 4, 5, 3) == ()
    assert continuation_slice(TEXT, 100, 108, 12, 13, 3) == ()
    assert continuation_slice(TEXT, 100, 99, 0, 0, 3) == ()
    assert continuation_slice((), 0, 0, 0, 0, 3) == ()


@given(st.integers(0, 7), st.integers(0, 7), st.integers(0, 8))
def test_after_any_accepted_count_the_slice_is_what_follows(accepted: int, limit: int, start: int) -> None:
    text = list(range(1000, 1018))
    consumed = 50 + start + accepted
    expected = tuple(text[start + accepted + 2 : start + accepted + 2 + limit])
    previous, pending = text[start + accepted], text[start + accepted + 1]
    found = continuation_slice(text, 49, consumed, previous, pending, limit)
    assert found == expected
