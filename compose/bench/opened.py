"""Memory of this process that another process has opened, as a scheduler has opened the frames of its worker.

From that moment on a card replays the graphs of this process faster, a quarter of a microsecond a kernel, and goes on
so when the other has ended; nobody knows why (docs/log.md). What is compared with a server must have it too.
`python -m compose.bench.opened HANDLE` is that other process.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from shared.cuda_regions import create_cuda, open_cuda
from shared.errors import ProcessError
from shared.messages.common import new_instance
from shared.regions import RegionHandle

_OPEN = b"open\n"


@contextmanager
def opened(handle: RegionHandle) -> Iterator[None]:
    """Another process has the region open meanwhile. Raises `ProcessError` if it cannot."""
    command = [sys.executable, "-m", "compose.bench.opened", msgspec.json.encode(handle).decode()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        if other.stdout is None or other.stdout.readline() != _OPEN:
            raise ProcessError("another process could not open a region of this one: its error is above")
        yield


@contextmanager
def as_served() -> Iterator[None]:
    """The same for a bench that has no frames: with a small region of its own."""
    region = create_cuda(4096, new_instance())
    try:
        with opened(region.handle):
            yield
    finally:
        region.close()


def main() -> None:
    """Keeps the region open that the command line names, until its input ends."""
    region = open_cuda(msgspec.json.decode(sys.argv[1], type=RegionHandle))
    sys.stdout.buffer.write(_OPEN)
    sys.stdout.flush()
    sys.stdin.read()
    region.close()


if __name__ == "__main__":
    main()
