"""A `tokenizer.json` rebuilt from the metadata of a GGUF file.

Runs in `ignition` only. GGUF names its pre-tokenizer by a word; only those whose rules are known here are accepted,
since a wrong split gives a model that answers, but worse.
"""

from __future__ import annotations

from collections.abc import Mapping

from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from recipes.smollm2.architecture import required
from shared.errors import CheckpointError

_CONTROL, _USER_DEFINED = 3, 4
"""Token types of GGUF that are matched as a whole."""
_DIGITS_THEN_BYTES = frozenset({"smollm", "starcoder", "refact", "command-r"})
"""Pre-tokenizers that split digits one by one and then as GPT-2 does."""


def byte_level_tokenizer(fields: Mapping[str, object]) -> str:
    """The `tokenizer.json` of a byte-level BPE in GGUF metadata. Raises `CheckpointError`."""
    model = required(fields, "tokenizer.ggml.model", str)
    split = required(fields, "tokenizer.ggml.pre", str)
    if model != "gpt2" or split not in _DIGITS_THEN_BYTES:
        raise CheckpointError(f"tokenizer {model!r} with pre-tokenizer {split!r} is not known here")
    tokens: list[str] = required(fields, "tokenizer.ggml.tokens", list)
    types: list[int] = required(fields, "tokenizer.ggml.token_type", list)
    merges = [merge.split(" ", 1) for merge in required(fields, "tokenizer.ggml.merges", list)]
    tokenizer = Tokenizer(
        BPE(
            vocab={token: index for index, token in enumerate(tokens)},
            merges=[(left, right) for left, right in merges],
            byte_fallback=False,
        )
    )
    # The stub of PreTokenizer knows no common base of the two.
    splits: list[pre_tokenizers.PreTokenizer] = [
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    ]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splits)
    tokenizer.decoder = decoders.ByteLevel()
    whole = [(token, kind) for token, kind in zip(tokens, types, strict=True) if kind in (_CONTROL, _USER_DEFINED)]
    for token, kind in whole:
        tokenizer.add_tokens([AddedToken(token, special=kind == _CONTROL, normalized=False)])
    return str(tokenizer.to_str())
