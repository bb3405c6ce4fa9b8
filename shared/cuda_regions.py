"""Device memory that several processes map: plain allocations shared by CUDA IPC handle, and registered host memory.

The worker creates and writes a `CudaRegion`; every other process only reads it, because a foreign write stalls the
worker (architecture.md, section 2). Memory comes from `cuMemAlloc`, never from a caching allocator, whose blocks an IPC
handle cannot name; and nothing here falls back to another kind of memory.
"""

from __future__ import annotations

import ctypes
import mmap

import structlog

from shared.cuda_driver import SHOW_THE_GPU, CudaFailure, Driver, bind
from shared.errors import RegionError
from shared.regions import HEADER_BYTES, PosixRegion, RegionHandle, header, probe

REMEDIES = {
    1: SHOW_THE_GPU,
    201: "the two processes must be different ones and share the PID and IPC namespaces (docker: pid and ipc)",
}


class CudaRegion:
    """A payload in device memory. `refresh` overwrites what an earlier `refresh` of the same bytes returned."""

    def __init__(self, handle: RegionHandle, driver: Driver, base: int, owner: bool) -> None:
        self._handle, self._driver, self._base, self._owner = handle, driver, base, owner
        # The copy is ours alone. Views of it may outlive the region, so it is registered memory and not CUDA's own.
        self._copy = mmap.mmap(-1, handle.nbytes)
        self._address = address_of(memoryview(self._copy))
        self._pinned, self._open = False, True
        try:
            driver.register(self._address, handle.nbytes)
            self._pinned = True
        except CudaFailure as error:
            structlog.get_logger().warning("regions.copy_not_pinned", region=handle.name[:16], error=str(error))

    @property
    def handle(self) -> RegionHandle:
        return self._handle

    @property
    def pointer(self) -> int:
        """Device address of the payload: for the owner's kernels. An opener must not write there."""
        return self._base + HEADER_BYTES

    def refresh(self, offset: int, nbytes: int) -> memoryview:
        if not self._open or offset < 0 or offset + nbytes > self._handle.nbytes:
            raise RegionError(f"region {self._handle.name[:16]} is closed or has no {nbytes} bytes at {offset}")
        try:
            self._driver.read(self._address + offset, self.pointer + offset, nbytes)
        except CudaFailure as error:
            raise RegionError(f"cannot read region {self._handle.name[:16]}: {error}") from error
        return memoryview(self._copy)[offset : offset + nbytes]

    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        try:
            if self._pinned:
                self._driver.unregister(self._address)
            if self._owner:
                self._driver.free(self._base)
            else:
                self._driver.close(self._base)
        except CudaFailure as error:
            raise RegionError(f"cannot close region {self._handle.name[:16]}: {error}") from error


def create_cuda(nbytes: int, instance: int, driver: Driver | None = None) -> CudaRegion:
    """Makes a zeroed region in device memory that this process owns: once, at start. Raises `RegionError`."""
    driver = driver or bind()
    try:
        base = driver.allocate(HEADER_BYTES + nbytes)
        driver.write(base, header(instance, nbytes))
        name = driver.export(base).hex()
    except CudaFailure as error:
        raise RegionError(f"cannot make {nbytes} bytes of shared device memory: {error}") from error
    return CudaRegion(RegionHandle("cuda", name, nbytes, instance, driver.device_uuid), driver, base, owner=True)


def open_cuda(handle: RegionHandle, driver: Driver | None = None) -> CudaRegion:
    """Opens a region of another process and proves it by reading its header. Raises `RegionError` with the remedy."""
    driver = driver or bind(handle.device_uuid)
    try:
        base = driver.open(bytes.fromhex(handle.name))
        try:
            found = bytearray(HEADER_BYTES)
            driver.read(address_of(memoryview(found)), base, HEADER_BYTES)
            probe(bytes(found), handle)
        except (CudaFailure, RegionError):
            driver.close(base)
            raise
    except ValueError as error:
        raise RegionError(f"{handle.name!r} is not a CUDA IPC handle: {error}") from error
    except CudaFailure as error:
        remedy = REMEDIES.get(error.number, "is its owner still alive? A handle does not outlive its owner")
        raise RegionError(f"cannot open the region of instance {handle.instance}: {error}; {remedy}") from error
    return CudaRegion(handle, driver, base, owner=False)


def address_of(view: memoryview) -> int:
    """The host address of a writable buffer, which must outlive its use."""
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


class Registration:
    """Host memory as kernels see it. `pointer` is the device address of the region's payload."""

    def __init__(self, driver: Driver, host: int, pointer: int) -> None:
        self._driver, self._host, self.pointer = driver, host, pointer

    def close(self) -> None:
        """Unregisters; call it before the region closes and after the last graph that reads it. Safe to call twice."""
        if self._host:
            host, self._host = self._host, 0
            self._driver.unregister(host)


def register_host(region: PosixRegion, driver: Driver | None = None) -> Registration:
    """Page-locks a POSIX region and maps it into the device's address space. Raises `RegionError`."""
    driver = driver or bind()
    base = address_of(region.payload) - HEADER_BYTES
    try:
        pointer = driver.register(base, HEADER_BYTES + region.handle.nbytes)
    except CudaFailure as error:
        raise RegionError(f"cannot register region {region.handle.name} with CUDA: {error}") from error
    return Registration(driver, base, pointer + HEADER_BYTES)
