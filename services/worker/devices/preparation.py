"""From a core folder to a frozen catalog on a GPU: bill, weights, warm-up, capture. Runs once, in the launch thread."""

from __future__ import annotations

import gc
from time import perf_counter

import structlog
import torch

from recipes.declaration import LoadConfig
from recipes.device_recipe import DeviceRecipe
from recipes.registry import recipe_named
from services.worker.arena import prepare_bill
from services.worker.config import WorkerConfig
from services.worker.devices.catalog import DeviceCatalog
from services.worker.devices.cuda import CudaFrames
from services.worker.preparation import Frames
from shared.byte_sizes import bytes_of
from shared.cuda_driver import bind
from shared.errors import ManifestError
from shared.manifest import Manifest


class CudaPreparation:
    """Prepares one worker's core on the GPU; afterwards `frames` holds what the scheduler reads."""

    def __init__(self, config: WorkerConfig, manifest: Manifest, shared: Frames) -> None:
        self._config, self._manifest, self._shared = config, manifest, shared
        self.device_uuid = bind().device_uuid
        self.frames: CudaFrames | None = None

    def prepare(self) -> DeviceCatalog:
        """A warmed, captured and frozen catalog. Raises `MemoryRefused`, `ManifestError` or `CheckpointError`."""
        torch.set_grad_enabled(False)
        log, started = structlog.get_logger(), perf_counter()
        config, manifest, shared = self._config, self._manifest, self._shared
        recipe, device = recipe_named(manifest.recipe), torch.device("cuda")
        if not isinstance(recipe, DeviceRecipe):
            raise ManifestError(f"the recipe {manifest.recipe} has no model for a GPU yet: serve it with --device cpu")
        geometry = manifest.geometry
        load = LoadConfig(
            config.deterministic, geometry.concurrency, geometry.pages, geometry.snapshot_slots, device="cuda"
        )
        available, total = torch.cuda.mem_get_info()
        prepare_bill(recipe, manifest, load, bytes_of(config.headroom, total), available).check()
        loaded = recipe.load_device(config.core, manifest, load, device)
        log.info("worker.loaded", seconds=round(perf_counter() - started, 3))
        layouts = (shared.plan_layout, shared.completion_layout)
        mirror = shared.completion if config.frames == "host" else None
        self.frames = CudaFrames(layouts, shared.plan, shared.plan.handle.instance, mirror)
        catalog = DeviceCatalog(manifest, loaded.model, loaded.drafter, layouts, self.frames, device)
        catalog.warm()
        log.info("worker.warmed", seconds=round(perf_counter() - started, 3))
        catalog.capture()
        gc.collect()
        gc.freeze()
        log.info(
            "worker.captured",
            graphs=len(manifest.graphs),
            nodes=sum(self.frames.nodes),
            seconds=round(perf_counter() - started, 3),
        )
        return catalog

    def close(self) -> None:
        """Gives the frames back; not while a round may run."""
        if self.frames is not None:
            self.frames.close()
