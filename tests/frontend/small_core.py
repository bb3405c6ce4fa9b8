"""A core folder for frontend tests: token i below 256 is byte i, a few merges, special tokens, a strict template."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from services.frontend.vocabulary import byte_alphabet
from shared import manifest
from shared.manifest import BillItem, ExecutionGraph, GenerationDefaults, Geometry, Manifest

CONTEXT = 512
WIDTHS = (1, 2, 4, 8)
MERGES = (("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "w"), ("Ã", "©"))
START, END, THINK = 256 + len(MERGES), 257 + len(MERGES), 258 + len(MERGES)
VOCABULARY = 272
"""Larger than the tokenizer's: a padded head."""

TEMPLATE = """\
{%- for message in messages %}
    {%- if message['role'] not in ['system', 'user', 'assistant'] %}
        {{- raise_exception('Unknown role') }}
    {%- endif %}
    {%- if message['content'] == 'refuse me' %}
        {{- raise_exception('These roles must alternate') }}
    {%- endif %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + eos_token + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


def make_tokenizer() -> Tokenizer:
    """Byte-level BPE whose first 256 ids are the bytes themselves."""
    vocabulary = dict(byte_alphabet())
    for rank, (left, right) in enumerate(MERGES):
        vocabulary[left + right] = 256 + rank
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=list(MERGES)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens([AddedToken("<think>", special=False)])
    return tokenizer


def make_manifest(scores: bool = True) -> Manifest:
    """A manifest that `shared.manifest.check` takes; of its graphs the widths play a part here, and if one `scores`."""
    return Manifest(
        abi=manifest.ABI,
        recipe="test",
        model_name="small",
        geometry=Geometry(
            vocab_size=VOCABULARY, hidden_size=8, context_length=CONTEXT, concurrency=4, pages=64, snapshot_slots=2
        ),
        graphs=(
            *(ExecutionGraph(2, "scored_prefill", 1, rows) for rows in ((32,) if scores else ())),
            *(
                ExecutionGraph(5, "speculative", 1, width, draft_tokens=width - 1, verify_tokens=width)
                for width in WIDTHS
            ),
        ),
        verification_widths=WIDTHS,
        speculative_token_capacity=32,
        end_ids=(END,),
        defaults=GenerationDefaults(temperature=0.7, top_p=0.9, top_k=20, min_p=0.05),
        history_drafts=True,
        activation_policy="float32",
        bill=(BillItem("weights", 1),),
    )


def write_core(folder: Path) -> str:
    """Writes the core and returns the digest that the scheduler tells."""
    folder.mkdir(parents=True, exist_ok=True)
    data = manifest.encode(make_manifest())
    (folder / "manifest.json").write_bytes(data)
    make_tokenizer().save(str(folder / "tokenizer.json"))
    settings = {"chat_template": TEMPLATE, "eos_token": {"content": "<|im_end|>"}, "bos_token": "<|im_start|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return hashlib.sha256(data).hexdigest()


def tokens_of(text: str) -> list[int]:
    """One token a byte."""
    return list(text.encode())
