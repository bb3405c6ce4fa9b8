"""From a core's files to the target and the drafter on one device. Runs once, in the worker's launch thread."""

from __future__ import annotations

from pathlib import Path

import torch

from recipes.components.nvfp4_activations import ActivationPolicy
from recipes.components.safetensors_headers import survey
from recipes.components.table_file import table_path
from recipes.components.tensor_store import TensorStore
from recipes.declaration import LoadConfig
from recipes.device_recipe import DeviceLoaded
from recipes.qwen38.device_drafter import DeviceMtp, DrafterCounts
from recipes.qwen38.device_target import DeviceTarget
from recipes.qwen38.device_weights import DeviceDrafterWeights, DeviceReader, DeviceWeights
from recipes.qwen38.embedding_table import NAME
from recipes.qwen38.recipe import DRAFTER_FILE, TARGET_FILE, settings_of
from shared.errors import ManifestError
from shared.manifest import PAGE_TOKENS, Manifest


def load_core(
    core: Path, manifest: Manifest, config: LoadConfig, device: torch.device, dtype: torch.dtype
) -> DeviceLoaded:
    """Reads weights, experts as stored and the rest in `dtype`; allocates all state.

    Raises `CheckpointError`, and `ManifestError` for arithmetic that no GPU kernel has.
    """
    settings = settings_of(manifest)
    if settings.activations is not ActivationPolicy.W4A16:
        raise ManifestError(
            f"this core's experts round their activations ({settings.activations}), which no GPU kernel does here: "
            f"export it with --activations {ActivationPolicy.W4A16}, or serve it with --device cpu"
        )
    files = [core / TARGET_FILE, table_path(core, NAME), *([core / DRAFTER_FILE] if settings.drafter else [])]
    reader = DeviceReader(settings.architecture, TensorStore(survey(files)), device, dtype)
    weights = reader.target(config.device_tables.get(NAME))
    return assembled(weights, reader.drafter(weights) if settings.drafter else None, manifest, config)


def assembled(
    weights: DeviceWeights, drafter: DeviceDrafterWeights | None, manifest: Manifest, config: LoadConfig
) -> DeviceLoaded:
    """The target, and its drafter if there are weights of it, over what lies on the device."""
    settings = settings_of(manifest)
    positions = manifest.geometry.pages_per_request * PAGE_TOKENS
    slots, snapshots, pages = config.slots, config.snapshots, config.pages
    target = DeviceTarget(settings.architecture, weights, slots, snapshots, pages, positions)
    if drafter is None:
        return DeviceLoaded(target, None)
    counts = DrafterCounts(slots, snapshots, pages)
    return DeviceLoaded(target, DeviceMtp(settings.architecture, drafter, target.sparse, counts, target.faults))
