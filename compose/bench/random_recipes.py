"""Recipes whose weights are drawn on the GPU, without a checkpoint: for `flare bench replay --weights random` alone.

In the worker, by `FLARE_RECIPE_MODULES`, which only the bench sets. Time depends on shapes and types, not on what the
weights mean. `FLARE_BENCH_ACCEPTANCE` forces the mean accepted length of a learned drafter: its proposals are computed
as ever, and then exchanged for tokens that the target is sure to take or to refuse.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from recipes.components.model import StateBytes
from recipes.declaration import LoadConfig, Loaded, PreparationConfig, Progress, Speculation
from recipes.device_recipe import DeviceLoaded, most_lanes, most_rows
from recipes.qwen38.recipe import Qwen38
from recipes.smollm2.recipe import SmolLM2
from shared.errors import CheckpointError, ManifestError
from shared.manifest import Manifest

if TYPE_CHECKING:
    import torch

ACCEPTANCE = "FLARE_BENCH_ACCEPTANCE"
SEED = 11


@dataclass(frozen=True, slots=True)
class Random:
    """What both have in common: a bill, and nothing to read."""

    inner: SmolLM2 | Qwen38

    @property
    def name(self) -> str:
        """The name in the registry and in manifests."""
        return f"random-{self.inner.name}"

    @property
    def speculation(self) -> Speculation:
        """As of the recipe with weights."""
        return self.inner.speculation

    def export(self, checkpoint: Path, core: Path, config: PreparationConfig, progress: Progress) -> Manifest:
        """There is nothing to export."""
        raise CheckpointError("random weights come from no checkpoint")

    def bill(self, manifest: Manifest, config: LoadConfig) -> tuple[StateBytes, ...]:
        """As of the recipe with weights."""
        return self.inner.bill(manifest, config)

    def load(self, core: Path, manifest: Manifest, config: LoadConfig) -> Loaded:
        """Only a GPU draws them."""
        raise ManifestError("random weights are drawn on a GPU: --device cuda")


class RandomSmolLM2(Random):
    """SmolLM2's geometry."""

    def load_device(self, core: Path, manifest: Manifest, config: LoadConfig, device: torch.device) -> DeviceLoaded:
        """Draws the weights."""
        import torch

        from recipes.smollm2.device_target import DeviceTarget
        from recipes.smollm2.device_weights import random_device_weights
        from recipes.smollm2.recipe import settings_of

        settings = settings_of(manifest)
        weights = random_device_weights(settings.architecture, settings.weights, device, torch.bfloat16, SEED)
        lanes, rows = most_lanes(manifest), most_rows(manifest)
        return DeviceLoaded(DeviceTarget(settings.architecture, weights, config.pages, lanes, rows), None)


class RandomQwen38(Random):
    """Qwen3.8-Flash's geometry, with an n-gram table of few rows."""

    def load_device(self, core: Path, manifest: Manifest, config: LoadConfig, device: torch.device) -> DeviceLoaded:
        """Draws the weights."""
        import torch

        from recipes.qwen38.device_core import assembled
        from recipes.qwen38.random_weights import random_weights
        from recipes.qwen38.recipe import settings_of

        settings = settings_of(manifest)
        target, drafter = random_weights(settings.architecture, device, torch.bfloat16, SEED, settings.drafter)
        loaded = assembled(target, drafter, manifest, config)
        forced = os.environ.get(ACCEPTANCE)
        if loaded.drafter is None or forced is None:
            return loaded
        from compose.bench.forced_drafter import ForcedDrafter

        return DeviceLoaded(loaded.model, ForcedDrafter(loaded.drafter, float(forced)))


RECIPES = (RandomSmolLM2(SmolLM2()), RandomQwen38(Qwen38()))
