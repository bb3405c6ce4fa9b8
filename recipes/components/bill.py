"""The bill of a core on a device: what its recipe holds, what every core holds for its requests, and their frames.

Pure arithmetic. The worker refuses to start by it, and `ignition` shows it.
"""

from __future__ import annotations

from recipes.components.model import StateBytes
from recipes.declaration import Device, LoadConfig, Recipe
from shared.frames import FRAMES, completion_layout, plan_layout
from shared.mailbox import mailbox_layout
from shared.manifest import BillItem, Manifest, largest_chunk, storages

_FLOAT, _COUNT, _MARK = 4, 4, 1
SERVED = "row cache and mailboxes, host memory"


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
    )


def _tables(manifest: Manifest, config: LoadConfig) -> tuple[StateBytes, ...]:
    """Embedding tables in device memory, and on the CPU, whose memory is the host's, what a row server holds there."""
    found: dict[str, int] = {}
    chosen = storages(manifest, config.storage)
    for table in manifest.embedding_tables:
        storage = chosen[table.name]
        if storage == "gpu":
            found["embedding tables"] = found.get("embedding tables", 0) + table.nbytes
        elif storage == "disk" and config.device == "cpu":
            mailbox = mailbox_layout(table.mailbox_ids, table.row_bytes).nbytes
            found[SERVED] = found.get(SERVED, config.row_cache) + mailbox
    return tuple(StateBytes(name, nbytes) for name, nbytes in found.items())


def as_prepared(manifest: Manifest, device: Device = "cpu") -> LoadConfig:
    """The sizes that a worker loads a core with if its operator asks for nothing else."""
    geometry = manifest.geometry
    return LoadConfig(False, geometry.concurrency, geometry.pages, geometry.snapshot_slots, device)


def stored_bill(recipe: Recipe, manifest: Manifest) -> tuple[BillItem, ...]:
    """The bill that an export writes into the manifest: of this machine's format, without headroom."""
    return tuple(BillItem(line.name, line.nbytes) for line in bill_of(recipe, manifest, as_prepared(manifest)))
