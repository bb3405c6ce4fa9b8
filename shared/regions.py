"""Memory that several processes map: POSIX shared memory here, CUDA IPC in `shared/cuda_regions.py`, one interface.

A region opens with a 64-byte header whose pattern each opener probes. Its file name carries instance and owner pid, and
its owner holds a lock on the file for as long as it lives: so leftovers of dead owners are told from live regions even
when a pid was used again, and only the former are removed.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import time
from pathlib import Path
from typing import Literal, Protocol

import msgspec
import structlog

from shared.errors import RegionError
from shared.manifest import ABI

HEADER_BYTES = 64
_MAGIC = b"flare-rg"
_PREFIX = "flare-"
_MAKING_GRACE_S = 60.0


class RegionHandle(msgspec.Struct, frozen=True):
    """What travels in a handshake: enough to open, probe and refuse. `nbytes` counts the payload."""

    kind: Literal["posix", "cuda"]
    name: str
    """File name below the shared-memory directory; for CUDA the hexadecimal IPC handle."""
    nbytes: int
    instance: int
    device_uuid: str = ""
    abi: int = ABI


class Region(Protocol):
    """A payload of `handle.nbytes` bytes."""

    @property
    def handle(self) -> RegionHandle: ...

    def refresh(self, offset: int, nbytes: int) -> memoryview:
        """The bytes as they are now: the live mapping of host memory, or a fresh host copy of device memory.

        The same bytes always lie at the same place, so what an earlier call returned shows them too.
        """
        ...

    def close(self) -> None:
        """Unmaps; the owner also removes it. Safe to call twice."""
        ...


def directory() -> Path:
    """Where shared-memory files lie: FLARE_SHM_DIR, else /dev/shm."""
    return Path(os.environ.get("FLARE_SHM_DIR", "/dev/shm"))


def header(instance: int, nbytes: int) -> bytes:
    """The 64 bytes that open a region: magic, ABI, instance, size, and their complement as the probe pattern."""
    plain = _MAGIC + ABI.to_bytes(8, "little") + instance.to_bytes(8, "little") + nbytes.to_bytes(8, "little")
    return plain + bytes(byte ^ 0xFF for byte in plain)


def probe(found: bytes, handle: RegionHandle) -> None:
    """Compares what an opener reads with what the handle promises. Raises `RegionError`."""
    if handle.abi != ABI:
        raise RegionError(f"region {handle.name} is of ABI {handle.abi}, not {ABI}: run services of one version")
    if found != header(handle.instance, handle.nbytes):
        raise RegionError(
            f"region {handle.name} does not hold the pattern of instance {handle.instance}: stale handle?"
        )


class PosixRegion:
    """A shared-memory file, mapped read-write by owner and openers."""

    def __init__(self, handle: RegionHandle, descriptor: int, owner: bool) -> None:
        self._handle = handle
        self._descriptor = descriptor
        self._owner = owner
        self._map = mmap.mmap(descriptor, HEADER_BYTES + handle.nbytes)
        self._open = True

    @property
    def handle(self) -> RegionHandle:
        return self._handle

    @property
    def payload(self) -> memoryview:
        """The live payload, writable."""
        return memoryview(self._map)[HEADER_BYTES:]

    def refresh(self, offset: int, nbytes: int) -> memoryview:
        return self.payload[offset : offset + nbytes]

    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        if self._owner:
            (directory() / self._handle.name).unlink(missing_ok=True)
        os.close(self._descriptor)
        try:
            self._map.close()
        except BufferError:
            # Views are still alive somewhere; the mapping goes with the process.
            pass


def create(purpose: str, nbytes: int, instance: int) -> PosixRegion:
    """Makes a zeroed region that this process owns. `purpose` is part of its name. Raises `RegionError`."""
    name = f"{_PREFIX}{instance:x}-{os.getpid()}-{purpose}"
    path, making = directory() / name, directory() / f"{name}.making"
    try:
        descriptor = os.open(making, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.posix_fallocate(descriptor, 0, HEADER_BYTES + nbytes)
        os.pwrite(descriptor, header(instance, nbytes), 0)
        making.rename(path)
    except OSError as error:
        making.unlink(missing_ok=True)
        raise RegionError(
            f"cannot make {nbytes} bytes of shared memory in {directory()}: {error.strerror}; "
            "enlarge that tmpfs (docker: shm_size) or point FLARE_SHM_DIR at another"
        ) from error
    return PosixRegion(RegionHandle("posix", name, nbytes, instance), descriptor, owner=True)


def open_region(handle: RegionHandle) -> Region:
    """Opens and probes a region of another process. Raises `RegionError` with the remedy."""
    if handle.kind == "cuda":
        from shared.cuda_regions import open_cuda

        return open_cuda(handle)
    if "/" in handle.name or not handle.name.startswith(_PREFIX):
        raise RegionError(f"{handle.name!r} is not the name of a region")
    path = directory() / handle.name
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise RegionError(
            f"cannot open region {path}: {error.strerror}; the services must share one shared-memory folder and uid"
        ) from error
    if os.fstat(descriptor).st_size < HEADER_BYTES + handle.nbytes:
        os.close(descriptor)
        raise RegionError(f"region {path} is smaller than its handle says")
    region = PosixRegion(handle, descriptor, owner=False)
    probe(os.pread(descriptor, HEADER_BYTES, 0), handle)
    return region


def sweep() -> tuple[str, ...]:
    """Removes regions whose owner is dead and returns their names. A live owner's are never touched."""
    removed = []
    for path in sorted(directory().glob(f"{_PREFIX}*")):
        try:
            fresh = path.suffix == ".making" and time.time() - path.stat().st_mtime < _MAKING_GRACE_S
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue  # gone meanwhile, or another user's
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not fresh:
                path.unlink(missing_ok=True)
                removed.append(path.name)
        except OSError:
            pass  # its owner lives
        finally:
            os.close(descriptor)
    if removed:
        structlog.get_logger().info("regions.swept", names=removed)
    return tuple(removed)
