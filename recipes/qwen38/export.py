"""Writes the core folder of a checkpoint: tensors as they are stored, tokenizer, manifest. Runs in `ignition` only.

All is written to a sibling folder and renamed at the end: an interrupted export never looks like a core. Tensors are
copied between files without passing through memory, since a checkpoint is larger than that.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import msgspec

from recipes.components.capacity import catalog, speculative_widths
from recipes.components.tensor_store import copy_tensors, nbytes
from recipes.declaration import PreparationConfig, Progress, Speculation
from recipes.qwen38.checkpoint import Checkpoint
from recipes.qwen38.memory import items
from recipes.qwen38.quantization import mtp_alias
from recipes.qwen38.recipe import DRAFTER_FILE, TARGET_FILE, Settings
from recipes.qwen38.text_side import TextSide, read_text_side
from shared import manifest
from shared.errors import CheckpointError, ManifestError
from shared.manifest import ABI, Geometry, Manifest

ACTIVATIONS = "float32; NVFP4 experts W4A16, input scales kept and not applied"


def export_core(
    checkpoint_path: Path,
    core: Path,
    config: PreparationConfig,
    recipe: str,
    speculation: Speculation,
    progress: Progress,
) -> Manifest:
    """The manifest of the core written to `core`, which must not exist yet. Raises `CheckpointError`."""
    if core.exists() and (not core.is_dir() or any(core.iterdir())):
        raise CheckpointError(f"{core} exists already: remove it or choose another folder")
    checkpoint = Checkpoint(checkpoint_path)
    text = read_text_side(checkpoint_path, checkpoint.architecture)
    prepared = _manifest(checkpoint, text, config, recipe, speculation)
    core.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{core.name}.partial-", dir=core.parent))
    try:
        _write_tensors(checkpoint, partial, progress)
        (partial / "tokenizer.json").write_text(text.tokenizer, encoding="utf-8")
        (partial / "tokenizer_config.json").write_bytes(msgspec.json.format(msgspec.json.encode(text.tokenizer_config)))
        (partial / "manifest.json").write_bytes(manifest.encode(prepared))
        partial.chmod(0o755)
        partial.replace(core)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return prepared


def _write_tensors(checkpoint: Checkpoint, folder: Path, progress: Progress) -> None:
    total, done = nbytes(checkpoint.target) + nbytes(checkpoint.mtp), 0

    def advanced(count: int) -> None:
        nonlocal done
        done += count
        progress("tensors", done, total)

    copy_tensors(checkpoint.target, folder / TARGET_FILE, advanced)
    copy_tensors(checkpoint.mtp, folder / DRAFTER_FILE, advanced)


def _manifest(
    checkpoint: Checkpoint, text: TextSide, config: PreparationConfig, recipe: str, speculation: Speculation
) -> Manifest:
    a = checkpoint.architecture
    if config.context_length > a.max_position_embeddings:
        raise ManifestError(f"context length {config.context_length} is beyond the model's {a.max_position_embeddings}")
    geometry = Geometry(
        vocab_size=a.vocab_size,
        hidden_size=a.streams_width,
        context_length=config.context_length,
        concurrency=config.concurrency,
        pages=config.pages or 1,
        snapshot_slots=config.snapshot_slots,
    )
    if config.pages is None:
        geometry = msgspec.structs.replace(geometry, pages=geometry.pages_per_request * config.concurrency)
    settings = Settings(architecture=a, alias=mtp_alias(a), drafter=True)
    return manifest.check(
        Manifest(
            abi=ABI,
            recipe=recipe,
            model_name=checkpoint.folder.resolve().name,
            geometry=geometry,
            graphs=catalog(config, speculation),
            verification_widths=speculative_widths(config, speculation),
            speculative_token_capacity=config.speculative_token_capacity,
            end_ids=text.end_ids,
            defaults=text.defaults,
            history_drafts=config.history_drafts,
            activation_policy=ACTIVATIONS,
            bill=items(a, True, geometry.pages, geometry.concurrency, geometry.snapshot_slots),
            settings=msgspec.Raw(msgspec.json.encode(settings)),
        )
    )
