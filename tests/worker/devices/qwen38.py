"""A tiny Qwen3.8 core with its MTP drafter on the CPU's programs and on a device's rounds, in float32 on both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import torch

from recipes.components.embedding_rows import RowSource
from recipes.components.gpu.tables import DeviceTable
from recipes.declaration import LoadConfig, PreparationConfig
from recipes.qwen38.device_core import load_core
from recipes.qwen38.recipe import Qwen38
from recipes.qwen38.tiny import tiny_architecture, write_tiny
from shared.manifest import read
from tests.worker.devices.twin import MakePeer, TwinCatalog, buffers, host_over, layouts_of
from tests.worker.host import Host

ARCHITECTURE = tiny_architecture(
    num_hidden_layers=2, layer_types=("linear_attention", "full_attention"), ple_layer_ids=(1,), hc_count=2
)
"""One layer of each kind: references go row by row."""


def small_core(folder: Path, widths: tuple[int, ...] = (1, 2, 3, 4)) -> Path:
    """A core of few pages and small chunks, with fewer slots than its largest batch has lanes; it only speculates."""
    write_tiny(folder / "checkpoint", ARCHITECTURE, seed=11)
    config = PreparationConfig(
        concurrency=3,
        context_length=256,
        speculative_widths=widths,
        mtp_only=True,
        prefill_buckets=(16,),
        mixed_chunk=8,
        snapshot_slots=4,
    )
    Qwen38().export(folder / "checkpoint", folder / "core", config, lambda what, done, total: None)
    return folder / "core"


def qwen38_twin(
    core: Path,
    device: torch.device,
    make_peer: MakePeer,
    sources: Mapping[str, RowSource] = MappingProxyType({}),
    tables: Mapping[str, DeviceTable] = MappingProxyType({}),
) -> Host:
    """The host of both, whose tables lie in memory unless `sources` or `tables` have them.

    Sums are taken in different orders, so that vectors agree to rounding.
    """
    manifest = read(core)
    geometry, layouts = manifest.geometry, layouts_of(manifest)
    config = LoadConfig(False, geometry.concurrency, geometry.pages, geometry.snapshot_slots)
    ours = Qwen38().load(core, manifest, replace(config, tables=sources))
    theirs = load_core(core, manifest, replace(config, device_tables=tables), device, torch.float32)
    peer, frames = make_peer(manifest, theirs.model, theirs.drafter, layouts), buffers(layouts)
    twin = TwinCatalog(manifest, (ours.model, ours.drafter), peer, layouts, frames)
    twin.vector_error, twin.logprob_error = 1e-4, 1e-3
    return host_over(manifest, twin, layouts, frames)
