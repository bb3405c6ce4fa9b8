"""Tokens to raw bytes, for the kinds of vocabularies that checkpoints come with."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from services.frontend.vocabulary import Vocabulary, read_vocabulary
from shared.errors import ProcessError
from tests.frontend.small_core import END, MERGES, START, THINK, make_tokenizer


def read(tokenizer: Tokenizer) -> Vocabulary:
    return read_vocabulary(tokenizer, tokenizer.to_str().encode())


def test_byte_level_tokens_are_their_bytes() -> None:
    vocabulary = read(make_tokenizer())
    assert [vocabulary.raw(byte) for byte in range(256)] == [bytes([byte]) for byte in range(256)]
    assert vocabulary.raw(256 + MERGES.index(("Ġ", "w"))) == b" w"
    assert vocabulary.raw(256 + MERGES.index(("Ã", "©"))) == "é".encode()


def test_special_tokens_are_known_but_not_visible() -> None:
    vocabulary = read(make_tokenizer())
    assert vocabulary.raw(END) == b"<|im_end|>"
    assert vocabulary.visible(START) == vocabulary.visible(END) == b""
    assert vocabulary.visible(THINK) == b"<think>"


def test_ids_of_a_padded_head_have_no_bytes() -> None:
    vocabulary = read(make_tokenizer())
    assert vocabulary.raw(len(vocabulary)) == vocabulary.raw(-1) == b""


@settings(max_examples=300, deadline=None)
@given(text=st.text(max_size=40))
def test_encoded_text_comes_back_byte_for_byte(text: str) -> None:
    tokenizer = make_tokenizer()
    vocabulary = read(tokenizer)
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert b"".join(vocabulary.raw(token) for token in ids) == text.encode()


def test_byte_fallback_vocabularies() -> None:
    tokens = {"<unk>": 0, "<0xF0>": 1, "<0x9F>": 2, "▁he": 3, "llo": 4, "<0xZZ>": 5}
    tokenizer = Tokenizer(models.BPE(vocab=tokens, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    vocabulary = read(tokenizer)
    assert [vocabulary.raw(i) for i in range(1, 6)] == [b"\xf0", b"\x9f", b" he", b"llo", b"<0xZZ>"]


def test_an_unknown_kind_is_refused() -> None:
    tokenizer = Tokenizer(models.WordPiece(vocab={"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    with pytest.raises(ProcessError, match="WordPiece"):
        read(tokenizer)
