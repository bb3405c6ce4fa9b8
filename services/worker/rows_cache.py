"""The cache of a row server: whole rows of one table, the least recently asked one goes first. Bounded in bytes. Pure.

Rows lie in one slab that is never larger than the bound; what finding them costs beside is counted too.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from shared.frames import Array

ENTRY_BYTES = 200
"""What the interpreter keeps for an entry of the index: 145 to 194 bytes measured, by how full its tables are."""


class RowCache:
    """At most `nbytes` bytes of rows of `row_bytes`, index included. With room for no row it holds nothing."""

    def __init__(self, nbytes: int, row_bytes: int) -> None:
        self.capacity = max(nbytes, 0) // (row_bytes + ENTRY_BYTES)
        self._slab = np.empty((self.capacity, row_bytes), dtype=np.uint8)
        self._places: OrderedDict[int, int] = OrderedDict()
        """Place in the slab by id, least recently asked first."""

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, row: int) -> bool:
        return row in self._places

    @property
    def nbytes(self) -> int:
        """Bytes that are in use."""
        return len(self._places) * (self._slab.shape[1] + ENTRY_BYTES)

    def look_up(self, ids: Array, out: Array) -> Array:
        """Copies the rows that are here into `out` [n, row_bytes]; the indices of the others into `ids` [n]."""
        found, places, missing = [], [], []
        index, touch = self._places, self._places.move_to_end
        for at, row in enumerate(ids.tolist()):
            place = index.get(row)
            if place is None:
                missing.append(at)
            else:
                touch(row)
                found.append(at)
                places.append(place)
        out[found] = self._slab[places]
        return np.array(missing, dtype=np.int64)

    def insert(self, ids: Array, rows: Array) -> None:
        """Keeps rows [n, row_bytes] of `ids` [n], of which none is here; the last of them if not all have room."""
        if self.capacity == 0 or not len(ids):
            return
        kept = ids[-self.capacity :].tolist()
        places, index = [], self._places
        for row in kept:
            place = index.popitem(last=False)[1] if len(index) == self.capacity else len(index)
            index[row] = place
            places.append(place)
        self._slab[places] = rows[-len(kept) :]
