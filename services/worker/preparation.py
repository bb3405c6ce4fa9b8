"""From a core folder to a frozen catalog: bill, weights, warm-up, capture.

Runs once, in the launch thread. Refuses with the bill before it allocates anything.
"""

from __future__ import annotations

import gc
import os
from dataclasses import dataclass, replace
from time import perf_counter

import psutil
import structlog
import torch

from recipes.declaration import LoadConfig
from recipes.registry import recipe_named
from services.worker.arena import prepare_bill
from services.worker.catalog import Catalog
from services.worker.config import WorkerConfig
from services.worker.rows import Tables
from shared import regions
from shared.byte_sizes import bytes_of
from shared.frames import FRAMES, Layout, blank_plans, completion_layout, plan_layout
from shared.manifest import Manifest, largest_chunk


@dataclass(frozen=True, slots=True)
class Frames:
    """The two regions that scheduler and worker share, and their layouts."""

    plan: regions.PosixRegion
    completion: regions.PosixRegion
    plan_layout: Layout
    completion_layout: Layout

    def close(self) -> None:
        """Removes both regions."""
        self.plan.close()
        self.completion.close()


def create_frames(manifest: Manifest, instance: int) -> Frames:
    """Two plan frames for no round yet, and two completion frames, in shared memory."""
    plans = plan_layout(manifest.geometry, largest_chunk(manifest))
    completions = completion_layout(manifest.geometry)
    plan = regions.create("plan", FRAMES * plans.nbytes, instance)
    blank_plans(plans, plan.payload)
    return Frames(plan, regions.create("completion", FRAMES * completions.nbytes, instance), plans, completions)


def prepare(config: WorkerConfig, manifest: Manifest, frames: Frames, tables: Tables | None = None) -> Catalog:
    """A warmed, captured and frozen catalog. Raises `MemoryRefused`, `ManifestError` or `CheckpointError`.

    Whoever passes `tables` closes them; without them no embedding table may lie behind a row server.
    """
    torch.set_grad_enabled(False)
    torch.set_num_threads(config.threads or max(1, len(os.sched_getaffinity(0)) - 1))
    log, started = structlog.get_logger(), perf_counter()
    geometry = manifest.geometry
    tables = tables or Tables(config, manifest, frames.plan.handle.instance, servers=False)
    load = LoadConfig(
        config.deterministic,
        geometry.concurrency,
        geometry.pages,
        geometry.snapshot_slots,
        storage=config.embedding_table_storage,
        row_cache=config.embedding_table_cache_size,
    )
    recipe = recipe_named(manifest.recipe)
    layouts = (frames.plan_layout, frames.completion_layout)
    memory = psutil.virtual_memory()
    headroom = bytes_of(config.headroom, memory.total)
    prepare_bill(recipe, manifest, load, headroom, memory.available).check()
    loaded = recipe.load(config.core, manifest, replace(load, tables=tables.open()))
    log.info("worker.loaded", seconds=round(perf_counter() - started, 3))
    catalog = Catalog(manifest, loaded.model, loaded.drafter, layouts, frames.plan.payload, frames.completion.payload)
    catalog.warm()
    catalog.capture()
    # Everything alive now lives as long as the process: the collector need not look at it again.
    gc.collect()
    gc.freeze()
    log.info("worker.captured", graphs=len(manifest.graphs), seconds=round(perf_counter() - started, 3))
    return catalog
