"""The memory bill: everything a worker will hold is known, and refused, before any of it is allocated.

Runs in the worker at start. After it nothing that outlives a round is allocated.
"""

from __future__ import annotations

from dataclasses import dataclass

from recipes.components.bill import bill_of
from recipes.components.model import StateBytes
from recipes.declaration import LoadConfig, Recipe
from shared.errors import MemoryRefused
from shared.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Bill:
    """Lines of the bill, the headroom that must stay free, and what the device has, in bytes."""

    lines: tuple[StateBytes, ...]
    headroom: int
    available: int

    @property
    def total(self) -> int:
        """What would be allocated."""
        return sum(line.nbytes for line in self.lines)

    def table(self) -> str:
        """The bill as text, one line an item, in MiB."""
        rows = [*self.lines, StateBytes("headroom", self.headroom)]
        width = max(len(row.name) for row in rows) + 2
        text = [f"{row.name:<{width}}{row.nbytes / (1 << 20):12.1f} MiB" for row in rows]
        text.append(f"{'needed':<{width}}{(self.total + self.headroom) / (1 << 20):12.1f} MiB")
        text.append(f"{'available':<{width}}{self.available / (1 << 20):12.1f} MiB")
        return "\n".join(text)

    def check(self) -> None:
        """Raises `MemoryRefused`, whose message is the bill, if it does not fit."""
        if self.total + self.headroom > self.available:
            raise MemoryRefused(f"this core does not fit in memory:\n{self.table()}")


def prepare_bill(recipe: Recipe, manifest: Manifest, config: LoadConfig, headroom: int, available: int) -> Bill:
    """The bill of a core: the recipe's weights, pages and state, request rows, snapshots and frames."""
    return Bill(bill_of(recipe, manifest, config), headroom, available)
