"""The memory that captured rounds share while they run: poisoned between replays; and what must not happen in one."""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from services.worker.devices.cuda import CudaFrames
from services.worker.devices.readiness import Compilations


class Scratch:
    """Every segment of the pool that a peer's graphs were captured into. Nothing there outlives a round."""

    def __init__(self, frames: CudaFrames) -> None:
        pool = tuple(frames._pool)
        found = [one for one in torch.cuda.memory_snapshot() if tuple(one["segment_pool_id"]) == pool]
        self._segments = [(int(one["address"]), int(one["total_size"])) for one in found]
        self._stream = frames.stream.cuda_stream

    @property
    def nbytes(self) -> int:
        """Of all segments."""
        return sum(size for _, size in self._segments)

    def poison(self) -> None:
        """NaN in all floats, -1 in all integers, behind whatever was launched."""
        from cuda.bindings import driver as cuda

        for address, size in self._segments:
            (status,) = cuda.cuMemsetD8Async(address, 0xFF, size, self._stream)
            assert not int(status), status


def poisoning(replay: Callable[[int], int], scratch: Scratch) -> Callable[[int], int]:
    """`replay` with poison before the round, and behind it, before anyone reads its frame."""

    def poisoned(graph: int) -> int:
        scratch.poison()
        sequence = replay(graph)
        scratch.poison()
        return sequence

    return poisoned


@contextmanager
def nothing_is_made() -> Iterator[None]:
    """Inside, no kernel is compiled or fetched from a cache, and this process takes no memory from the device."""
    asked, compilations = _asked(), Compilations().listen()
    yield
    assert (compilations.compiled, compilations.cached) == (0, 0), "a kernel was compiled while serving"
    assert _asked() == asked, "device memory was taken while serving"


def _asked() -> int:
    """How often torch has asked the device for memory: not how much of it is free, which others change too."""
    return int(torch.cuda.memory_stats()["num_device_alloc"])
