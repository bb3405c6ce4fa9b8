"""The bill of a core on a device: what its recipe holds, what every core holds for its requests, and their frames.

Pure arithmetic. The worker refuses to start by it, and `ignition` shows it.
"""

from __future__ import annotations

from recipes.components.model import StateBytes
from recipes.declaration import Device, LoadConfig, Recipe
from recipes.device_recipe import sampled_rows
from shared.frames import FRAMES, completion_layout, plan_layout
from shared.mailbox import mailbox_layout
from shared.manifest import BillItem, Manifest, largest_chunk, storages

_FLOAT, _LONG, _COUNT, _MARK = 4, 8, 4, 1
_CANDIDATES = 2048
"""Tokens that the sampler sorts in each row (recipes/components/gpu/sampling.py)."""
_CONTEXT, _GRAPH = 256 << 20, 8 << 20
"""Estimates. On an H200 the first operations of a tiny model took 170 MiB, kernels and libraries, and 36 captured
graphs 16 MiB, 5 KB a node; a large model's graphs have 1,500 nodes."""
SERVED = "row cache and mailboxes, host memory"
TAKEN = "embedding rows of a round"


def bill_of(recipe: Recipe, manifest: Manifest, config: LoadConfig) -> tuple[StateBytes, ...]:
    """Every line, in bytes: the recipe's, penalties (marks of seen tokens and counts), sampling vectors, frames."""
    geometry = manifest.geometry
    frames = (plan_layout(geometry, largest_chunk(manifest)), completion_layout(geometry))
    vectors = (config.slots + config.snapshots) * geometry.hidden_size
    return (
        *recipe.bill(manifest, config),
        *_tables(manifest, config),
        StateBytes("penalties", config.slots * geometry.vocab_size * (_COUNT + _MARK)),
        StateBytes("sampling vectors", vectors * _FLOAT),
        StateBytes("frames", FRAMES * sum(layout.nbytes for layout in frames)),
        *(_captured(manifest) if config.device == "cuda" else ()),
    )


def _captured(manifest: Manifest) -> tuple[StateBytes, ...]:
    """What captured rounds take on a GPU besides their model: scratch of the sampler, and the graphs themselves."""
    rows = sampled_rows(manifest)
    return (
        StateBytes("sampling", rows * (manifest.geometry.vocab_size * _FLOAT + _CANDIDATES * _LONG)),
        StateBytes("graphs and kernels, estimated", _CONTEXT + len(manifest.graphs) * _GRAPH),
    )


def _tables(manifest: Manifest, config: LoadConfig) -> tuple[StateBytes, ...]:
    """Embedding tables in device memory, and what a row server's mailbox takes of it.

    On the CPU, whose memory is the host's, that is mailbox and cache; on a GPU the rows of a round, taken from there.
    """
    found: dict[str, int] = {}
    chosen = storages(manifest, config.storage)
    for table in manifest.embedding_tables:
        storage = chosen[table.name]
        if storage == "gpu":
            found["embedding tables"] = found.get("embedding tables", 0) + table.nbytes
        elif storage == "disk" and config.device == "cpu":
            mailbox = mailbox_layout(table.mailbox_ids, table.row_bytes).nbytes
            found[SERVED] = found.get(SERVED, config.row_cache) + mailbox
        elif storage == "disk":
            found[TAKEN] = found.get(TAKEN, 0) + table.mailbox_ids * (table.row_bytes + _LONG)
    return tuple(StateBytes(name, nbytes) for name, nbytes in found.items())


def as_prepared(manifest: Manifest, device: Device = "cpu") -> LoadConfig:
    """The sizes that a worker loads a core with if its operator asks for nothing else."""
    geometry = manifest.geometry
    return LoadConfig(False, geometry.concurrency, geometry.pages, geometry.snapshot_slots, device)


def stored_bill(recipe: Recipe, manifest: Manifest) -> tuple[BillItem, ...]:
    """The bill that an export writes into the manifest: of this machine's format, without headroom."""
    return tuple(BillItem(line.name, line.nbytes) for line in bill_of(recipe, manifest, as_prepared(manifest)))
