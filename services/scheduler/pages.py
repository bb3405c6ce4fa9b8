"""The page pool of the attached worker: which 64-token pages are whose. Pure; one owner at a time, never two.

A page belongs to a request, to the prefix cache, or to nobody. A request takes pages as it grows, but claims a
consecutive run for its whole extent when it is placed. A claim reserves nothing: others avoid it while pages outside of
claims are free, so that most requests hold ascending neighbours, which attention reads fastest.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shared.errors import ContractBreach
from shared.manifest import PAGE_TOKENS

NOBODY = -1
CACHE = 0
"""The owner of pages that requests share."""


def pages_for(extent: int) -> int:
    """Pages that positions 0 .. extent - 1 touch."""
    return -(-extent // PAGE_TOKENS)


def _runs(mask: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """(start, length) of each run of true values, ascending."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], mask, [False])).astype(np.int8)))
    return [(int(start), int(end - start)) for start, end in zip(edges[::2], edges[1::2], strict=True)]


class PagePool:
    """Owners are positive integers, and `CACHE`."""

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
        """Gives an owner's last pages back and drops its claim. Raises `ContractBreach` for one it does not hold."""
        self._move(owner, held, NOBODY)
        self._claim[self._claim == owner] = NOBODY
        held.clear()

    def share(self, owner: int, given: Sequence[int]) -> None:
        """Hands pages of a request over to the cache. Raises `ContractBreach` for a page it does not hold."""
        self._move(owner, given, CACHE)

    def give_back(self, owner: int, given: Sequence[int]) -> None:
        """Gives pages back, and keeps the claim. Raises `ContractBreach` for a page that the owner does not hold."""
        self._move(owner, given, NOBODY)

    def owned(self, owner: int, among: Sequence[int]) -> list[int]:
        """Those of these pages that belong to `owner`, in their order."""
        pages = np.asarray(among, dtype=np.int64)
        found: list[int] = pages[self._owner[pages] == owner].tolist()
        return found

    def _move(self, owner: int, moved: Sequence[int], receiver: int) -> None:
        pages = np.asarray(moved, dtype=np.int64)
        if (self._owner[pages] != owner).any() or len(set(moved)) != len(moved):
            raise ContractBreach(f"owner {owner} gives away pages that it does not hold")
        self._owner[pages] = receiver
        if receiver == NOBODY:
            self.free += len(pages)

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
