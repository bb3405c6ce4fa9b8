"""The host as a device: captured rounds are called again, frames are the shared memory itself.

For tests of the rounds on machines without a GPU; the CPU worker runs `services/worker/programs.py`, faster there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from services.worker.devices.catalog import Ends, Round
from services.worker.devices.plan import Fetch, PlainFetch
from shared.frames import FRAMES, Layout


class HostFrames:
    """`services.worker.devices.catalog.Frames` over two writable buffers that outlive it."""

    def __init__(self, layouts: tuple[Layout, Layout], plans: memoryview, completions: memoryview) -> None:
        plan_layout, _ = layouts
        words = torch.frombuffer(plans, dtype=torch.int64).view(FRAMES, -1)
        tail = plan_layout.offset_of("tail") // 8
        self._fetch = PlainFetch(words, tail)
        self._ends = HostEnds()
        self._completions = torch.frombuffer(completions, dtype=torch.int64).view(FRAMES, -1)

    @property
    def completions(self) -> Tensor:
        """The two completion frames."""
        return self._completions

    @property
    def fetch(self) -> Fetch:
        """Reads the frames where they lie."""
        return self._fetch

    def compile(self, rounds: Sequence[Round]) -> None:
        """There is nothing to compile."""

    def capture(self, rounds: Round) -> Round:
        """The round itself."""
        return rounds

    @property
    def ends(self) -> Ends:
        """Clock readings around each call."""
        return self._ends

    def run(self, rounds: Callable[[], object]) -> None:
        """Calls it."""
        rounds()


class HostEnds:
    """`services.worker.devices.catalog.Ends` of rounds that are over when their call returns."""

    depth = 4

    def __init__(self) -> None:
        self._begun, self._ended = [0] * self.depth, [time.perf_counter_ns()] * self.depth

    def begin(self, sequence: int) -> None:
        """Reads the clock."""
        self._begun[sequence % self.depth] = time.perf_counter_ns()

    def end(self, sequence: int) -> None:
        """Reads the clock."""
        self._ended[sequence % self.depth] = time.perf_counter_ns()

    def over(self, sequence: int) -> bool:
        """Always."""
        return True

    def wait(self, sequence: int) -> None:
        """Nothing is ever under way."""

    def device_ns(self, sequence: int) -> tuple[int, int]:
        """From the readings."""
        here, before = sequence % self.depth, (sequence - 1) % self.depth
        return self._ended[here] - self._begun[here], max(self._begun[here] - self._ended[before], 0)
