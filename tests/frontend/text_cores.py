"""Cores for tests of prompts: small tokenizers of several kinds, three templates, and transformers as the reference."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import orjson
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from recipes.smollm2.demo import demo_checkpoint
from recipes.smollm2.gguf_file import GgufFile
from services.frontend.core import Core, load_core
from services.frontend.vocabulary import byte_alphabet
from shared import manifest
from tests.frontend.small_core import MERGES, make_manifest

Turns = list[dict[str, str]]
Both = tuple[Core, PreTrainedTokenizerFast]
"""A core, and the reference for its prompts."""

SPECIAL = ("<s>", "</s>", "<|im_start|>", "<|im_end|>", "[INST]", "[/INST]")
PLAIN = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<|a|>b", "<|a|>")

STRICT = """\
{{- bos_token }}
{%- for message in messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {{- '[INST] ' + message['content'] | trim + ' [/INST]' }}
    {%- elif message['role'] == 'assistant' %}
        {{- ' ' + message['content'] | trim + ' ' + eos_token }}
    {%- else %}
        {{- raise_exception('Only user and assistant roles are supported!') }}
    {%- endif %}
{%- endfor %}
"""
CHATML = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message['role'] }}
    {%- if message.name is defined %}{{ ' name=' + message.name }}{% endif %}
    {{- '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
TOOLS = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' + tools | tojson + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'system' and not loop.first %}
        {{- raise_exception('System message must be at the beginning.') }}
    {%- endif %}
    {%- set content = message.content %}
    {%- if message.role == 'assistant' and '</think>' in content %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""
TEMPLATES = {"strict": STRICT, "chatml": CHATML, "tools": TOOLS}


def byte_level() -> Tokenizer:
    """One token a byte and a few merges; special and plain added tokens."""
    vocabulary = dict(byte_alphabet())
    for rank, (left, right) in enumerate(MERGES):
        vocabulary[left + right] = 256 + rank
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=list(MERGES)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    _add(tokenizer)
    return tokenizer


def sentence_piece() -> Tokenizer:
    """Byte fallback, a space put before a text, and a vocabulary whose merges could make "<s>" out of text."""
    letters = [chr(code) for code in range(0x21, 0x7F)]
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", *letters, "s>", "he", "ll"]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={piece: index for index, piece in enumerate(pieces)},
            merges=[("s", ">"), ("<", "s>"), ("h", "e"), ("l", "l")],
            unk_token="<unk>",
            byte_fallback=True,
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="\u2581", prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<unk>"])
    _add(tokenizer)
    return tokenizer


def normalising() -> Tokenizer:
    """Looks for its plain added tokens in what NFKC makes of a text."""
    tokenizer = byte_level()
    tokenizer.normalizer = normalizers.NFKC()
    return tokenizer


def _add(tokenizer: Tokenizer) -> None:
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=True) for text in PLAIN])
    tokenizer.add_tokens([AddedToken("  ", special=False, normalized=False)])


KINDS = {"bytes": byte_level, "pieces": sentence_piece, "normalising": normalising}


def with_bos(tokenizer: Tokenizer) -> Tokenizer:
    """The same with a rule that opens every raw text with "<s>"."""
    start = tokenizer.token_to_id("<s>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single=["<s>", "$A"], pair=["<s>", "$A", "$B"], special_tokens=[("<s>", start)]
    )
    return tokenizer


def make_core(folder: Path, tokenizer: Tokenizer | str, template: str, **settings: Any) -> Core:
    """A core of a tokenizer, or of the text of a tokenizer.json, and a template."""
    folder.mkdir(parents=True, exist_ok=True)
    definition = tokenizer if isinstance(tokenizer, str) else tokenizer.to_str()
    made = make_manifest()
    geometry = made.geometry.__class__(
        vocab_size=1 << 16, hidden_size=8, context_length=1 << 16, concurrency=4, pages=4096, snapshot_slots=2
    )
    made = made.__class__(**{name: getattr(made, name) for name in made.__struct_fields__} | {"geometry": geometry})
    (folder / "manifest.json").write_bytes(manifest.encode(made))
    (folder / "tokenizer.json").write_text(definition, encoding="utf-8")
    named = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(named | settings))
    return load_core(folder, None)


def reference(folder: Path) -> PreTrainedTokenizerFast:
    """What transformers makes of the same folder."""
    settings = orjson.loads((folder / "tokenizer_config.json").read_bytes())
    made: PreTrainedTokenizerFast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_file=str(folder / "tokenizer.json"), **settings
    )
    return made


def prompt_of(tokenizer: PreTrainedTokenizerFast, turns: Turns, **more: Any) -> list[int]:
    """A conversation's ids by transformers; by default with a generation prompt."""
    more.setdefault("add_generation_prompt", not more.get("continue_final_message"))
    ids = tokenizer.apply_chat_template(turns, tokenize=True, return_dict=False, **more)
    return cast(list[int], ids)


def controls_in(core: Core, ids: tuple[int, ...]) -> list[int]:
    """The control tokens of a prompt, in order."""
    known = set(core.tokenization.controls.ids.values())
    return [token for token in ids if token in known]


def every_literal(core: Core) -> Iterator[str]:
    """Every added token that means more than its text."""
    yield from core.tokenization.controls.ids


DEMO = "demo"
ALL = [*[(kind, name) for kind in KINDS for name in TEMPLATES], (DEMO, "own")]
"""Tokenizer and template of each core of `every_core`."""


def every_core(folder: Path) -> dict[tuple[str, str], Both]:
    """Every kind of tokenizer with every template, and the demo model's own text side; each with its reference."""
    made: dict[tuple[str, str], Both] = {}
    for kind, tokenizer in KINDS.items():
        for name, template in TEMPLATES.items():
            core = make_core(folder / kind / name, tokenizer(), template)
            made[kind, name] = core, reference(folder / kind / name)
    text = GgufFile(demo_checkpoint()).text_side()
    config = dict(text.tokenizer_config)
    core = make_core(folder / DEMO, text.tokenizer, str(config.pop("chat_template")), **config)
    made[DEMO, "own"] = core, reference(folder / DEMO)
    return made


def user(content: str, **more: str) -> dict[str, str]:
    return {"role": "user", "content": content, **more}


def answer(content: str) -> dict[str, str]:
    return {"role": "assistant", "content": content}
