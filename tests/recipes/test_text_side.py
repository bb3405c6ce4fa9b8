"""The tokenizer rebuilt from GGUF metadata, its special tokens, and the chat template."""

from __future__ import annotations

import json
from pathlib import Path

import jinja2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from recipes.smollm2.tokenizer import byte_level_tokenizer
from shared.errors import CheckpointError
from shared.manifest import GenerationDefaults, Manifest

_NO_TOKEN = "\x04\x06\x13\x14\x16\x1d"


@pytest.fixture(scope="module")
def tokenizer(demo: Path) -> Tokenizer:
    return Tokenizer.from_file(str(demo / "tokenizer.json"))


@pytest.mark.parametrize(
    "text",
    [
        "Hello, world!",
        "naïve café – 東京 🚲👩‍🚀",
        "  two  spaces\n\n\ttab ",
        "x=12345.67",
        "Ω\u200b\u0301",
        "I'm we're",
    ],
)
def test_text_survives_a_round_trip(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_any_text_survives_a_round_trip(tokenizer: Tokenizer) -> None:
    @settings(max_examples=60, deadline=None, database=None)
    # The vocabulary has no token for bytes F1 and F2 (planes 4 and up, private or unassigned) nor for six controls.
    @given(st.text(st.characters(codec="utf-8", max_codepoint=0x3FFFF, exclude_characters=_NO_TOKEN), max_size=40))
    def holds(text: str) -> None:
        assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text

    holds()


def test_digits_are_tokens_of_their_own(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("in 2024").tokens == ["in", "Ġ", "2", "0", "2", "4"]


def test_special_tokens_are_matched_whole_and_hidden(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("<|im_start|>user\nHi<|im_end|>").ids
    assert ids[0] == 1
    assert ids[-1] == 2
    assert tokenizer.decode(ids) == "user\nHi"
    assert tokenizer.decode([0, 3, 16]) == ""


def test_every_id_of_the_model_is_a_token(tokenizer: Tokenizer, demo_manifest: Manifest) -> None:
    assert tokenizer.get_vocab_size() == demo_manifest.geometry.vocab_size == 49152


def test_chat_template_adds_the_default_system_turn(demo: Path) -> None:
    config = json.loads((demo / "tokenizer_config.json").read_text())
    turns = [{"role": "user", "content": "Hi"}]
    text = jinja2.Template(config["chat_template"]).render(messages=turns, add_generation_prompt=True)
    assert text == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert (config["bos_token"], config["eos_token"]) == ("<|im_start|>", "<|im_end|>")


def test_end_tokens_and_defaults_of_the_model_card(demo_manifest: Manifest) -> None:
    assert demo_manifest.end_ids == (2, 0)
    assert demo_manifest.defaults == GenerationDefaults(temperature=0.2, top_p=0.9)
    assert demo_manifest.history_drafts
    assert demo_manifest.model_name == "SmolLM2-135M-Instruct"


def test_an_unknown_pre_tokenizer_is_refused() -> None:
    with pytest.raises(CheckpointError, match="'llama-bpe' is not known"):
        byte_level_tokenizer({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "llama-bpe"})
