"""Bytes of tokens to text: exact under every split, never blocked, the tail flushed once (B20)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.frontend.detokenizer import Detokenizer

PIECES = st.lists(st.one_of(st.binary(max_size=3), st.sampled_from(["é", "👨‍👩‍👧", "語"]).map(str.encode)), max_size=8)


@settings(max_examples=1000, deadline=None)
@given(pieces=PIECES, size=st.integers(1, 4))
def test_deltas_join_to_the_decoding_of_the_whole(pieces: list[bytes], size: int) -> None:
    data = b"".join(pieces)
    decoder = Detokenizer()
    deltas = [decoder.feed(data[start : start + size]) for start in range(0, len(data), size)]
    assert "".join(deltas) + decoder.flush() == data.decode("utf-8", "replace")


def test_a_character_appears_only_when_it_is_complete() -> None:
    decoder = Detokenizer()
    assert [decoder.feed(bytes([byte])) for byte in "🙂".encode()] == ["", "", "", "🙂"]


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_a_cut_character_is_flushed_once(kept: int) -> None:
    decoder = Detokenizer()
    assert decoder.feed("a🙂".encode()[: 1 + kept]) == "a"
    assert decoder.flush() == "\ufffd"
    assert decoder.flush() == ""


def test_a_stray_byte_does_not_block() -> None:
    decoder = Detokenizer()
    assert decoder.feed(b"\xff") == "\ufffd"
    assert decoder.feed(b"ok") == "ok"
