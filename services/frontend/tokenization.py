"""Text to tokens and back, by a tokenizer.json in two forms: as it is, and guarded. Frontend process, worker threads.

The guarded form is the same definition with each control token's literal replaced by an alias that nobody can guess, so
control tokens come out of it only where we put an alias, and the rest of the text is cut exactly as ever. Encoding goes
through the library's batch call: its plain one holds the interpreter's lock, 3.4 s for 3 MB, which would stop every
stream of the process.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from tokenizers import Tokenizer, processors

from services.frontend.control_tokens import ControlTokens, Span
from services.frontend.marks import NONCHARACTERS, Piece
from services.frontend.vocabulary import Vocabulary, read_vocabulary
from shared.errors import InvalidRequest, ProcessError

_SECRET_CHARACTERS = 12


def _plain(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _ids(tokenizer: Tokenizer, text: str, add_special_tokens: bool = False) -> list[int]:
    """Token ids, with the interpreter's lock released meanwhile."""
    (encoding,) = tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
    found: list[int] = encoding.ids
    return found


def _make_aliases(literals: Sequence[str]) -> dict[str, str]:
    """An alias for each literal: noncharacters, of which the first are random and the rest a number."""
    chosen = NONCHARACTERS[:16]
    secret = "".join(secrets.choice(NONCHARACTERS) for _ in range(_SECRET_CHARACTERS))
    width = len(f"{len(literals):x}")
    return {
        literal: secret + "".join(chosen[int(digit, 16)] for digit in f"{index:0{width}x}")
        for index, literal in enumerate(literals)
    }


def _guard_model(model: dict[str, Any], aliases: Mapping[str, str]) -> None:
    """Renames the literals in the model's own vocabulary too, and drops the merges that would make one out of text."""
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, dict):
        model["vocab"] = {aliases.get(piece, piece): index for piece, index in vocabulary.items()}
    elif isinstance(vocabulary, list):  # Unigram: pairs of piece and score, the place is the id
        model["vocab"] = [[aliases.get(piece, piece), score] for piece, score in vocabulary]
    if isinstance(model.get("unk_token"), str):
        model["unk_token"] = aliases.get(model["unk_token"], model["unk_token"])
    merges = []
    for merge in model.get("merges") or ():
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        if not {left, right, left + right} & aliases.keys():
            merges.append([left, right])
    if "merges" in model:
        model["merges"] = merges


def _guarded(definition: bytes, aliases: Mapping[str, str]) -> Tokenizer:
    parsed = orjson.loads(definition)
    for token in parsed.get("added_tokens") or ():
        token["content"] = aliases.get(token["content"], token["content"])
    _guard_model(parsed["model"], aliases)
    parsed["post_processor"] = parsed["decoder"] = None
    return _plain(Tokenizer.from_buffer(orjson.dumps(parsed)))


@dataclass(frozen=True, slots=True)
class Tokenization:
    """Both forms of a tokenizer. `opening` are the ids that its rule puts before a raw prompt: usually one BOS."""

    tokenizer: Tokenizer
    vocabulary: Vocabulary
    controls: ControlTokens
    opening: tuple[int, ...]
    _guarded: Tokenizer
    aliases: Mapping[str, str]
    _normalised: ControlTokens | None
    _unknown: int | None
    _adds_space: bool

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Text with control tokens recognised. The opening comes once, also if the text writes it out."""
        ids = _ids(self.tokenizer, text, add_special_tokens)
        size = len(self.opening)
        if add_special_tokens and size and tuple(ids[size : 2 * size]) == self.opening == tuple(ids[:size]):
            return ids[size:]
        return ids

    def encode_pieces(self, pieces: Sequence[Piece]) -> list[int]:
        """A prompt in which control tokens are recognised in the template's pieces alone. Raises `InvalidRequest`."""
        parts: list[str] = []
        expected: list[int] = []
        for piece in pieces:
            position = 0
            for start, end in () if piece.client else self.controls.find(piece.text):
                literal = piece.text[start:end]
                parts += [piece.text[position:start], self.aliases[literal]]
                expected.append(self.controls.ids[literal])
                position = end
            parts.append(piece.text[position:])
        ids = _ids(self._guarded, "".join(parts))
        control = set(self.controls.ids.values()) - {self._unknown}
        if [token for token in ids if token in control] != [token for token in expected if token in control]:
            raise InvalidRequest("a message has the text of a control token", param="messages")
        return ids

    def spans(self, text: str) -> list[Span]:
        """What of a client's string must be kept from becoming a control token, sorted, without overlap.

        Some tokens are looked for in what the tokenizer's normalizer makes of a text, where a look-alike may become
        one: then that is all of the text but the white space around it.
        """
        found = self.controls.spans(text)
        if self._normalised is not None:
            position = 0
            for start, end in (*found, (len(text), len(text))):
                part = text[position:start]
                made: str = self.tokenizer.normalizer.normalize_str(part)
                if (made != part or not self._normalised.ids.keys() <= self.controls.ids.keys()) and (
                    self._normalised.spans(made)
                ):
                    return [(len(text) - len(text.lstrip()), len(text.rstrip()))]
                position = end
        return found

    def names(self, ids: Sequence[int]) -> list[str]:
        """The tokens as the vocabulary writes them."""
        return [self.tokenizer.id_to_token(token) or "" for token in ids]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens, special ones too; incomplete characters as U+FFFD, and no space that encoding added."""
        text = b"".join(map(self.vocabulary.raw, ids)).decode("utf-8", "replace")
        return text[1:] if self._adds_space and text.startswith(" ") else text


def _set_rule(tokenizer: Tokenizer, settings: Mapping[str, Any], special: Mapping[str, str]) -> None:
    """`add_bos_token` and `add_eos_token` in tokenizer_config.json stand above the tokenizer's own rule."""
    if not settings.keys() & {"add_bos_token", "add_eos_token"}:
        return
    rule, used = ["$A"], []
    for key, name, place in (("add_bos_token", "bos_token", 0), ("add_eos_token", "eos_token", len(rule))):
        text = special.get(name)
        if settings.get(key) and text is not None:
            token = tokenizer.token_to_id(text)
            if token is None:
                raise ProcessError(f"{name} is no token of the tokenizer")
            rule.insert(place if place == 0 else len(rule), text)
            used.append((text, token))
    tokenizer.post_processor = processors.TemplateProcessing(single=rule, pair=[*rule, "$B"], special_tokens=used)


def read_tokenization(definition: bytes, settings: Mapping[str, Any], special: Mapping[str, str]) -> Tokenization:
    """Both forms of a tokenizer.json. Blocking. Raises `ProcessError`, or the library's own bare `Exception`."""
    tokenizer = _plain(Tokenizer.from_buffer(definition))
    _set_rule(tokenizer, settings, special)
    added = tokenizer.get_added_tokens_decoder()
    literals = {token.content: index for index, token in added.items() if token.content.strip()}
    aliases = _make_aliases(list(literals))
    guarded = _guarded(definition, aliases)
    if any(guarded.token_to_id(aliases[literal]) != index for literal, index in literals.items()):
        raise ProcessError("the added tokens of this tokenizer cannot be told from text")
    vocabulary = read_vocabulary(tokenizer, definition)
    bare = _ids(tokenizer, "a")
    ruled = _ids(tokenizer, "a", add_special_tokens=True)
    places = [index for index in range(len(ruled)) if ruled[index : index + len(bare)] == bare]
    normalizer = tokenizer.normalizer
    looked_for = {} if normalizer is None else {t.content: i for i, t in added.items() if t.normalized}
    normalised = {normalizer.normalize_str(text): i for text, i in looked_for.items() if text in literals}
    unknown = getattr(tokenizer.model, "unk_token", None)
    return Tokenization(
        tokenizer=tokenizer,
        vocabulary=vocabulary,
        controls=ControlTokens(literals),
        opening=tuple(ruled[: places[-1]]) if places else (),
        _guarded=guarded,
        aliases=aliases,
        _normalised=ControlTokens(normalised) if normalised else None,
        _unknown=tokenizer.token_to_id(unknown) if isinstance(unknown, str) else None,
        _adds_space=vocabulary.raw(bare[0]).startswith(b" ") if bare else False,
    )
