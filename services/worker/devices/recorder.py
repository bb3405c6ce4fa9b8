"""Recorded rounds of a device, for `--record`: the plan that each took, when it ran, and how much it emitted.

Both belong to the launch thread. A plan is read where the scheduler wrote
it, whole, since no frame is written again before its round was reported.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from services.worker.recording import UNKNOWN, RecordedRound, Recording
from shared.frames import FRAMES, METADATA, ROW_TOKENS, Layout, Meta

_RECORD = METADATA + ROW_TOKENS


@dataclass(slots=True)
class Recorder:
    """Notes rounds for `recording`. `plans` are both plan frames; `completions` gives bytes of both completion frames
    by offset and length."""

    recording: Recording
    layouts: tuple[Layout, Layout]
    plans: memoryview
    completions: Callable[[int, int], memoryview]
    _taken: deque[tuple[int, bytes]] = field(default_factory=deque)

    def taken(self, sequence: int, graph: int) -> None:
        """Round `sequence` of `graph` was launched, or is about to be."""
        size = self.layouts[0].nbytes
        start = sequence % FRAMES * size
        self._taken.append((graph, bytes(self.plans[start : start + size])))

    def ended(self, sequence: int, took_ns: int) -> None:
        """The oldest round that was taken, `sequence`, has just ended after `took_ns` nanoseconds on the device."""
        end = time.perf_counter_ns()
        graph, plan = self._taken.popleft()
        self.recording.append(RecordedRound(graph, plan, end - took_ns, end, self._emitted(sequence)))

    def _emitted(self, sequence: int) -> int:
        layout = self.layouts[1]
        found = emitted(layout, self.completions, sequence)
        head = sequence % FRAMES * layout.nbytes + layout.offset_of("head")
        stamp = int(np.frombuffer(self.completions(head, 8), dtype=np.int64)[0])
        return found if stamp == sequence else UNKNOWN


def emitted(layout: Layout, completions: Callable[[int, int], memoryview], sequence: int) -> int:
    """Tokens of all lanes in the frame of round `sequence`, as it lies there now."""
    slots = next(one.shape[0] for one in layout.fields if one.name == "records")
    start = sequence % FRAMES * layout.nbytes + layout.offset_of("records")
    words = np.frombuffer(completions(start, slots * _RECORD * 8), dtype=np.int64)
    return int(words.reshape(slots, _RECORD)[:, Meta.EMITTED].sum())
