"""Where `flare run` keeps the logs of its server, and where `flare logs` looks for them.

Below `$XDG_STATE_HOME/flare/logs` each server has a folder named by the port it was given, so that a restarted one goes
on in its files; a second server of that name, while the first lives, gets the next number. A lock tells who lives.
"""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import click

from compose.run_directory import is_locked

_LOCK = ".lock"
MOST = 64
"""Servers of one name at once."""


@dataclass(frozen=True, slots=True)
class LogPlace:
    """A folder of log files; `written` is when the youngest changed, in seconds since 1970."""

    path: Path
    live: bool
    written: float


def base() -> Path:
    """The folder of all places. Raises `RuntimeError` for a user without a home."""
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "flare" / "logs"


def _taken(folder: Path) -> int | None:
    """A descriptor that holds the folder's lock, or None when a living server has it."""
    descriptor = os.open(folder / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def claim(port: int) -> tuple[Path, int]:
    """This process's own place, and the descriptor that keeps it until the process ends. Raises `OSError`."""
    name = str(port) if port else "any"
    for number in count(1):
        folder = base() / (name if number == 1 else f"{name}-{number}")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = _taken(folder)
        if descriptor is not None:
            return folder, descriptor
        if number == MOST:
            break
    raise OSError(f"{MOST} servers of port {name} seem to live")


def _written(folder: Path) -> float:
    return max((file.stat().st_mtime for file in folder.glob("*.log")), default=0.0)


def places() -> list[LogPlace]:
    """All places with a log, the likeliest first: living servers, then the most recently written."""
    try:
        folders = [folder for folder in base().iterdir() if folder.is_dir()]
        found = [LogPlace(folder, is_locked(folder / _LOCK), _written(folder)) for folder in folders]
    except (OSError, RuntimeError):
        return []
    return sorted((place for place in found if place.written), key=lambda p: (p.live, p.written), reverse=True)


def choose(wanted: Path | None, port: int) -> Path | None:
    """The folder for the logs of a server that starts: the one that was asked for, else a place of its own.

    None, with a warning, when there can be no place: logs then go to the terminal alone.
    """
    if wanted is not None:
        return wanted.absolute()
    try:
        return claim(port)[0]
    except (OSError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        click.echo(f"Warning: no log files, because there is no place for them: {reason}", err=True)
        return None
