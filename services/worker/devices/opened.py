"""Memory of this process that another process has opened, as a scheduler opens completion frames in device memory.

If that happens after capture, a card replays whole rounds of this process faster, SmolLM2's by 0.04 ms of 0.44, and
goes on so when the other has ended; nobody knows why (docs/log.md). Frames in host memory are opened by nobody, so a
worker that has them lets a child of its own do it once: `python -m services.worker.devices.opened HANDLE`.
"""

from __future__ import annotations

import subprocess
import sys

import msgspec

from shared.cuda_regions import CudaRegion, create_cuda, open_cuda
from shared.errors import RegionError
from shared.messages.common import new_instance
from shared.regions import RegionHandle

_PATIENCE_S = 30.0
"""A context takes a second; many at once on one machine take several."""


def opened_once(handle: RegionHandle) -> None:
    """Another process opens the region and ends. Raises `RegionError` with what it said."""
    command = [sys.executable, "-m", "services.worker.devices.opened", msgspec.json.encode(handle).decode()]
    try:
        subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=_PATIENCE_S)
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip().splitlines()
        raise RegionError(f"another process could not open a region of this one: {said[-1] if said else ''}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RegionError(f"another process could not open a region of this one: {error}") from error


def opened_region() -> CudaRegion:
    """A small region of this process that another has opened. Raises `RegionError`. Close it at the end."""
    region = create_cuda(4096, new_instance())
    try:
        opened_once(region.handle)
    except RegionError:
        region.close()
        raise
    return region


if __name__ == "__main__":
    open_cuda(msgspec.json.decode(sys.argv[1], type=RegionHandle)).close()
