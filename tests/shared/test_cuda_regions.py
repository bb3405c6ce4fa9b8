"""CUDA IPC regions over a driver that lives in host memory: probing, remedies, lifetimes (cases.md, B65)."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from shared import regions
from shared.cuda_driver import CudaFailure
from shared.cuda_regions import address_of, create_cuda, open_cuda, register_host
from shared.errors import RegionError
from shared.manifest import ABI

INSTANCE = 0x5EED


class HostDriver:
    """Device memory is host memory, a handle is its address; `failures` names calls that fail and how."""

    def __init__(self, **failures: CudaFailure) -> None:
        self.failures = failures
        self.live: dict[int, bytearray] = {}
        self.opened: list[int] = []
        self.registered: list[int] = []

    @property
    def device_uuid(self) -> str:
        return "ab" * 16

    def _may_fail(self, call: str) -> None:
        if call in self.failures:
            raise self.failures[call]

    def allocate(self, nbytes: int) -> int:
        self._may_fail("allocate")
        memory = bytearray(nbytes)
        pointer = address_of(memoryview(memory))
        self.live[pointer] = memory
        return pointer

    def free(self, pointer: int) -> None:
        del self.live[pointer]

    def export(self, pointer: int) -> bytes:
        return pointer.to_bytes(64, "little")

    def open(self, handle: bytes) -> int:
        self._may_fail("open")
        pointer = int.from_bytes(handle, "little")
        if pointer not in self.live:
            raise CudaFailure(400, "CUDA_ERROR_INVALID_HANDLE")
        self.opened.append(pointer)
        return pointer

    def close(self, pointer: int) -> None:
        self.opened.remove(pointer)

    def read(self, host: int, pointer: int, nbytes: int) -> None:
        self._may_fail("read")
        ctypes.memmove(host, pointer, nbytes)

    def write(self, pointer: int, data: bytes) -> None:
        ctypes.memmove(pointer, data, len(data))

    def register(self, host: int, nbytes: int) -> int:
        self._may_fail("register")
        self.registered.append(host)
        return host

    def unregister(self, host: int) -> None:
        self.registered.remove(host)


def test_an_opener_reads_what_the_owner_wrote_and_both_can_close_twice() -> None:
    driver = HostDriver()
    owner = create_cuda(256, INSTANCE, driver)
    opener = open_cuda(owner.handle, driver)
    driver.write(owner.pointer + 8, b"tokens")
    assert bytes(opener.refresh(8, 6)) == b"tokens"
    assert bytes(opener.refresh(0, 8)) == bytes(8)
    for region in (opener, opener, owner, owner):
        region.close()
    assert not driver.live
    assert not driver.opened
    assert not driver.registered
    with pytest.raises(RegionError, match="is closed"):
        opener.refresh(0, 8)


def test_a_view_is_a_private_copy_until_the_next_refresh_and_outlives_the_region() -> None:
    driver = HostDriver()
    region = create_cuda(64, INSTANCE, driver)
    view = region.refresh(0, 8)
    driver.write(region.pointer, b"new data")
    assert bytes(view) == bytes(8)
    region.refresh(0, 8)
    region.close()
    assert bytes(view) == b"new data"


@pytest.mark.parametrize(("offset", "nbytes"), [(0, 65), (64, 1), (-8, 8)])
def test_bytes_outside_the_payload_are_refused(offset: int, nbytes: int) -> None:
    region = create_cuda(64, INSTANCE, HostDriver())
    with pytest.raises(RegionError, match=f"{nbytes} bytes at {offset}"):
        region.refresh(offset, nbytes)


@pytest.mark.timeout(10)
@pytest.mark.parametrize(
    ("number", "name", "remedy"),
    [
        (201, "CUDA_ERROR_INVALID_CONTEXT", "share the PID and IPC namespaces"),
        (1, "CUDA_ERROR_INVALID_VALUE", "make the GPU visible to both"),
        (217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "is its owner still alive"),
        (999, "CUDA_ERROR_UNKNOWN", "is its owner still alive"),
    ],
)
@pytest.mark.parametrize("call", ["open", "read"])
def test_a_failed_probe_names_number_name_and_remedy(call: str, number: int, name: str, remedy: str) -> None:
    driver = HostDriver()
    handle = create_cuda(64, INSTANCE, driver).handle
    driver.failures[call] = CudaFailure(number, name)
    with pytest.raises(RegionError, match=remedy) as caught:
        open_cuda(handle, driver)
    assert f"CUDA error {number} ({name})" in str(caught.value)
    assert not driver.opened


def test_a_handle_that_outlived_its_owner_is_refused() -> None:
    driver = HostDriver()
    owner = create_cuda(64, INSTANCE, driver)
    owner.close()
    with pytest.raises(RegionError, match="CUDA_ERROR_INVALID_HANDLE"):
        open_cuda(owner.handle, driver)


def test_memory_that_was_used_again_fails_the_probe_and_is_closed() -> None:
    driver = HostDriver()
    handle = create_cuda(64, INSTANCE, driver).handle
    driver.write(int.from_bytes(bytes.fromhex(handle.name), "little"), regions.header(INSTANCE + 1, 64))
    with pytest.raises(RegionError, match="stale handle"):
        open_cuda(handle, driver)
    assert not driver.opened


def test_handles_of_another_abi_or_form_are_refused() -> None:
    driver = HostDriver()
    handle = create_cuda(64, INSTANCE, driver).handle
    with pytest.raises(RegionError, match="services of one version"):
        open_cuda(regions.RegionHandle("cuda", handle.name, 64, INSTANCE, abi=ABI + 1), driver)
    with pytest.raises(RegionError, match="not a CUDA IPC handle"):
        open_cuda(regions.RegionHandle("cuda", "no hex", 64, INSTANCE), driver)


def test_a_refusal_to_allocate_is_a_region_error_with_its_number() -> None:
    with pytest.raises(RegionError, match=r"CUDA error 2 \(CUDA_ERROR_OUT_OF_MEMORY\)"):
        create_cuda(64, INSTANCE, HostDriver(allocate=CudaFailure(2, "CUDA_ERROR_OUT_OF_MEMORY")))


def test_a_copy_that_cannot_be_pinned_still_reads() -> None:
    driver = HostDriver(register=CudaFailure(712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"))
    region = create_cuda(64, INSTANCE, driver)
    driver.write(region.pointer, b"x")
    assert bytes(region.refresh(0, 1)) == b"x"
    region.close()


def test_registered_host_memory_is_the_payload_and_lets_go(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FLARE_SHM_DIR", str(tmp_path))
    driver = HostDriver()
    region = regions.create("plans", 128, INSTANCE)
    registration = register_host(region, driver)
    ctypes.memmove(registration.pointer, b"plan", 4)
    assert bytes(region.payload[:4]) == b"plan"
    registration.close()
    registration.close()
    assert not driver.registered
    region.close()
    refusing = HostDriver(register=CudaFailure(801, "CUDA_ERROR_NOT_SUPPORTED"))
    region = regions.create("plans", 128, INSTANCE)
    with pytest.raises(RegionError, match=r"register region .* CUDA error 801"):
        register_host(region, refusing)
    region.close()


def test_a_machine_without_cuda_bindings_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    handle = regions.RegionHandle("cuda", "00" * 64, 64, INSTANCE, device_uuid="cd" * 16)
    with pytest.raises(RegionError, match=r"flare-server\[cuda\]"):
        regions.open_region(handle)


def test_importing_the_module_imports_no_cuda() -> None:
    code = "import sys, shared.cuda_regions; sys.exit(any(n.split('.')[0] in ('cuda', 'torch') for n in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
