"""What the operator chose for the log of a service, checked on construction. Frozen; no I/O. Every process."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from shared.errors import ProcessError

LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
}
CHOICES = ("debug", "info", "warning", "error")
"""Levels that an operator may name: nothing of ours is critical."""
MIN_BYTES = 4096


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Where events go: to files in `log_dir` from `log_file_level` up, and to stderr from `log_level` up.

    SERVICE.debug.log has the debug lines, SERVICE.log all others. A file holds about `log_max_bytes`; there are at most
    `log_files` of each of the two. No `log_dir`, no files.
    """

    log_dir: Path | None = None
    log_level: str = "info"
    log_file_level: str = "debug"
    log_max_bytes: int = 16 << 20
    log_files: int = 4

    def __post_init__(self) -> None:
        for level in (self.log_level, self.log_file_level):
            if level not in CHOICES:
                raise ProcessError(f"{level!r} is not a log level; there are {', '.join(CHOICES)}")
        if self.log_max_bytes < MIN_BYTES:
            raise ProcessError(f"log files must be allowed at least {MIN_BYTES} bytes, not {self.log_max_bytes}")
        if self.log_files < 1:
            raise ProcessError("there must be at least one log file")
