"""Rounds of a host as they were planned and recorded, to be planned once more: the same plans must give the same."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shared.frames import FRAMES, Meta
from tests.worker.devices.alone import AloneCatalog
from tests.worker.host import Host

_AT = int(Meta.SEQUENCE)


@dataclass(frozen=True, slots=True)
class Played:
    """One round: its graph, the bytes of its plan, and every record but for its sequence."""

    graph: int
    plan: bytes
    records: NDArray[np.int64]


class Rounds:
    """Notes every round of `host`, whose catalog's `replay` it takes the place of."""

    def __init__(self, host: Host, catalog: AloneCatalog) -> None:
        self._host, self._catalog, self._plans = host, catalog, catalog.peer.plans
        self._size = len(self._plans) // FRAMES
        self._once = catalog.replay
        self.noted: list[Played] = []
        vars(catalog)["replay"] = self.replay

    def _launch(self, graph: int) -> int:
        return self._catalog.launch(graph)

    def _collect(self) -> None:
        self._catalog.peer.completions()

    def replay(self, graph: int) -> int:
        """Replays and notes."""
        start = self._host.catalog.counter % FRAMES * self._size
        plan = bytes(self._plans[start : start + self._size])
        sequence = self._once(graph)
        self.noted.append(Played(graph, plan, self._records(sequence)))
        return sequence

    def again(self, queued: int = 1) -> list[int]:
        """Plans every noted round anew, so many at once; which rounds gave other records than then.

        With two queued, both plans are written and both rounds launched before anything of either is read.
        """
        parted = []
        for first in range(0, len(self.noted), queued):
            batch = self.noted[first : first + queued]
            begin = self._host.catalog.counter
            for sequence, one in enumerate(batch, begin):
                self._plan(sequence, one.plan)
            for one in batch:
                self._launch(one.graph)
            self._collect()
            for index, one in enumerate(batch):
                if not np.array_equal(self._records(begin + index), one.records):
                    parted.append(first + index)
        return parted

    def _plan(self, sequence: int, plan: bytes) -> None:
        start = sequence % FRAMES * self._size
        self._plans[start : start + self._size] = plan
        frame = self._host.plans[sequence % FRAMES]
        frame.head[0] = frame.tail[0] = sequence

    def _records(self, sequence: int) -> NDArray[np.int64]:
        records: NDArray[np.int64] = self._host.completions[sequence % FRAMES].records.copy()
        assert set(records[records[:, Meta.SLOT] >= 0, _AT].tolist()) <= {sequence}
        records[:, _AT] = 0
        return records
