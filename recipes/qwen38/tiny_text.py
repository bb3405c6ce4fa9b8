"""Tokenizer and template of tiny checkpoints: a token a byte, and the family's control tokens at the end.

Runs in `ignition tiny`. ChatML with thinking, as the family's own template has it in its simplest case.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from recipes.qwen38.architecture import Architecture
from shared.errors import CheckpointError

CONTROL = ("<|im_start|>", "<|im_end|>", "<think>", "</think>", "<|endoftext|>")
"""The last one is the end of a text, and the last token of the vocabulary."""
_BYTES = 256
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking %}<think>\n"
    "{% else %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)


def tiny_tokenizer(vocab_size: int) -> Tokenizer:
    """Byte-level, without merges. Raises `CheckpointError` for a vocabulary that is too small."""
    spare = vocab_size - _BYTES - len(CONTROL)
    if spare < 0:
        raise CheckpointError(f"a vocabulary of {vocab_size} has no room for bytes and control tokens")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = alphabet + [f"<|spare_{number}|>" for number in range(spare)]
    made = Tokenizer(models.BPE(vocab={name: number for number, name in enumerate(names)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in CONTROL])
    return made


def write_text_side(folder: Path, a: Architecture) -> None:
    """Writes tokenizer.json, tokenizer_config.json and generation_config.json."""
    tokenizer = tiny_tokenizer(a.vocab_size)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"chat_template": TEMPLATE, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    ends = [tokenizer.token_to_id("<|im_end|>"), a.eos_token_id]
    generation = {"temperature": 1.0, "top_p": 0.95, "top_k": 20, "eos_token_id": ends}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2), encoding="utf-8")
