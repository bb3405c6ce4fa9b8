"""What a recipe declares: its name, its drafter, how a checkpoint becomes a core and a core becomes a model.

Runs in `ignition` (export) and in the worker (load). A recipe never decides policy and never sees a request.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from recipes.components.model import Drafter, Model, StateBytes
from shared.manifest import Manifest

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
    """What the operator chose for a core. Tokens unless said otherwise."""

    concurrency: int = 4
    context_length: int = 2048
    draft_tokens: int | None = None
    speculative_token_capacity: int = 128
    prefill_buckets: tuple[int, ...] = (32, 256)
    mixed_chunk: int = 64
    snapshot_slots: int = 4
    pages: int | None = None
    history_drafts: bool = False


@dataclass(frozen=True, slots=True)
class LoadConfig:
    """How a worker runs a core: row-invariant arithmetic on demand; how many slots, pages and snapshots it holds."""

    deterministic: bool
    slots: int
    pages: int
    snapshots: int


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
