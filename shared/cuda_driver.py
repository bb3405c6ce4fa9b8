"""The little that device regions need of the CUDA driver, behind a protocol so that tests can put another in its place.

Runs in the worker and, for reading, in the scheduler; needs `cuda-bindings` and no torch. CUDA is imported on first use
only. Failures keep CUDA's own number and name; `shared/cuda_regions.py` turns them into errors with a remedy.
"""

from __future__ import annotations

import ctypes
from typing import Any, Protocol

from shared.errors import RegionError

SHOW_THE_GPU = "make the GPU visible to both processes (docker: the same --gpus; else CUDA_VISIBLE_DEVICES)"


class CudaFailure(Exception):
    """A driver call failed. `number` and `name` are CUDA's own. Of a region made or read it becomes a `RegionError`."""

    def __init__(self, number: int, name: str) -> None:
        super().__init__(f"CUDA error {number} ({name})")
        self.number, self.name = number, name


class Driver(Protocol):
    """What a region needs of the CUDA driver on one device; each call may raise `CudaFailure`. Sizes are in bytes."""

    @property
    def device_uuid(self) -> str: ...

    def allocate(self, nbytes: int) -> int:
        """Zeroed memory that an IPC handle can name."""
        ...

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
        (pointer,) = self._call("cuMemAlloc", nbytes)
        self._call("cuMemsetD8Async", pointer, 0, nbytes, self._stream)
        self._call("cuStreamSynchronize", self._stream)
        return int(pointer)

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


def visible_gpus() -> int:
    """How many GPUs the driver shows this process; none without a driver. Opens no context on any."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if library.cuInit(0) or library.cuDeviceGetCount(ctypes.byref(count)):
        return 0
    return count.value


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
        devices: dict[str, Any] = {}
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
        raise RegionError(f"no GPU {wanted} among the {count} seen here: {SHOW_THE_GPU}") from error
    return _bound[uuid]
