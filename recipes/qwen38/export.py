"""Writes the core folder of a checkpoint: tensors as they are stored, tokenizer, manifest. Runs in `ignition` only.

Tensors are copied between files without passing through memory, since a checkpoint is larger than that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from recipes.components.bill import stored_bill
from recipes.components.capacity import catalog, geometry_of, speculative_widths
from recipes.components.core_folder import TextSide, refuse_existing, write_core
from recipes.components.nvfp4_activations import ActivationPolicy
from recipes.components.table_file import write_rows
from recipes.components.tensor_store import copy_tensors, nbytes
from recipes.declaration import PreparationConfig, Progress
from recipes.qwen38.architecture import Architecture
from recipes.qwen38.checkpoint import Checkpoint
from recipes.qwen38.embedding_table import table_entry
from recipes.qwen38.memory import row_bytes
from recipes.qwen38.quantization import mtp_alias
from recipes.qwen38.recipe import DRAFTER_FILE, TARGET_FILE, Qwen38, Settings, settings_of
from recipes.qwen38.text_side import read_text_side
from recipes.qwen38.weights import WeightReader, table_name
from shared import manifest
from shared.errors import ManifestError
from shared.frames import Array
from shared.manifest import ABI, GenerationDefaults, Manifest

ARITHMETIC = {
    ActivationPolicy.W4A16: "float32; target experts W4A16, input scales kept and not applied; drafter experts W4A16",
    ActivationPolicy.W4A4: "float32; target experts W4A4, rounded under their input scales; drafter experts W4A16",
}
"""What the manifest says to people; the recipe's settings hold the policy itself."""
_SHARD_PARTS = ("weight", "weight_scale")


def export_core(
    checkpoint_path: Path,
    core: Path,
    config: PreparationConfig,
    recipe: Qwen38,
    progress: Progress,
) -> Manifest:
    """The manifest of the core written to `core`, which must not exist yet. Raises `CheckpointError`."""
    refuse_existing(core)
    checkpoint = Checkpoint(checkpoint_path)
    text = read_text_side(checkpoint_path, checkpoint.architecture)
    prepared = _manifest(checkpoint, text, config, recipe)
    write_core(core, prepared, text, lambda folder: _write_tensors(checkpoint, prepared, folder, progress))
    return prepared


def plan_core(checkpoint_path: Path, config: PreparationConfig, recipe: Qwen38) -> Manifest:
    """The manifest of a core of this checkpoint, as far as headers tell it: the text side is not read."""
    checkpoint = Checkpoint(checkpoint_path)
    text = TextSide("", {}, (checkpoint.architecture.eos_token_id,), GenerationDefaults())
    return _manifest(checkpoint, text, config, recipe)


def _write_tensors(checkpoint: Checkpoint, prepared: Manifest, folder: Path, progress: Progress) -> None:
    drafter = settings_of(prepared).drafter
    total, done = nbytes(checkpoint.target) + (nbytes(checkpoint.mtp) if drafter else 0), 0

    def advanced(count: int) -> None:
        nonlocal done
        done += count
        progress("tensors", done, total)

    shards = f"{table_name(checkpoint.architecture)}.shard_"
    own = {name: found for name, found in checkpoint.target.items() if not name.startswith(shards)}
    copy_tensors(own, folder / TARGET_FILE, advanced)
    [table] = prepared.embedding_tables
    write_rows(folder, table, _table_parts(checkpoint, advanced))
    if drafter:
        copy_tensors(checkpoint.mtp, folder / DRAFTER_FILE, advanced)


def _table_parts(checkpoint: Checkpoint, advanced: Callable[[int], None]) -> Iterator[Array]:
    """The n-gram table's rows, a shard at a time: values and scales of a row lie apart in the checkpoint."""
    reader, name = WeightReader(checkpoint.architecture, checkpoint.tensors), table_name(checkpoint.architecture)
    for number in range(checkpoint.architecture.split_ngram_parts):
        yield reader.shard(name, number).numpy()
        advanced(sum(checkpoint.target[f"{name}.shard_{number}.{part}"].entry.nbytes for part in _SHARD_PARTS))


def _manifest(checkpoint: Checkpoint, text: TextSide, config: PreparationConfig, recipe: Qwen38) -> Manifest:
    return prepared_manifest(checkpoint.architecture, checkpoint.folder.resolve().name, text, config, recipe)


def prepared_manifest(
    a: Architecture, model_name: str, text: TextSide, config: PreparationConfig, recipe: Qwen38
) -> Manifest:
    """The manifest of a core of this geometry. Raises `ManifestError`."""
    speculation = recipe.speculation
    if config.context_length > a.max_position_embeddings:
        raise ManifestError(f"context length {config.context_length} is beyond the model's {a.max_position_embeddings}")
    graphs = catalog(config, speculation)
    settings = Settings(architecture=a, alias=mtp_alias(a), drafter=config.mtp, activations=recipe.activations)
    prepared = Manifest(
        abi=ABI,
        recipe=recipe.name,
        model_name=model_name,
        geometry=geometry_of(config, a.vocab_size, a.streams_width),
        graphs=graphs,
        verification_widths=speculative_widths(config, speculation),
        speculative_token_capacity=config.speculative_token_capacity,
        end_ids=text.end_ids,
        defaults=text.defaults,
        history_drafts=config.history_drafts,
        activation_policy=ARITHMETIC[recipe.activations],
        bill=(),
        embedding_tables=(table_entry(a, graphs),),
        continuation_row_bytes=row_bytes(a, config.mtp) + a.streams_width * 4,
        adaptive_verification=config.adaptive,
        settings=msgspec.Raw(msgspec.json.encode(settings)),
    )
    return manifest.check(msgspec.structs.replace(prepared, bill=stored_bill(recipe, prepared)))
