"""Memory of this process that another process has opened, as a scheduler opens completion frames in device memory.

If that happens after capture, a card replays whole rounds of this process faster, SmolLM2's by 0.04 ms of 0.44, and
goes on so when the other has ended; nobody knows why (docs/log.md). Frames in host memory are opened by nobody, so a
worker that has them lets a child do it once: `python -m services.worker.devices.opened PARENT HANDLE`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import msgspec
import structlog

from shared.cuda_regions import CudaRegion, create_cuda, open_cuda
from shared.errors import RegionError
from shared.messages.common import new_instance
from shared.parent import end_with
from shared.regions import RegionHandle

_PATIENCE_S = 15.0
"""A context takes a second; many at once on one machine take several."""


def opened_once(handle: RegionHandle) -> None:
    """Another process opens the region and ends. Raises `RegionError` with what it said."""
    data = msgspec.json.encode(handle).decode()
    command = [sys.executable, "-m", "services.worker.devices.opened", str(os.getpid()), data]
    try:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        said = child.communicate(timeout=_PATIENCE_S)[1].strip()
    except subprocess.TimeoutExpired as error:
        child.kill()  # and not waited for: it may hang in the driver
        if child.stderr is not None:
            child.stderr.close()
        raise RegionError(f"another process did not open a region of this one in {_PATIENCE_S:g} s") from error
    except OSError as error:
        raise RegionError(f"another process could not be started to open a region of this one: {error}") from error
    if child.returncode:
        reason = said.splitlines()[-1] if said else f"it ended with {child.returncode}"
        raise RegionError(f"another process could not open a region of this one: {reason}")


def opened_region() -> CudaRegion:
    """A small region of this process that another has opened. Raises `RegionError`. Close it at the end."""
    region = create_cuda(4096, new_instance())
    try:
        opened_once(region.handle)
    except RegionError:
        region.close()
        raise
    return region


def opened_if_possible() -> CudaRegion | None:
    """The same for a worker, whose rounds are right without it too, and which says so in its log."""
    try:
        return opened_region()
    except RegionError as error:
        structlog.get_logger().warning("worker.not_opened", reason=str(error))
        return None


if __name__ == "__main__":
    end_with(int(sys.argv[1]), signal.SIGKILL)
    open_cuda(msgspec.json.decode(sys.argv[2], type=RegionHandle)).close()
