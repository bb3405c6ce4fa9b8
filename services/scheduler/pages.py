"""The page pool of the attached worker: which 64-token pages are whose. Pure; one owner at a time, never two.

A request takes pages as it grows, but claims a consecutive run for its whole extent when it is placed. A claim reserves
nothing: others avoid it while pages outside of claims are free, so that most requests hold ascending neighbours, which
attention reads fastest.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shared.errors import ContractBreach
from shared.manifest import PAGE_TOKENS

NOBODY = -1


def pages_for(extent: int) -> int:
    """Pages that positions 0 .. extent - 1 touch."""
    return -(-extent // PAGE_TOKENS)


def _runs(mask: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """(start, length) of each run of true values, ascending."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], mask, [False])).astype(np.int8)))
    return [(int(start), int(end - start)) for start, end in zip(edges[::2], edges[1::2], strict=True)]


class PagePool:
    """Owners are positive integers."""

    def __init__(self, pages: int) -> None:
        self.total = pages
        self.free = pages
        self._owner = np.full(pages, NOBODY, dtype=np.int64)
        self._claim = np.full(pages, NOBODY, dtype=np.int64)

    def owner_of(self, page: int) -> int:
        """Who holds a page, or -1."""
        return int(self._owner[page])

    def place(self, owner: int, count: int, wanted: int) -> list[int] | None:
        """The first `count` pages of a new owner that may come to hold `wanted`; None if there are too few."""
        if count > self.free:
            return None
        runs = _runs((self._owner == NOBODY) & (self._claim == NOBODY))
        fitting = [run for run in runs if run[1] >= wanted]
        start, length = fitting[0] if fitting else max(runs, key=lambda run: run[1], default=(0, 0))
        self._claim[start : start + min(length, wanted)] = owner
        held: list[int] = []
        self._take(owner, held, count, start if length else NOBODY)
        return held

    def grow(self, owner: int, held: list[int], count: int) -> bool:
        """Appends pages until `held` has `count`; takes none and returns False if there are too few."""
        missing = count - len(held)
        if missing > self.free:
            return False
        self._take(owner, held, missing, held[-1] + 1 if held else NOBODY)
        return True

    def release(self, owner: int, held: list[int]) -> None:
        """Gives all pages of an owner back and drops its claim. Raises `ContractBreach` for a page it does not hold."""
        pages = np.asarray(held, dtype=np.int64)
        if (self._owner[pages] != owner).any():
            raise ContractBreach(f"request {owner} gives back pages that it does not hold")
        self._owner[pages] = NOBODY
        self._claim[self._claim == owner] = NOBODY
        self.free += len(held)
        held.clear()

    def _take(self, owner: int, held: list[int], count: int, start: int) -> None:
        page = start
        for _ in range(count):
            if not self._fits(owner, page):
                page = self._elsewhere()
            self._owner[page] = owner
            held.append(page)
            page += 1
        self.free -= count

    def _fits(self, owner: int, page: int) -> bool:
        return 0 <= page < self.total and self._owner[page] == NOBODY and (self._claim[page] in (NOBODY, owner))

    def _elsewhere(self) -> int:
        """The start of the longest unclaimed run; without one the last free page, the end of somebody's claim."""
        free = self._owner == NOBODY
        runs = _runs(free & (self._claim == NOBODY))
        if runs:
            return max(runs, key=lambda run: run[1])[0]
        return int(np.flatnonzero(free)[-1])
