"""Raw bytes of every token of a vocabulary, made once when the frontend starts; read-only afterwards.

Understands the byte-level alphabet (GPT-2, Llama 3, Qwen, SmolLM2) and SentencePiece vocabularies with byte fallback.
Added tokens stand for their own text; special ones are part of no answer, so they have no visible bytes.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Any

import orjson
from tokenizers import Tokenizer

from shared.errors import ProcessError


def byte_alphabet() -> dict[str, int]:
    """GPT-2's mapping of printable characters to bytes: printable Latin-1 is itself, the rest starts at U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in set(printable)]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(0x100 + rank): byte for rank, byte in enumerate(hidden)})
    return alphabet


def _types(node: Any) -> set[str]:
    """All `type` names in a component of tokenizer.json."""
    if isinstance(node, dict):
        found = {node["type"]} if isinstance(node.get("type"), str) else set()
        return found.union(*(_types(child) for child in node.values()))
    if isinstance(node, list):
        return set[str]().union(*(_types(child) for child in node))
    return set()


@dataclass(frozen=True, slots=True)
class _ByteLevel:
    alphabet: dict[str, int]

    def __call__(self, token: str) -> bytes:
        try:
            return bytes([self.alphabet[character] for character in token])
        except KeyError:  # outside the alphabet: the library, too, takes such a token as plain text
            return token.encode()


def _sentence_piece(token: str) -> bytes:
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        try:
            return bytes([int(token[3:5], 16)])
        except ValueError:
            pass
    return token.replace("\u2581", " ").encode()


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Bytes of token i are `_bytes[_ends[i] : _ends[i + 1]]`; special tokens are kept apart."""

    _bytes: bytes
    _ends: array[int]
    special: frozenset[int]

    def __len__(self) -> int:
        return len(self._ends) - 1

    def raw(self, token: int) -> bytes:
        """The token's own bytes, special or not; b"" for an id that the tokenizer does not know."""
        if not 0 <= token < len(self):
            return b""
        return self._bytes[self._ends[token] : self._ends[token + 1]]

    def visible(self, token: int) -> bytes:
        """What the token adds to an answer: nothing if it is special."""
        return b"" if token in self.special else self.raw(token)


def read_vocabulary(tokenizer: Tokenizer, definition: bytes) -> Vocabulary:
    """The vocabulary of a tokenizer; `definition` is its tokenizer.json. Raises `ProcessError` for an unknown kind."""
    parsed = orjson.loads(definition)
    decoder = _types(parsed.get("decoder"))
    if "ByteLevel" in decoder:
        convert: Any = _ByteLevel(byte_alphabet())
    elif decoder & {"ByteFallback", "Metaspace", "Replace"}:
        convert = _sentence_piece
    elif not decoder:
        convert = str.encode
    else:
        raise ProcessError(f"a tokenizer with decoder {', '.join(sorted(decoder))} is not supported")
    del parsed  # tens of megabytes for a large vocabulary
    added = tokenizer.get_added_tokens_decoder()
    size = max(tokenizer.get_vocab_size(with_added_tokens=True), max(added, default=-1) + 1)
    content, ends = bytearray(), array("I", [0])
    for index in range(size):
        if index in added:
            content += added[index].content.encode()
        else:
            token = tokenizer.id_to_token(index)
            content += b"" if token is None else convert(token)
        ends.append(len(content))
    return Vocabulary(bytes(content), ends, frozenset(i for i, token in added.items() if token.special))
