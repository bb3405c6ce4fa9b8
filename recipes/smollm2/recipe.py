"""The SmolLM2 recipe: Llama-family checkpoints on the CPU, with copied drafts only.

Runs in `ignition` (export) and in the worker (load).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast, get_args

import msgspec
import structlog

from recipes.components.int8_linear import integer_products_are_exact
from recipes.components.model import StateBytes
from recipes.declaration import LoadConfig, Loaded, PreparationConfig, Progress, Speculation
from recipes.device_recipe import DeviceLoaded, most_lanes, most_rows, sampled_rows
from recipes.smollm2.architecture import Settings, WeightFormat
from recipes.smollm2.memory import device_items, items
from shared.errors import CheckpointError, ManifestError
from shared.manifest import Manifest, largest_chunk

if TYPE_CHECKING:
    import torch

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SmolLM2:
    """The `Recipe`. `weights` is what an export writes; a load reads it from the core."""

    weights: WeightFormat = "int8"

    @property
    def name(self) -> str:
        """The name in the registry and in manifests."""
        return "smollm2"

    @property
    def speculation(self) -> Speculation:
        """Copies only: there is no learned drafter for this family."""
        return Speculation(default_drafts=7, maximum_drafts=7)

    def with_weights(self, weights: str) -> SmolLM2:
        """The recipe that exports `weights`. Raises `CheckpointError` on a format that is not one of ours."""
        if weights not in get_args(WeightFormat):
            raise CheckpointError(f"weights {weights!r} is not one of {', '.join(get_args(WeightFormat))}")
        return replace(self, weights=cast(WeightFormat, weights))

    def export(self, checkpoint: Path, core: Path, config: PreparationConfig, progress: Progress) -> Manifest:
        """Writes the core. Raises `CheckpointError` and `ManifestError`."""
        from recipes.smollm2.export import export_core

        return export_core(checkpoint, core, config, self.name, self.speculation, self.weights, progress)

    def bill(self, manifest: Manifest, config: LoadConfig) -> tuple[StateBytes, ...]:
        """What `load` will hold with these pages and slots."""
        settings = settings_of(manifest)
        if config.device == "cuda":
            shape = sampled_rows(manifest), largest_chunk(manifest)
            found = device_items(settings, config.pages, most_lanes(manifest), *shape)
        else:
            found = items(settings, config.pages, config.slots)
        return tuple(StateBytes(item.name, item.nbytes) for item in found)

    def load(self, core: Path, manifest: Manifest, config: LoadConfig) -> Loaded:
        """Maps the weights and allocates the page pools. Raises `CheckpointError`."""
        from recipes.smollm2.target import Target
        from recipes.smollm2.weights import read_weights

        settings = settings_of(manifest)
        exact = integer_products_are_exact()
        if settings.weights == "int8" and not exact:
            if config.deterministic:
                raise ManifestError("this machine's int8 products are not exact: --deterministic cannot be kept")
            _log.warning("integer_products_inexact", fallback="float32 layers", reason="the load-time probe failed")
        weights = read_weights(core, settings.architecture, settings.weights, exact)
        return Loaded(model=Target(settings.architecture, weights, config), drafter=None)

    def load_device(self, core: Path, manifest: Manifest, config: LoadConfig, device: torch.device) -> DeviceLoaded:
        """Reads the weights onto a GPU, in bfloat16 where they are floats. Raises `CheckpointError`."""
        import torch

        from recipes.smollm2.device_target import DeviceTarget
        from recipes.smollm2.device_weights import read_device_weights

        settings = settings_of(manifest)
        shape = settings.architecture
        weights = read_device_weights(core, shape, settings.weights, device, torch.bfloat16)
        lanes, rows = most_lanes(manifest), most_rows(manifest)
        return DeviceLoaded(DeviceTarget(shape, weights, config.pages, lanes, rows, config.deterministic), None)

    @property
    def row_invariant_on_devices(self) -> bool:
        """`--deterministic` is kept on a GPU too."""
        return True


def settings_of(manifest: Manifest) -> Settings:
    """The recipe's own part of the manifest. Raises `ManifestError`."""
    try:
        return msgspec.json.decode(manifest.settings, type=Settings)
    except msgspec.MsgspecError as error:
        raise ManifestError(f"the manifest's settings are not of the smollm2 recipe: {error}") from error


RECIPES = (SmolLM2(),)
