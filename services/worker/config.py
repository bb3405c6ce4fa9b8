"""How a worker runs: one frozen value, validated once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from shared.errors import ProcessError
from shared.metrics_address import LOOPBACK, check_address

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """`headroom_bytes` stay free on the device; `threads` None takes every core but one, which the
    other services need; times in seconds."""

    core: Path
    run_dir: Path
    device: Literal["cpu", "cuda"] = "cpu"
    frames: Literal["ipc", "host"] = "ipc"
    deterministic: bool = False
    concurrency: int | None = None
    headroom_bytes: int = GIB // 2
    threads: int | None = None
    drain_timeout: float = 40.0
    round_timeout: float = 120.0
    """How long one round may take before this worker gives itself up."""
    served_model_name: str | None = None
    metrics_host: str = LOOPBACK
    metrics_port: int | None = None
    record: Path | None = None
    """Where to write every round's plan and times, for `flare bench replay`."""

    def __post_init__(self) -> None:
        if self.device != "cpu":
            raise ProcessError(f"device {self.device!r} is not built yet: this version runs on the CPU")
        if self.concurrency is not None and self.concurrency < 1:
            raise ProcessError("concurrency must be at least one")
        if self.headroom_bytes < 0:
            raise ProcessError("headroom cannot be negative")
        if not self.round_timeout > 0:
            raise ProcessError("the round timeout must be positive")
        check_address(self.metrics_host, self.metrics_port)
        if self.threads is not None and self.threads < 1:
            raise ProcessError("threads must be at least one")
