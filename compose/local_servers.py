"""Servers on this machine, as another process of the same user finds them: by their run directories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from compose import run_directory
from compose.readiness import Address, read_address
from shared.metrics_address import notice

SERVICES = ("frontend", "scheduler", "worker")


@dataclass(frozen=True, slots=True)
class LocalServer:
    """A run directory and what its services say in it. A killed service's last words may still be there."""

    run_dir: Path

    @property
    def supervised(self) -> bool:
        """Whether a living `flare run` has it. Services that were started one by one have nobody."""
        return run_directory.is_locked(self.run_dir / run_directory.LOCK)

    @property
    def address(self) -> Address | None:
        """Where the API is, or None while nobody says so."""
        return read_address(self.run_dir / "frontend.json")

    @property
    def log_dir(self) -> Path | None:
        """Where its log files are, or None if it writes none."""
        try:
            return (self.run_dir / run_directory.LOGS).readlink()
        except OSError:
            return None

    @property
    def metrics(self) -> dict[str, Address]:
        """Where each service's metrics are, as far as they say so."""
        found = {service: read_address(notice(self.run_dir, service)) for service in SERVICES}
        return {service: address for service, address in found.items() if address is not None}


def living() -> Sequence[LocalServer]:
    """This user's living servers whose run directory was not chosen by hand."""
    folders = sorted(run_directory.base().glob(f"{run_directory.PREFIX}*"))
    return [server for server in map(LocalServer, folders) if server.supervised]
