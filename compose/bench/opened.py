"""Memory of this process that another one has opened, for a bench that has no frames.

A scheduler opens the frames of its worker, and a worker whose frames lie on the host has a child that opens something
else (services/worker/devices/opened.py). What is compared with a server must have it too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from services.worker.devices.opened import opened_region


@contextmanager
def as_served() -> Iterator[None]:
    """There is a region that was opened elsewhere. Raises `RegionError`."""
    region = opened_region()
    try:
        yield
    finally:
        region.close()
