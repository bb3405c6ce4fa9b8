"""Device memory that several processes map: plain allocations shared by CUDA IPC handle, and registered host memory.

The worker creates and writes a `CudaRegion`; every other process only reads it, because a foreign write stalls the
worker (architecture.md, section 2). Memory comes from `cuMemAlloc`, never from a caching allocator, whose blocks an IPC
handle cannot name. CUDA is imported on first use only, and nothing here falls back to another kind of memory.
"""

from __future__ import annotations

import ctypes
import mmap
from typing import Any, Protocol

import structlog

from shared.errors import RegionError
from shared.regions import HEADER_BYTES, PosixRegion, RegionHandle, header, probe

REMEDIES = {
    1: "make the GPU visible to both processes (docker: the same --gpus; else CUDA_VISIBLE_DEVICES)",
    201: "the two processes must be different ones and share the PID and IPC namespaces (docker: pid and ipc)",
}


class CudaFailure(Exception):
    """A driver call failed. `number` and `name` are CUDA's own; callers here turn it into a `RegionError`."""

    def __init__(self, number: int, name: str) -> None:
        super().__init__(f"CUDA error {number} ({name})")
        self.number, self.name = number, name


class Driver(Protocol):
    """What a region needs of the CUDA driver on one device; each call may raise `CudaFailure`. Sizes are in bytes."""

    @property
    def device_uuid(self) -> str: ...

    def allocate(self, nbytes: int) -> int: ...

    def free(self, pointer: int) -> None: ...

    def export(self, pointer: int) -> bytes: ...

    def open(self, handle: bytes) -> int: ...

    def close(self, pointer: int) -> None: ...

    def read(self, host: int, pointer: int, nbytes: int) -> None:
        """Device to host; returns when the bytes are there. Never waits for work of another stream."""
        ...

    def write(self, pointer: int, data: bytes) -> None: ...

    def register(self, host: int, nbytes: int) -> int:
        """Page-locks host memory and returns the address by which kernels reach it."""
        ...

    def unregister(self, host: int) -> None: ...


class _BoundDriver:
    """The driver through `cuda.bindings`, on the primary context that torch uses too."""

    def __init__(self, cuda: Any, device: Any, device_uuid: str) -> None:
        self._cuda, self.device_uuid = cuda, device_uuid
        (self._context,) = _values(cuda, cuda.cuDevicePrimaryCtxRetain(device))
        # Non-blocking: a read must not wait for, nor hold up, the legacy default stream.
        (self._stream,) = self._call("cuStreamCreate", cuda.CUstream_flags.CU_STREAM_NON_BLOCKING)

    def _call(self, name: str, *arguments: Any) -> tuple[Any, ...]:
        # The current context belongs to a thread, and any thread may refresh a region.
        _values(self._cuda, self._cuda.cuCtxSetCurrent(self._context))
        return _values(self._cuda, getattr(self._cuda, name)(*arguments))

    def allocate(self, nbytes: int) -> int:
        return int(self._call("cuMemAlloc", nbytes)[0])

    def free(self, pointer: int) -> None:
        self._call("cuMemFree", pointer)

    def export(self, pointer: int) -> bytes:
        return bytes(self._call("cuIpcGetMemHandle", pointer)[0].reserved)

    def open(self, handle: bytes) -> int:
        wanted = self._cuda.CUipcMemHandle()
        wanted.reserved = handle
        flag = self._cuda.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
        return int(self._call("cuIpcOpenMemHandle", wanted, flag)[0])

    def close(self, pointer: int) -> None:
        self._call("cuIpcCloseMemHandle", pointer)

    def read(self, host: int, pointer: int, nbytes: int) -> None:
        self._call("cuMemcpyDtoHAsync", host, pointer, nbytes, self._stream)
        self._call("cuStreamSynchronize", self._stream)

    def write(self, pointer: int, data: bytes) -> None:
        self._call("cuMemcpyHtoDAsync", pointer, data, len(data), self._stream)
        self._call("cuStreamSynchronize", self._stream)

    def register(self, host: int, nbytes: int) -> int:
        cuda = self._cuda
        flags = cuda.CU_MEMHOSTREGISTER_DEVICEMAP | cuda.CU_MEMHOSTREGISTER_PORTABLE
        self._call("cuMemHostRegister", host, nbytes, flags)
        return int(self._call("cuMemHostGetDevicePointer", host, 0)[0])

    def unregister(self, host: int) -> None:
        self._call("cuMemHostUnregister", host)


def _values(cuda: Any, answer: tuple[Any, ...]) -> tuple[Any, ...]:
    status = int(answer[0])
    if status:
        raise CudaFailure(status, getattr(answer[0], "name", "unknown"))
    return answer[1:]


_bound: dict[str, Driver] = {}


def bind(device_uuid: str = "", ordinal: int = 0) -> Driver:
    """The driver of the device with that UUID, or of device `ordinal`; one for each device of a process.

    Raises `RegionError` without CUDA, and when this process does not see the device.
    """
    if device_uuid in _bound:
        return _bound[device_uuid]
    try:
        from cuda.bindings import driver as cuda

        _values(cuda, cuda.cuInit(0))
        (count,) = _values(cuda, cuda.cuDeviceGetCount())
        devices = {}
        for index in range(count):
            (device,) = _values(cuda, cuda.cuDeviceGet(index))
            devices[bytes(_values(cuda, cuda.cuDeviceGetUuid(device))[0].bytes).hex()] = device
        uuid = device_uuid or list(devices)[ordinal]
        if uuid not in _bound:
            _bound[uuid] = _BoundDriver(cuda, devices[uuid], uuid)
    except ImportError as error:
        raise RegionError(f"device memory needs cuda-bindings (pip install 'flare-server[cuda]'): {error}") from error
    except CudaFailure as error:
        raise RegionError(f"cannot use CUDA here: {error}") from error
    except (KeyError, IndexError) as error:
        wanted = f"with UUID {device_uuid}" if device_uuid else str(ordinal)
        raise RegionError(f"no GPU {wanted} among the {count} seen here: {REMEDIES[1]}") from error
    return _bound[uuid]


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
            raise RegionError(f"region {self._handle.name[:16]} has no bytes {offset} to {offset + nbytes}, or is closed")
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
        driver.write(base, header(instance, nbytes) + bytes(nbytes))
        name = driver.export(base).hex()
    except CudaFailure as error:
        raise RegionError(f"cannot make {nbytes} bytes of shared device memory: {error}") from error
    return CudaRegion(RegionHandle("cuda", name, nbytes, instance, driver.device_uuid), driver, base, owner=True)


def open_cuda(handle: RegionHandle, driver: Driver | None = None) -> CudaRegion:
    """Opens a region of another process and proves it by reading its header. Raises `RegionError` with the remedy."""
    driver = driver or bind(handle.device_uuid)
    base = 0
    try:
        base = driver.open(bytes.fromhex(handle.name))
        found = bytearray(HEADER_BYTES)
        driver.read(address_of(memoryview(found)), base, HEADER_BYTES)
        probe(bytes(found), handle)
    except ValueError as error:
        raise RegionError(f"{handle.name!r} is not a CUDA IPC handle: {error}") from error
    except CudaFailure as error:
        remedy = REMEDIES.get(error.number, "is its owner still alive? A handle does not outlive its owner")
        raise RegionError(f"cannot open the region of instance {handle.instance}: {error}; {remedy}") from error
    except RegionError:
        driver.close(base)
        raise
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
