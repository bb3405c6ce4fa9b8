"""How a worker became ready on a GPU: seconds and device memory of each phase, and what Triton compiled meanwhile.

Runs in the launch thread. After `freeze` nothing may compile: what does all the same is counted and logged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from time import perf_counter
from typing import Any

import structlog

_MICRO, _MIB = 1e-6, 1 << 20


@dataclass(slots=True)
class Compilations:
    """Triton's compilation listener: kernels that were compiled, and those that its cache on disk had."""

    compiled: int = 0
    seconds: float = 0.0
    """Of all of them together; several are compiled at once."""
    cached: int = 0
    late: int = 0
    """Compiled or fetched after `frozen` was set, in the middle of somebody's request."""
    frozen: bool = False
    _lock: Lock = field(default_factory=Lock)

    def listen(self) -> Compilations:
        """Counts from here on, in this process."""
        from triton import knobs

        knobs.compilation.listener = self
        return self

    def __call__(
        self, *, src: Any, metadata: dict[str, Any], metadata_group: dict[str, str], times: Any, cache_hit: bool
    ) -> None:
        """One kernel, in one specialisation; from any thread."""
        if self.frozen:
            self.late += 1
            structlog.get_logger().warning("worker.compiled_while_serving", kernel=metadata.get("name", ""))
        with self._lock:
            if cache_hit:
                self.cached += 1
            else:
                self.compiled += 1
                self.seconds += times.total * _MICRO


@dataclass(slots=True)
class Readiness:
    """Phases of one start. `free` tells the device's free bytes."""

    free: Callable[[], int]
    compilations: Compilations
    seconds: dict[str, float] = field(default_factory=dict)
    nbytes: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """What happens inside is this phase."""
        begin, free = perf_counter(), self.free()
        yield
        self.seconds[name], self.nbytes[name] = perf_counter() - begin, free - self.free()

    def report(self, billed: int, **more: int) -> None:
        """Logs the breakdown, in seconds and MiB, beside the bill's total in bytes; then freezes the compiler."""
        compilations = self.compilations
        compilations.frozen = True
        structlog.get_logger().info(
            "worker.captured",
            seconds=round(sum(self.seconds.values()), 3),
            **{f"{name}_seconds": round(took, 3) for name, took in self.seconds.items()},
            compile_seconds=round(compilations.seconds, 3),
            compiled=compilations.compiled,
            from_cache=compilations.cached,
            **{f"{name}_mib": round(taken / _MIB, 1) for name, taken in self.nbytes.items()},
            used_mib=round(sum(self.nbytes.values()) / _MIB, 1),
            billed_mib=round(billed / _MIB, 1),
            **more,
        )
