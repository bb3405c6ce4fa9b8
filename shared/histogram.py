"""A histogram of plain numbers: two additions an observation, no lock, shown by `shared/exposition.py`. Pure.

One thread observes; a scrape in another may see an observation's bucket before its sum, which the next one mends.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


class Histogram:
    """`bounds` ascend and are inclusive upper bounds; what lies above the last one has a bucket of its own."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    @property
    def count(self) -> int:
        """Observations so far."""
        return sum(self.counts)

    def observe(self, value: float) -> None:
        """Counts one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def add(self, other: Histogram) -> None:
        """Counts all that `other`, of the same bounds, has counted."""
        self.counts = [own + more for own, more in zip(self.counts, other.counts, strict=True)]
        self.total += other.total

    def cumulative(self) -> list[tuple[str, int]]:
        """(upper bound, observations up to it), ascending, as Prometheus wants them; the last bound is +Inf."""
        found, below = [], 0
        for bound, count in zip((*self.bounds, float("inf")), tuple(self.counts), strict=True):
            below += count
            found.append(("+Inf" if bound == float("inf") else str(float(bound)), below))
        return found
