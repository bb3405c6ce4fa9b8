"""Writes the core folder of a checkpoint: tensors as they are stored, tokenizer, manifest. Runs in `ignition` only.

Tensors are copied between files without passing through memory, since a checkpoint is larger than that.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from recipes.components.capacity import catalog, speculative_widths
from recipes.components.core_folder import TextSide, refuse_existing, write_core
from recipes.components.tensor_store import copy_tensors, nbytes
from recipes.declaration import PreparationConfig, Progress, Speculation
from recipes.qwen38.checkpoint import Checkpoint
from recipes.qwen38.memory import items
from recipes.qwen38.quantization import mtp_alias
from recipes.qwen38.recipe import DRAFTER_FILE, TARGET_FILE, Settings
from recipes.qwen38.text_side import read_text_side
from shared import manifest
from shared.errors import ManifestError
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
    refuse_existing(core)
    checkpoint = Checkpoint(checkpoint_path)
    text = read_text_side(checkpoint_path, checkpoint.architecture)
    prepared = _manifest(checkpoint, text, config, recipe, speculation)
    write_core(core, prepared, text, lambda folder: _write_tensors(checkpoint, folder, progress))
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
