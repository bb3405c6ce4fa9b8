"""How a worker runs: one frozen value, validated once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from shared.byte_sizes import Room
from shared.cuda_driver import visible_gpus
from shared.errors import ProcessError
from shared.manifest import Storage
from shared.metrics_address import LOOPBACK, check_address

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """`headroom` stays free on the device, bytes or a share of its memory; times in seconds.

    `threads` None takes every core but one, which the other services need.
    """

    core: Path
    run_dir: Path
    device: Literal["cpu", "cuda"] = "cpu"
    frames: Literal["ipc", "host"] = "ipc"
    deterministic: bool = False
    concurrency: int | None = None
    headroom: Room = GIB // 2
    threads: int | None = None
    embedding_table_storage: Storage | None = None
    """Where embedding tables lie; None: as the core says."""
    embedding_table_cache_size: int = GIB // 4
    """Bytes of rows that a row server may keep in memory."""
    embedding_row_timeout: float = 10.0
    """How long a row server may make no progress while a round waits for it."""
    drain_timeout: float = 40.0
    round_timeout: float = 120.0
    """How long one round may take before this worker gives itself up."""
    served_model_name: str | None = None
    metrics_host: str = LOOPBACK
    metrics_port: int | None = None
    record: Path | None = None
    """Where to write every round's plan and times, for `flare bench replay`."""

    def __post_init__(self) -> None:
        if self.device == "cuda" and not visible_gpus():
            raise ProcessError("--device cuda needs an NVIDIA GPU, and the driver shows none here")
        if self.concurrency is not None and self.concurrency < 1:
            raise ProcessError("concurrency must be at least one")
        if isinstance(self.headroom, int) and self.headroom < 0:
            raise ProcessError("headroom cannot be negative")
        if self.embedding_table_cache_size < 0:
            raise ProcessError("the cache of an embedding table cannot be negative")
        if not self.embedding_row_timeout > 0:
            raise ProcessError("the timeout of embedding rows must be positive")
        if not self.round_timeout > 0:
            raise ProcessError("the round timeout must be positive")
        check_address(self.metrics_host, self.metrics_port)
        if self.threads is not None and self.threads < 1:
            raise ProcessError("threads must be at least one")
