"""Reads a service's log files, the full ones included, and goes on reading what is added. Part of `flare logs`.

Files may be rotated, truncated, removed or made anew at any time; a line counts once its end is there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

_CHUNK = 1 << 20


DEBUG = ".debug.log"
"""How the names of files of debug lines end; they are `shared/log_sinks.py`'s."""


def log_files(folder: Path, *, debug: bool = True) -> dict[str, list[Path]]:
    """The current log files of a folder, by service. One that was just rotated away may lack."""
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("*.log"), key=lambda path: (path.name.endswith(DEBUG), path.name)):
        if path.is_file() and (debug or not path.name.endswith(DEBUG)):
            found.setdefault(path.name.removesuffix(DEBUG).removesuffix(".log"), []).append(path)
    return found


def _rotated(path: Path) -> list[Path]:
    """The full files of a log, youngest first."""
    numbered = [found for found in path.parent.glob(f"{path.name}.*") if found.suffix[1:].isdigit()]
    return sorted(numbered, key=lambda found: int(found.suffix[1:]))


def _identity(file: Path | int) -> tuple[int, int] | None:
    """Which file a path or a descriptor is of, or None if there is none."""
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _changed(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            yield from file
    except OSError:
        return  # rotated away meanwhile


class ServiceLog:
    """One log of a service. `history` once, then `news` again and again. Raises `OSError` if there is no file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._take(FileIO(path))
        self._end = os.fstat(self._file.fileno()).st_size

    def _take(self, file: FileIO) -> None:
        self._file = file
        self._own = _identity(file.fileno())
        self._position = 0
        self._part = b""

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def history(self) -> Iterator[bytes]:
        """All lines until now, oldest first."""
        for path in reversed(_rotated(self._path)):
            if _identity(path) != self._own:
                yield from _lines(path)
        yield from self._read(self._end)

    def news(self) -> Iterator[bytes]:
        """The lines that were added since the last call, across rotations."""
        yield from self._read()
        if _identity(self._path) == self._own:
            return
        try:
            fresh = FileIO(self._path)
        except OSError:
            return  # looked at again in the next call
        yield from self._read()  # what was written before it was rotated, but after the look above
        for path in self._between(_identity(fresh.fileno())):
            yield from _lines(path)
        self._file.close()
        self._take(fresh)
        yield from self._read()

    def _between(self, fresh: tuple[int, int] | None) -> list[Path]:
        """Files that are younger than the one that was read and older than the fresh one, oldest first."""
        found: list[Path] = []
        last = os.fstat(self._file.fileno()).st_mtime_ns
        for path in _rotated(self._path):
            identity = _identity(path)
            if identity == self._own:
                break
            if identity == fresh:
                found.clear()  # it was rotated meanwhile, and what is younger is for the next call
            elif _changed(path) >= last:
                found.append(path)
        return found[::-1]

    def _read(self, end: int | None = None) -> Iterator[bytes]:
        """Whole lines from where reading stopped, up to `end` or to what is there."""
        size = os.fstat(self._file.fileno()).st_size
        if size < self._position:
            self._position, self._part = 0, b""  # truncated
        end = size if end is None else min(end, size)
        while self._position < end:
            data = os.pread(self._file.fileno(), min(_CHUNK, end - self._position), self._position)
            if not data:
                return
            self._position += len(data)
            *lines, self._part = (self._part + data).split(b"\n")
            yield from lines
