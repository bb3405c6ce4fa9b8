"""The Qwen3.8-Flash recipe: FP4-Local checkpoints, the target and its MTP drafter. In `ignition` and the worker.

The CPU computes in float32 what the checkpoint's tensors dequantise to: a reference for every operator, and a server
for tiny checkpoints. A core at full geometry can be exported and inspected here, not served.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from recipes.components.model import StateBytes
from recipes.components.nvfp4_activations import ActivationPolicy
from recipes.declaration import Device, LoadConfig, Loaded, PreparationConfig, Progress, Speculation
from recipes.qwen38.architecture import Architecture
from recipes.qwen38.memory import PACKED, REFERENCE, Counts, Format, items, sizes
from shared.errors import CheckpointError, ManifestError
from shared.manifest import PAGE_TOKENS, Manifest, largest_chunk

if TYPE_CHECKING:
    import torch

    from recipes.device_recipe import DeviceLoaded

TARGET_FILE, DRAFTER_FILE = "target.safetensors", "mtp.safetensors"
FORMATS: dict[Device, Format] = {"cpu": REFERENCE, "cuda": PACKED}


class Settings(msgspec.Struct, frozen=True):
    """The recipe's part of the manifest. `alias`: the drafter's layer as quantisation maps name it, and as stored.

    `activations` is about the target's routed experts; the drafter's are W4A16 in every core.
    """

    architecture: Architecture
    alias: tuple[str, str]
    drafter: bool
    activations: ActivationPolicy = ActivationPolicy.W4A16


def settings_of(manifest: Manifest) -> Settings:
    """The recipe's own part of the manifest. Raises `ManifestError`."""
    try:
        return msgspec.json.decode(manifest.settings, type=Settings)
    except msgspec.MsgspecError as error:
        raise ManifestError(f"the manifest's settings are not of the qwen3.8-flash recipe: {error}") from error


@dataclass(frozen=True, slots=True)
class Qwen38:
    """The `Recipe`. `activations` is what an export declares; a load reads it from the core."""

    activations: ActivationPolicy = ActivationPolicy.W4A16

    @property
    def name(self) -> str:
        """The name in the registry and in manifests."""
        return "qwen3.8-flash"

    @property
    def speculation(self) -> Speculation:
        """Five drafts by default, seven at most, by the checkpoint's own MTP layer; copies beside them."""
        return Speculation(default_drafts=5, maximum_drafts=7, learned="mtp")

    def with_activations(self, activations: str) -> Qwen38:
        """The recipe that exports cores of this policy. Raises `CheckpointError` on one that is not ours."""
        if activations not in tuple(ActivationPolicy):
            raise CheckpointError(f"activations {activations!r} is not one of {', '.join(ActivationPolicy)}")
        return replace(self, activations=ActivationPolicy(activations))

    def export(self, checkpoint: Path, core: Path, config: PreparationConfig, progress: Progress) -> Manifest:
        """Writes the core. Raises `CheckpointError` and `ManifestError`."""
        from recipes.qwen38.export import export_core

        return export_core(checkpoint, core, config, self, progress)

    def plan(self, checkpoint: Path, config: PreparationConfig) -> Manifest:
        """The manifest that `export` would write, from headers alone. Raises `CheckpointError` and `ManifestError`."""
        from recipes.qwen38.export import plan_core

        return plan_core(checkpoint, config, self)

    def write_tiny(self, folder: Path, seed: int) -> None:
        """Writes a tiny checkpoint in the real format."""
        from recipes.qwen38.tiny import tiny_architecture, write_tiny

        write_tiny(folder, tiny_architecture(), seed)

    def bill(self, manifest: Manifest, config: LoadConfig) -> tuple[StateBytes, ...]:
        """What `load` will hold with these pages, slots and snapshots."""
        settings = settings_of(manifest)
        positions = manifest.geometry.pages_per_request * PAGE_TOKENS
        counts = Counts(config.pages, config.slots, config.snapshots, largest_chunk(manifest), positions)
        found = items(settings.architecture, settings.drafter, counts, FORMATS[config.device])
        return tuple(StateBytes(item.name, item.nbytes) for item in found)

    @property
    def devices(self) -> tuple[Device, ...]:
        """The CPU computes in float32; a GPU keeps weights as stored, and state in BF16."""
        return tuple(FORMATS)

    def sizes(self, manifest: Manifest, device: Device) -> tuple[StateBytes, ...]:
        """What single things take, in the order of mtp-design.md's figures."""
        found = sizes(settings_of(manifest).architecture, FORMATS[device])
        return tuple(StateBytes(name, nbytes) for name, nbytes in found)

    def load(self, core: Path, manifest: Manifest, config: LoadConfig) -> Loaded:
        """Reads the weights and allocates all state. Raises `CheckpointError`."""
        from recipes.components.safetensors_headers import survey
        from recipes.components.table_file import table_path
        from recipes.components.tensor_store import TensorStore
        from recipes.qwen38.embedding_table import NAME
        from recipes.qwen38.mtp import MtpDrafter, MtpLayer
        from recipes.qwen38.target import Target
        from recipes.qwen38.weights import WeightReader, read_drafter, read_target

        settings = settings_of(manifest)
        files = [core / TARGET_FILE, table_path(core, NAME), *([core / DRAFTER_FILE] if settings.drafter else [])]
        reader = WeightReader(settings.architecture, TensorStore(survey(files)))
        weights = read_target(reader, settings.activations, config.tables.get(NAME))
        target = Target(settings.architecture, weights, config)
        if not settings.drafter:
            return Loaded(target, None)
        rows = config.slots + config.snapshots
        layer = MtpLayer(settings.architecture, read_drafter(reader, weights), config.pages, rows, config.deterministic)
        return Loaded(target, MtpDrafter(layer, config.slots, rows, settings.architecture.streams_width))

    def load_device(self, core: Path, manifest: Manifest, config: LoadConfig, device: torch.device) -> DeviceLoaded:
        """Reads the weights onto a GPU, experts as stored. Raises `CheckpointError` and `ManifestError`."""
        import torch

        from recipes.qwen38.device_core import load_core

        return load_core(core, manifest, config, device, torch.bfloat16)


RECIPES = (Qwen38(),)
