"""What a recipe declares besides, if its cores can be served from a GPU: the same core as a `DeviceModel`.

Runs in the worker. A recipe without it is served by the CPU alone, and a worker told otherwise says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from recipes.declaration import LoadConfig
from shared.manifest import Manifest

if TYPE_CHECKING:
    import torch

    from recipes.components.device_drafter import DeviceDrafter
    from recipes.components.device_model import DeviceModel


@dataclass(frozen=True, slots=True)
class DeviceLoaded:
    """A model on a device, with the drafter that belongs to it, if any."""

    model: DeviceModel
    drafter: DeviceDrafter | None


@runtime_checkable
class DeviceRecipe(Protocol):
    """A recipe whose cores a GPU can serve."""

    def load_device(self, core: Path, manifest: Manifest, config: LoadConfig, device: torch.device) -> DeviceLoaded:
        """Reads the weights onto `device` and allocates all state there; nothing is allocated afterwards."""
        ...


@runtime_checkable
class RowInvariant(Protocol):
    """A recipe that keeps `LoadConfig.deterministic` on a device: a row's bits are its own, whatever is beside it."""

    @property
    def row_invariant_on_devices(self) -> bool:
        """True."""
        ...


def most_rows(manifest: Manifest) -> int:
    """The rows of the largest forward that a core's graphs ask for."""
    return max(
        max(graph.batch_capacity * max(graph.verify_tokens, 1), graph.token_capacity) for graph in manifest.graphs
    )


def sampled_rows(manifest: Manifest) -> int:
    """The most rows of which one graph of a core has all logits at once: lanes times width, or a scored chunk."""
    return max(
        graph.token_capacity if graph.kind == "scored_prefill" else graph.batch_capacity * max(graph.verify_tokens, 1)
        for graph in manifest.graphs
    )


def most_lanes(manifest: Manifest) -> int:
    """The lanes of the widest batch among a core's graphs."""
    return max(graph.batch_capacity for graph in manifest.graphs)
