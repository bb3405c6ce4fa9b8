"""Tokenizer, chat template and generation defaults of a checkpoint folder. Runs in `ignition` only."""

from __future__ import annotations

from pathlib import Path

import msgspec

from recipes.components.core_folder import TextSide
from recipes.qwen38.architecture import Architecture
from shared.errors import CheckpointError
from shared.manifest import GenerationDefaults


class _Generation(msgspec.Struct, frozen=True):
    """generation_config.json: what is read of it; the values are the family's own where it says nothing."""

    temperature: float = 1.0
    top_p: float = 0.95
    top_k: int = 20
    eos_token_id: int | list[int] | None = None


def read_text_side(folder: Path, architecture: Architecture) -> TextSide:
    """Reads a folder's text files. Raises `CheckpointError`."""
    try:
        tokenizer = (folder / "tokenizer.json").read_text(encoding="utf-8")
        config = msgspec.json.decode((folder / "tokenizer_config.json").read_bytes(), type=dict[str, object])
        template = folder / "chat_template.jinja"
        if template.exists():
            config["chat_template"] = template.read_text(encoding="utf-8")
        path = folder / "generation_config.json"
        found = msgspec.json.decode(path.read_bytes() if path.exists() else b"{}", type=_Generation)
    except (OSError, UnicodeDecodeError, msgspec.MsgspecError) as error:
        raise CheckpointError(f"{folder}: {error}") from error
    ends = [found.eos_token_id] if isinstance(found.eos_token_id, int) else found.eos_token_id
    defaults = GenerationDefaults(temperature=found.temperature, top_p=found.top_p, top_k=found.top_k)
    return TextSide(tokenizer, config, tuple(ends or [architecture.eos_token_id]), defaults)
