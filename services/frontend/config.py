"""Configuration of the frontend process: one frozen dataclass that validates itself. Owned by `service.run`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from shared.channel import RunDirectory
from shared.errors import ProcessError
from shared.metrics_address import LOOPBACK, check_address

_KEY = re.compile(r"[!-+\--~]+")
_ORIGIN = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^\s/?#,*]+")


@dataclass(frozen=True, slots=True)
class FrontendConfig:
    """What `flare frontend` is told. Times in seconds; port 0 lets the system choose.

    `ready_timeout` is how old the scheduler's last status may be before `/ready` says 503, `scheduler_timeout` how
    long it may be silent before what it runs is given up. `keep_alive` is after how long without output a stream gets a
    comment. Any of `api_keys` opens the API, none leaves it open; pages of `cors_origins` may use it from a browser.
    Only with `log_content` the log tells the text of prompts and answers.
    """

    core: Path
    run_dir: Path
    host: str = "127.0.0.1"
    port: int = 8000
    served_model_name: str | None = None
    drain_timeout: float = 30
    ready_timeout: float = 5
    scheduler_timeout: float = 10
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    cors_origins: tuple[str, ...] = ()
    keep_alive: float = 5
    log_content: bool = False
    metrics_host: str = LOOPBACK
    metrics_port: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65_535:
            raise ProcessError(f"port {self.port} is not between 0 and 65535")
        if self.drain_timeout < 0 or min(self.ready_timeout, self.scheduler_timeout) <= 0:
            raise ProcessError("drain_timeout must not be negative, ready_timeout and scheduler_timeout be positive")
        if self.served_model_name is not None and not self.served_model_name.strip():
            raise ProcessError("served_model_name must not be empty")
        check_address(self.metrics_host, self.metrics_port)
        if not 0 < self.keep_alive < float("inf"):
            raise ProcessError("keep_alive must be positive")
        if not all(_KEY.fullmatch(key) for key in self.api_keys):
            raise ProcessError("an API key must be printable ASCII without spaces and commas")
        for origin in self.cors_origins:
            if not _ORIGIN.fullmatch(origin):
                raise ProcessError(f"{origin!r} is not an origin such as https://example.org, and not *")

    @property
    def sockets(self) -> RunDirectory:
        """Where the scheduler listens."""
        return RunDirectory(self.run_dir)

    @property
    def notice(self) -> Path:
        """The file that tells the bound address while the process lives."""
        return self.run_dir / "frontend.json"
