"""A core folder as it is written: the text side that a checkpoint gives, and all files at once or none.

Runs in `ignition` only. Files go to a sibling folder that is renamed at the end: an interrupted export never looks like
a core. The manifest is written last, for the same reason.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from shared import manifest
from shared.errors import CheckpointError
from shared.manifest import GenerationDefaults, Manifest


@dataclass(frozen=True, slots=True)
class TextSide:
    """What the frontend needs: both files' contents, the end tokens and the checkpoint's sampling defaults."""

    tokenizer: str
    tokenizer_config: dict[str, object]
    end_ids: tuple[int, ...]
    defaults: GenerationDefaults


def refuse_existing(core: Path) -> None:
    """Raises `CheckpointError` if something lies where the folder `core` shall be; an empty one may."""
    if core.exists() and (not core.is_dir() or any(core.iterdir())):
        raise CheckpointError(f"{core} exists already: remove it or choose another folder")


def write_core(core: Path, prepared: Manifest, text: TextSide, write_weights: Callable[[Path], None]) -> None:
    """Writes weights, by `write_weights` into the folder it is given, then the text side and the manifest."""
    core.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{core.name}.partial-", dir=core.parent))
    try:
        write_weights(partial)
        (partial / "tokenizer.json").write_text(text.tokenizer, encoding="utf-8")
        (partial / "tokenizer_config.json").write_bytes(
            msgspec.json.format(msgspec.json.encode(text.tokenizer_config), indent=2)
        )
        (partial / "manifest.json").write_bytes(manifest.encode(prepared))
        partial.chmod(0o755)
        partial.replace(core)
    except BaseException:  # an interrupt too must leave nothing behind
        shutil.rmtree(partial, ignore_errors=True)
        raise
