"""Configuration of the frontend process: one frozen dataclass that validates itself. Owned by `service.run`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from shared.channel import RunDirectory
from shared.errors import ProcessError


@dataclass(frozen=True, slots=True)
class FrontendConfig:
    """What `flare frontend` is told. Times in seconds; port 0 lets the system choose.

    `ready_timeout` is how old the scheduler's last status may be before `/ready` says 503.
    """

    core: Path
    run_dir: Path
    host: str = "127.0.0.1"
    port: int = 8000
    served_model_name: str | None = None
    drain_timeout: float = 30
    ready_timeout: float = 5

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65_535:
            raise ProcessError(f"port {self.port} is not between 0 and 65535")
        if self.drain_timeout < 0 or self.ready_timeout <= 0:
            raise ProcessError("drain_timeout must not be negative and ready_timeout must be positive")
        if self.served_model_name is not None and not self.served_model_name.strip():
            raise ProcessError("served_model_name must not be empty")

    @property
    def sockets(self) -> RunDirectory:
        """Where the scheduler listens."""
        return RunDirectory(self.run_dir)

    @property
    def notice(self) -> Path:
        """The file that tells the bound address while the process lives."""
        return self.run_dir / "frontend.json"
