"""What a recipe declares: its name, its drafter, how a checkpoint becomes a core and a core becomes a model.

Runs in `ignition` (export) and in the worker (load). A recipe never decides policy and never sees a request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from recipes.components.embedding_rows import RowSource
from recipes.components.gpu.tables import DeviceTable
from recipes.components.model import Drafter, Model, StateBytes
from shared.manifest import Manifest, Storage

Device = Literal["cpu", "cuda"]
Progress = Callable[[str, int, int], None]
"""Called as `progress(what, done, total)` while an export runs."""


@dataclass(frozen=True, slots=True)
class Speculation:
    """Draft counts of a recipe. `learned` names its drafter (empty: copies only)."""

    default_drafts: int
    maximum_drafts: int
    learned: str = ""
    copies: bool = True


@dataclass(frozen=True, slots=True)
class PreparationConfig:
    """What the operator chose for a core. Tokens unless said otherwise.

    `speculative_widths` is any ascending set of verification widths that includes one; unset, it is one through
    `draft_tokens` + 1, and that is the recipe's default. `mtp` false prepares ordinary serving alone, without the
    recipe's drafter; `mtp_only` speculative serving alone. `adaptive` is the core's default policy of verification.
    """

    concurrency: int = 4
    context_length: int = 2048
    draft_tokens: int | None = None
    speculative_widths: tuple[int, ...] | None = None
    mtp: bool = True
    mtp_only: bool = False
    adaptive: bool = True
    speculative_token_capacity: int = 128
    prefill_buckets: tuple[int, ...] = (32, 256)
    mixed_chunk: int = 64
    snapshot_slots: int = 16
    pages: int | None = None
    history_drafts: bool = False


@dataclass(frozen=True, slots=True)
class LoadConfig:
    """How a worker runs a core: row-invariant arithmetic on demand; how many slots, pages and snapshots it holds.

    `device` decides what a bill counts. `storage` is where the operator wants embedding
    tables, None as the core says; `row_cache` the bytes of a row server's cache; `tables` their rows, by name: a table
    that is not among them is loaded into the device's own memory. `device_tables` are the same for a GPU.
    """

    deterministic: bool
    slots: int
    pages: int
    snapshots: int
    device: Device = "cpu"
    storage: Storage | None = None
    row_cache: int = 0
    tables: Mapping[str, RowSource] = field(default_factory=dict)
    device_tables: Mapping[str, DeviceTable] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model ready to run, with the drafter that belongs to it, if any."""

    model: Model
    drafter: Drafter | None


class Recipe(Protocol):
    """One model family."""

    @property
    def name(self) -> str: ...

    @property
    def speculation(self) -> Speculation: ...

    def export(self, checkpoint: Path, core: Path, config: PreparationConfig, progress: Progress) -> Manifest:
        """Validates the checkpoint, writes the core folder and returns its manifest. Raises `CheckpointError`."""
        ...

    def bill(self, manifest: Manifest, config: LoadConfig) -> tuple[StateBytes, ...]:
        """What `load` will allocate, known before it does."""
        ...

    def load(self, core: Path, manifest: Manifest, config: LoadConfig) -> Loaded:
        """Maps the weights and allocates all state; nothing is allocated afterwards."""
        ...


@runtime_checkable
class Planned(Protocol):
    """A recipe that can say what a core of a checkpoint would be, from the checkpoint's headers alone."""

    def plan(self, checkpoint: Path, config: PreparationConfig) -> Manifest:
        """The manifest that `export` would write. Raises `CheckpointError` and `ManifestError`."""
        ...


@runtime_checkable
class Sized(Protocol):
    """A recipe whose bill is known for several devices, and which can say what single things take."""

    @property
    def devices(self) -> tuple[Device, ...]:
        """Devices that it has bills for."""
        ...

    def sizes(self, manifest: Manifest, device: Device) -> tuple[StateBytes, ...]:
        """What one matrix, token, row or buffer takes, in bytes, in an order that is equal for all devices."""
        ...
