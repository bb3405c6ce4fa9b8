"""Writes the core folder of a checkpoint: weights, tokenizer, manifest. Runs in `ignition` only."""

from __future__ import annotations

from pathlib import Path

import msgspec

from recipes.components.capacity import catalog, geometry_of, speculative_widths
from recipes.components.core_folder import TextSide, refuse_existing, write_core
from recipes.declaration import PreparationConfig, Progress, Speculation
from recipes.smollm2.architecture import Architecture, Settings, WeightFormat
from recipes.smollm2.checkpoint import open_checkpoint
from recipes.smollm2.memory import bill_of
from recipes.smollm2.weights import FILE, write_weights
from shared import manifest
from shared.errors import ManifestError
from shared.manifest import ABI, Manifest

ACTIVATION_POLICIES: dict[WeightFormat, str] = {
    "int8": "w8a14 per-channel/per-row, exact sums",
    "float32": "float32",
}


def export_core(
    checkpoint_path: Path,
    core: Path,
    config: PreparationConfig,
    recipe: str,
    speculation: Speculation,
    form: WeightFormat,
    progress: Progress,
) -> Manifest:
    """The manifest of the core written to `core`, which must not exist yet. Raises `CheckpointError`."""
    refuse_existing(core)
    checkpoint = open_checkpoint(checkpoint_path)
    text = checkpoint.text_side()
    prepared = prepared_manifest(
        checkpoint.architecture, checkpoint.model_name, text, config, recipe, speculation, form
    )
    write_core(core, prepared, text, lambda folder: write_weights(checkpoint, folder / FILE, form, progress))
    return prepared


def prepared_manifest(
    architecture: Architecture,
    model_name: str,
    text: TextSide,
    config: PreparationConfig,
    recipe: str,
    speculation: Speculation,
    form: WeightFormat,
) -> Manifest:
    """The manifest of a core of this geometry. Raises `ManifestError`."""
    if config.context_length > architecture.context_length:
        raise ManifestError(
            f"context length {config.context_length} is beyond the model's {architecture.context_length}"
        )
    geometry = geometry_of(config, architecture.vocab_size, architecture.hidden_size)
    settings = Settings(architecture=architecture, weights=form)
    return manifest.check(
        Manifest(
            abi=ABI,
            recipe=recipe,
            model_name=model_name,
            geometry=geometry,
            graphs=catalog(config, speculation),
            verification_widths=speculative_widths(config, speculation),
            speculative_token_capacity=config.speculative_token_capacity,
            end_ids=text.end_ids,
            defaults=text.defaults,
            history_drafts=config.history_drafts,
            activation_policy=ACTIVATION_POLICIES[form],
            bill=bill_of(settings, geometry),
            adaptive_verification=config.adaptive,
            settings=msgspec.Raw(msgspec.json.encode(settings)),
        )
    )
