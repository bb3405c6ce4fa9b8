"""The supervisor's run directory: one of mode 0700 per server, locked while its supervisor lives, removed afterwards.

Sockets and the frontend's address file lie in it (`shared.channel.RunDirectory`). Directories that a dead supervisor
left are removed by the next one; a live server's never.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path

from shared.channel import RunDirectory
from shared.errors import ProcessError
from shared.metrics_address import SUFFIX

PREFIX = "flare-run-"
_MAKING = "flare-making-"
LOCK = "supervisor.lock"
LOGS = "logs.link"
"""A link to the folder of the server's log files, if it writes any."""
_MAKING_GRACE_S = 60.0


def base() -> Path:
    """Where run directories are made: XDG_RUNTIME_DIR if there is one, else the folder for temporary files."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime) if runtime and os.access(runtime, os.W_OK) else Path(tempfile.gettempdir())


def is_locked(path: Path) -> bool:
    """Whether a living process holds the lock in this file. No file is no lock."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _locked(folder: Path) -> int:
    """A descriptor that holds the folder's lock. Raises `BlockingIOError` when another process has it."""
    descriptor = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


class LockedRunDirectory:
    """A run directory that this process holds; `release` removes what it made."""

    def __init__(self, chosen: Path | None) -> None:
        """Makes a new one, or takes the chosen one. Raises `ProcessError`, also when another server has it."""
        self._made = chosen is None or not chosen.exists()
        if chosen is None:
            # Locked before it has its name: whoever sees the name and gets the lock knows that its owner is dead.
            making = Path(tempfile.mkdtemp(prefix=_MAKING, dir=base()))
            self._lock = _locked(making)
            self.path = making.rename(making.with_name(making.name.replace(_MAKING, PREFIX)))
            RunDirectory(self.path).ensure()
            return
        self.path = chosen.absolute()
        RunDirectory(self.path).ensure()
        try:
            self._lock = _locked(self.path)
        except BlockingIOError as error:
            raise ProcessError(f"another server runs in {self.path}: choose another --run-dir") from error
        self._clear()

    def _clear(self) -> None:
        for pattern in ("*.sock", "frontend.json", f"*{SUFFIX}", LOGS):
            for leftover in self.path.glob(pattern):
                leftover.unlink(missing_ok=True)

    def release(self) -> None:
        """Removes sockets and lock, and the directory if this process made it."""
        self._clear()
        (self.path / LOCK).unlink(missing_ok=True)
        if self._made:
            shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def sweep() -> tuple[str, ...]:
    """Removes this user's run directories whose supervisor is dead, and returns their names."""
    removed = []
    for path in sorted((*base().glob(f"{PREFIX}*"), *base().glob(f"{_MAKING}*"))):
        try:
            found = path.lstat()
            fresh = path.name.startswith(_MAKING) and time.time() - found.st_mtime < _MAKING_GRACE_S
            if fresh or not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
                continue
            lock = _locked(path)
        except OSError:
            continue  # its owner lives, or it is gone meanwhile
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)
        removed.append(path.name)
    return tuple(removed)
