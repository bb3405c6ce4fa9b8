"""A log file that is rotated by size, safe with other processes on the same file. Imported by every process.

`NAME.log` is written, `NAME.log.1` is the youngest full one. Lines that come together are one write; a killed process
may tear the last of them, and the next one begins a line of its own.
A file that cannot be written is complained of once and tried again later; it never costs more than its lines.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path

RETRY_S = 5.0
LOOK_S, LOOKS = 0.001, 20
"""How often, and so many seconds apart, a file that ends within a line is looked at before that line counts as torn."""


class LogFile:
    """Appends lines to `path`, mode 0600. At most `files` files of about `max_bytes` each. Any thread may write."""

    def __init__(self, path: Path, max_bytes: int, files: int, complain: Callable[[str], None]) -> None:
        self.path = path
        self._name = os.fspath(path)
        self._max_bytes = max_bytes
        self._files = files
        self._complain = complain
        self._complained = False
        self._reason = ""
        self._descriptor = -1
        self._identity = (0, 0)
        self._size = 0
        self._torn = False
        self._retry_at = float("-inf")
        self._lock = threading.Lock()

    def write(self, lines: bytes) -> None:
        """Appends one line or several, given without the last end, to the same file. Never raises `OSError`."""
        with self._lock:
            if self._descriptor < 0 and time.monotonic() < self._retry_at:
                return
            try:
                self._write(lines + b"\n")
            except OSError as error:
                self._give_up(error)
        if self._reason and not self._complained:
            self._complained = True
            self._complain(f"{self._name} cannot be written, lines are missing there: {self._reason}")

    def close(self) -> None:
        """Closes the file; the next line opens it again."""
        with self._lock:
            self._close()

    def _write(self, lines: bytes) -> None:
        self._follow()
        if self._size and self._size + len(lines) > self._max_bytes:
            self._rotate()
        if self._torn:
            lines = b"\n" + lines
        written = os.write(self._descriptor, lines)
        self._size += written
        self._torn = written < len(lines)
        if self._torn:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _follow(self) -> None:
        """Makes sure that the descriptor is of the file at the path: others may have rotated or removed that."""
        if self._descriptor >= 0:
            found = self._at_path()
            if found is not None:
                self._size = found.st_size
                return
            self._close()
        self._open()

    def _at_path(self) -> os.stat_result | None:
        """The open file's status if it still lies at the path; there is none while another process rotates."""
        try:
            found = os.stat(self._name)
        except FileNotFoundError:
            return None
        return found if (found.st_dev, found.st_ino) == self._identity else None

    def _open(self) -> None:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        self._descriptor = os.open(self._name, flags, 0o600)
        found = os.fstat(self._descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "not an ordinary file")
        self._identity, self._size = (found.st_dev, found.st_ino), found.st_size
        self._torn = self._ends_within_a_line()

    def _ends_within_a_line(self) -> bool:
        """Whether a killed process has left half a line.

        The kernel lengthens a file page by page, so that half of a line which another process is writing can be seen;
        a moment later the rest of that is there.
        """
        for _ in range(LOOKS):
            size = os.fstat(self._descriptor).st_size
            if not size or os.pread(self._descriptor, 1, size - 1) == b"\n":
                return False
            time.sleep(LOOK_S)
        return True

    def _rotate(self) -> None:
        """Moves the full files on by one number. Whoever does not get the lock at once leaves it to who has it."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        if self._at_path() is not None:
            for number in range(self._files - 1, 0, -1):
                older = self._name if number == 1 else f"{self._name}.{number - 1}"
                try:
                    os.replace(older, f"{self._name}.{number}")
                except FileNotFoundError:
                    continue
            if self._files == 1:
                os.unlink(self._name)
        self._close()
        self._open()

    def _give_up(self, error: OSError) -> None:
        self._reason = error.strerror or str(error)
        self._retry_at = time.monotonic() + RETRY_S
        self._close()

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1
