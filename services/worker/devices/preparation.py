"""From a core folder to a frozen catalog on a GPU: bill, weights, warm-up, capture. Runs once, in the launch thread."""

from __future__ import annotations

import gc
from dataclasses import replace

import torch

from recipes.declaration import LoadConfig
from recipes.device_recipe import DeviceRecipe, RowInvariant
from recipes.registry import recipe_named
from services.worker.arena import prepare_bill
from services.worker.config import WorkerConfig
from services.worker.devices.catalog import DeviceCatalog
from services.worker.devices.cuda import CudaFrames
from services.worker.devices.opened import opened_if_possible
from services.worker.devices.readiness import Compilations, Readiness
from services.worker.devices.recorder import Recorder
from services.worker.devices.tables import CudaTables
from services.worker.preparation import Frames
from services.worker.recording import Recording
from services.worker.rows import Tables
from shared.byte_sizes import bytes_of
from shared.cuda_driver import bind
from shared.cuda_regions import CudaRegion
from shared.errors import ManifestError
from shared.manifest import Manifest


def served_recipe(manifest: Manifest, deterministic: bool) -> DeviceRecipe:
    """The core's recipe. Raises `ManifestError` if it cannot do on a GPU what was asked for."""
    recipe, name = recipe_named(manifest.recipe), manifest.recipe
    if not isinstance(recipe, DeviceRecipe):
        raise ManifestError(f"the recipe {name} has no model for a GPU yet: serve it with --device cpu")
    if deterministic and not isinstance(recipe, RowInvariant):
        raise ManifestError(
            f"the recipe {name} has no row-invariant operators for a GPU: leave out --deterministic, "
            "or serve it with --device cpu"
        )
    return recipe


class CudaPreparation:
    """Prepares one worker's core on the GPU; afterwards `frames` holds what the scheduler reads.

    With frames on the host `opened` is a region that another process has opened, if one could.
    Whoever passes `tables` closes them; without them no embedding table may lie behind a row server.
    """

    def __init__(self, config: WorkerConfig, manifest: Manifest, shared: Frames, tables: Tables | None = None) -> None:
        self._config, self._manifest, self._shared = config, manifest, shared
        tables = tables or Tables(config, manifest, shared.plan.handle.instance, servers=False)
        self._tables = CudaTables(tables, bind())
        self.device_uuid = bind().device_uuid
        self.frames: CudaFrames | None = None
        self.opened: CudaRegion | None = None

    def prepare(self) -> DeviceCatalog:
        """A warmed, captured and frozen catalog. Raises `MemoryRefused`, `ManifestError` or `CheckpointError`."""
        torch.set_grad_enabled(False)
        manifest, shared, device = self._manifest, self._shared, torch.device("cuda")
        ready = Readiness(lambda: torch.cuda.mem_get_info()[0], Compilations().listen())
        recipe, load = served_recipe(manifest, self._config.deterministic), self._load_config()
        available, total = torch.cuda.mem_get_info()  # makes the context, so that it is not in the bill
        headroom = bytes_of(self._config.headroom, total)
        bill = prepare_bill(recipe_named(manifest.recipe), manifest, load, headroom, available)
        bill.check()
        with ready.phase("tables"):
            load = replace(load, device_tables=self._tables.open())
        with ready.phase("load"):
            loaded = recipe.load_device(self._config.core, manifest, load, device)
        layouts = (shared.plan_layout, shared.completion_layout)
        with ready.phase("frames"):
            mirror = shared.completion if self._config.frames == "host" else None
            self.frames = CudaFrames(layouts, shared.plan, shared.plan.handle.instance, mirror)
            catalog = DeviceCatalog(manifest, loaded.model, loaded.drafter, layouts, self.frames, device)
        with ready.phase("warm"):
            catalog.warm()
            torch.cuda.empty_cache()  # what the graphs take is in their own pool
        with ready.phase("capture"):
            catalog.capture()
        if mirror is not None:
            with ready.phase("opened"):
                self.opened = opened_if_possible()
        gc.collect()
        gc.freeze()
        ready.report(bill.total, graphs=len(manifest.graphs), nodes=sum(self.frames.nodes))
        return catalog

    def _load_config(self) -> LoadConfig:
        geometry = self._manifest.geometry
        return LoadConfig(
            self._config.deterministic,
            geometry.concurrency,
            geometry.pages,
            geometry.snapshot_slots,
            device="cuda",
            storage=self._config.embedding_table_storage,
        )

    def recorder(self, recording: Recording | None) -> Recorder | None:
        """Who notes the rounds of the prepared catalog; nobody without a recording."""
        if recording is None or self.frames is None:
            return None
        shared = self._shared
        layouts = (shared.plan_layout, shared.completion_layout)
        return Recorder(recording, layouts, shared.plan.payload, self.frames.read_completions)

    def close(self) -> None:
        """Gives the frames and tables back; not while a round may run."""
        for held in (self.frames, self.opened):
            if held is not None:
                held.close()
        self._tables.close()
