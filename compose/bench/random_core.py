"""A core of which there are no weights: its manifest and somebody's tokenizer, for recipes that draw theirs.

For benches alone. The geometry is the model's own; context, batch and chunks are chosen for the bench.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import msgspec

from compose.bench.random_recipes import RECIPES, RandomQwen38, RandomSmolLM2
from recipes.components.core_folder import TextSide, write_core
from recipes.declaration import PreparationConfig
from recipes.qwen38.recipe import Qwen38
from recipes.smollm2.architecture import Architecture
from recipes.smollm2.recipe import SmolLM2
from shared import manifest
from shared.manifest import GenerationDefaults, Manifest

MODULE = "compose.bench.random_recipes"
Family = Literal["smollm2", "qwen3.8-flash"]
SMOLLM2_135M = Architecture(
    vocab_size=49152,
    hidden_size=576,
    layers=30,
    query_heads=9,
    key_heads=3,
    head_size=64,
    intermediate_size=1536,
    context_length=8192,
    rope_theta=1e5,
    norm_epsilon=1e-5,
    tied=True,
)
_END = 2


def random_core(folder: Path, text: Path, family: Family, config: PreparationConfig) -> Path:
    """Writes the core to `folder`, with the tokenizer that lies in `text`. Raises `ManifestError` and `OSError`."""
    tokenizer = (text / "tokenizer.json").read_text(encoding="utf-8")
    side = TextSide(tokenizer, json.loads((text / "tokenizer_config.json").read_bytes()), (_END,), GenerationDefaults())
    prepared = _smollm2(side, config) if family == "smollm2" else _qwen38(side, config)
    write_core(folder, manifest.check(prepared), side, lambda empty: None)
    return folder


def _smollm2(text: TextSide, config: PreparationConfig) -> Manifest:
    from recipes.smollm2.export import prepared_manifest

    own = SmolLM2()
    found = prepared_manifest(SMOLLM2_135M, "random", text, config, own.name, own.speculation, "float32")
    return msgspec.structs.replace(found, recipe=_name(RandomSmolLM2))


def _qwen38(text: TextSide, config: PreparationConfig) -> Manifest:
    from recipes.qwen38.export import prepared_manifest
    from recipes.qwen38.random_weights import full_architecture

    found = prepared_manifest(full_architecture(), "random", text, config, Qwen38())
    # Its table is drawn with the weights, and there is no file of it.
    return msgspec.structs.replace(found, recipe=_name(RandomQwen38), embedding_tables=())


def _name(kind: type[RandomSmolLM2] | type[RandomQwen38]) -> str:
    return next(recipe.name for recipe in RECIPES if isinstance(recipe, kind))
