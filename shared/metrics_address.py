"""Where a service's metrics are: the address that it was told, and the file in the run directory that tells it.

Imported by every process, also by those that serve none (`flare status`); `shared/metrics_listener.py` serves there.
"""

from __future__ import annotations

from pathlib import Path

from shared.errors import ProcessError

LOOPBACK = "127.0.0.1"
SUFFIX = ".metrics.json"


def notice(run_dir: Path, service: str) -> Path:
    """The file with `host`, `port` and `pid` as JSON, there while a process serves the metrics of that service."""
    return run_dir / f"{service}{SUFFIX}"


def check_address(host: str, port: int | None) -> None:
    """Raises `ProcessError` for what can never be an address; no port means that nothing is served."""
    if port is not None and not 0 <= port < 1 << 16:
        raise ProcessError(f"{port} is not a port")
    if not host:
        raise ProcessError("the metrics host must not be empty")
