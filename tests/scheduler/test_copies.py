"""Both copy sources against naive searches: exact matches, the most recent one, never across a border."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from services.scheduler.continuations import CONTINUATION, Continuation, better
from services.scheduler.decoded_history import CAPACITY, DecodedHistory, Response
from services.scheduler.prompt_copies import PromptCopies
from shared.frames import Source

Found = tuple[list[int], int] | None
FEW = st.integers(0, 2)


def plain(found: Continuation | None) -> Found:
    return None if found is None else (found.tokens.tolist(), found.matched)


class NaiveRing:
    """All that was ever stored, searched from the end."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.stored: list[tuple[int, int]] = []
        """(response, index of the token in it)"""
        self.responses: dict[int, list[int]] = {}

    def append(self, response: int, tokens: list[int]) -> None:
        for token in tokens:
            mine = self.responses.setdefault(response, [])
            self.stored.append((response, len(mine)))
            mine.append(token)

    def find(self, known: list[int]) -> Found:
        for length in (8, 4):
            for response, at in reversed(self.stored[-self.capacity :]):
                mine = self.responses[response]
                if len(known) >= length and at >= length and mine[at - length : at] == known[-length:]:
                    return mine[at : at + CONTINUATION], length
        return None


@settings(max_examples=150, deadline=None)
@given(
    capacity=st.integers(1, 40),
    operations=st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.lists(FEW, max_size=9)), max_size=40),
    queries=st.lists(st.lists(FEW, max_size=10), min_size=1, max_size=10),
)
def test_ring_agrees_with_a_naive_search(
    capacity: int, operations: list[tuple[int, bool, list[int]]], queries: list[list[int]]
) -> None:
    ring, naive = DecodedHistory(capacity), NaiveRing(capacity)
    open_responses: dict[int, tuple[int, Response]] = {}
    serial = 0
    for lane, ends, tokens in operations:
        if lane not in open_responses:
            serial += 1
            open_responses[lane] = (serial, Response())
        number, response = open_responses[lane]
        ring.append(response, np.array(tokens, dtype=np.int32))
        naive.append(number, tokens)
        if ends:
            del open_responses[lane]
        suffix = naive.responses.get(number, [])[-8:]
        for query in (*queries, suffix):
            assert plain(ring.find(np.array(query, dtype=np.int32))) == naive.find(query)
    assert len(ring) == min(len(naive.stored), capacity)


@settings(max_examples=150, deadline=None)
@given(tokens=st.lists(FEW, min_size=1, max_size=60), steps=st.lists(st.integers(1, 9), max_size=20))
def test_own_context_agrees_with_a_naive_search(tokens: list[int], steps: list[int]) -> None:
    buffer = np.array(tokens, dtype=np.int32)
    copies, known = PromptCopies(buffer), 0
    for step in steps:
        known = min(known + step, len(tokens))
        copies.advance(known)
        expected: Found = None
        for length in (8, 4):
            for at in range(known - 1, length - 1, -1):
                if expected is None and tokens[at - length : at] == tokens[known - length : known]:
                    text = tokens[at:known]
                    expected = ((text * CONTINUATION)[:CONTINUATION], length)
        assert plain(copies.find(known)) == expected


def test_a_response_that_ends_at_the_ring_end_has_no_continuation() -> None:
    ring, first = DecodedHistory(16), Response()
    text = np.arange(16, dtype=np.int32)
    ring.append(first, text)
    ring.append(Response(), np.arange(100, 104, dtype=np.int32))
    assert ring.find(text[-8:]) is None
    assert plain(ring.find(text[:12])) == ([12, 13, 14, 15], 8)


def test_overflow_during_a_match_forgets_what_was_overwritten() -> None:
    ring = DecodedHistory(20)
    text = np.arange(16, dtype=np.int32)
    ring.append(Response(), text)
    for count in range(12):
        ring.append(Response(), np.array([200 + count], dtype=np.int32))
        found = ring.find(text[:8])
        assert (found is None) == (count >= 12)
    ring.append(Response(), np.array([300], dtype=np.int32))
    assert ring.find(text[:8]) is None
    assert plain(ring.find(text[:12])) == ([12, 13, 14, 15], 8)


def test_the_ring_of_a_server_stays_within_its_capacity() -> None:
    ring, response = DecodedHistory(), Response()
    ring.append(response, np.arange(CAPACITY + 5_000, dtype=np.int32))
    assert len(ring) == CAPACITY
    assert len(ring._index) <= 2 * CAPACITY


def test_the_longer_match_wins_and_of_equals_the_own_context() -> None:
    def match(length: int, source: Source) -> Continuation:
        return Continuation(np.zeros(1, dtype=np.int32), length, source)

    assert better(match(4, Source.PROMPT), match(8, Source.HISTORY)) == match(8, Source.HISTORY)
    for length in (4, 8):
        prompt = match(length, Source.PROMPT)
        assert better(prompt, match(length, Source.HISTORY)) is prompt
    assert better(None, None) is None
