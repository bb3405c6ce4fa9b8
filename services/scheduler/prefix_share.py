"""A request's part in the prefix cache while it holds pages: what it started from and what it gives. Pure data.

Boundaries and counts in tokens; boundaries are multiples of 64.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from services.scheduler.prefix_cache import NO_ROW, Node


@dataclass(slots=True, eq=False)
class Export:
    """A snapshot row on its way: the device writes it at `boundary`, the tree takes it once the tokens below stand.

    Every round that may reach the boundary carries it, so that a record of at least so many consumed tokens tells that
    it was `written`. `rolling`: the newest one of a generation, which replaces the one before.
    """

    row: int
    boundary: int
    rolling: bool
    written: bool = False


@dataclass(slots=True, eq=False)
class Share:
    """`node` is the last page of this text in the tree; the request holds the path to it."""

    node: Node | None = None
    hit: int = 0
    """Tokens that the slot starts from."""
    source: Node | None = None
    """Where the row lies that the slot is restored from."""
    pinned: bool = False
    """Whether that row is still to be restored."""
    noted: int = 0
    """Tokens of the hit that need no noting any more: penalties count the whole prompt."""
    cuts: tuple[int, ...] = ()
    """Where prompt chunks end so that a snapshot can be taken, ascending."""
    consumed: int = 0
    """Tokens that the device has consumed, by its last record."""
    exports: list[Export] = field(default_factory=list)
    rolling: Node | None = None
    rolling_row: int = NO_ROW
    sound: bool = True
    """False once the device refused its state: nothing of it is published any more."""

    @property
    def restoring(self) -> bool:
        """Whether a restore round has to come before the first chunk."""
        return self.pinned or self.noted < self.hit

    def cut_after(self, tokens: int) -> int | None:
        """The first wanted boundary beyond `tokens`."""
        return next((cut for cut in self.cuts if cut > tokens), None)
