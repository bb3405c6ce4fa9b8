"""The GPU as a device: CUDA graphs that hold whole rounds, and the frames that they read and write.

Runs in the worker's launch thread. Plan frames are shared memory registered with CUDA, completion frames plain device
memory exported by IPC handle (or registered host memory, `--frames host`). After capture a round costs the host one
launch and one event; nothing is allocated, compiled or captured again.
"""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from services.worker.devices.catalog import Ends, Round
from services.worker.devices.foreign import bytes_at
from services.worker.devices.plan import Fetch
from shared.cuda_driver import Driver, bind
from shared.cuda_regions import CudaRegion, Registration, create_cuda, register_host
from shared.errors import ContractBreach
from shared.frames import FRAMES, Layout
from shared.regions import PosixRegion

_BLOCK = 512
IN_FLIGHT = 4
"""Rounds whose ends are remembered; two are ever queued."""


@dataclass(frozen=True, slots=True)
class HostFetch:
    """The fetch of a plan frame from registered host memory at `host`: tail, body, head, in this order."""

    host: int
    words: int
    tail: int

    def __call__(self, counter: Tensor, taken: Tensor, stop: int) -> None:
        from services.worker.devices.frame_kernels import fetch_body, fetch_word

        fetch_word[(1,)](self.host, counter, taken, self.tail, self.words, num_warps=1)
        fetch_body[(-(-stop // _BLOCK),)](self.host, counter, taken, stop, self.tail, self.words, _BLOCK, num_warps=4)
        fetch_word[(1,)](self.host, counter, taken, 0, self.words, num_warps=1)


class CudaFrames:
    """`services.worker.devices.catalog.Frames` on the current GPU. `close` it after the last round."""

    def __init__(
        self,
        layouts: tuple[Layout, Layout],
        plans: PosixRegion,
        instance: int,
        mirror: PosixRegion | None = None,
        driver: Driver | None = None,
    ) -> None:
        self._driver = driver or bind()
        plan_layout, completion_layout = layouts
        torch.cuda.init()
        self.stream = torch.cuda.Stream()
        self._mirror = mirror
        self._registered = [register_host(region, self._driver) for region in (plans, mirror) if region is not None]
        nbytes = FRAMES * completion_layout.nbytes
        self.region: CudaRegion | None = create_cuda(nbytes, instance, self._driver) if mirror is None else None
        pointer = self.region.pointer if self.region is not None else self._registered[1].pointer
        self._completions = bytes_at(pointer, nbytes).view(torch.int64).view(FRAMES, -1)
        words, tail = plan_layout.nbytes // 8, plan_layout.offset_of("tail") // 8
        self._fetch = HostFetch(self._registered[0].pointer, words, tail)
        self._pool: Any = None
        self._graphs: list[Any] = []
        self._executables: list[Any] = []
        self._launch = _launcher(self.stream.cuda_stream)
        self._ends = CudaEnds(self.stream)
        self.nodes: list[int] = []
        """Nodes of every captured graph, in the order of capture."""

    @property
    def completions(self) -> Tensor:
        """The two completion frames, wherever they lie."""
        return self._completions

    def read_completions(self, offset: int, nbytes: int) -> memoryview:
        """Bytes of both completion frames as they are now, whatever runs; the next call overwrites them."""
        if self._mirror is not None:
            return self._mirror.payload[offset : offset + nbytes]
        if self.region is None:
            raise ContractBreach("a device has its completion frames in device memory or on the host")
        return self.region.refresh(offset, nbytes)

    @property
    def fetch(self) -> Fetch:
        """Copies a plan frame out of host memory."""
        return self._fetch

    @property
    def ends(self) -> Ends:
        """Events around each launch."""
        return self._ends

    def run(self, rounds: Callable[[], object]) -> None:
        """Does `rounds` once on the rounds' stream, and waits."""
        self.stream.wait_stream(torch.cuda.default_stream())
        with torch.cuda.stream(self.stream):
            rounds()
        self.stream.synchronize()

    def compile(self, rounds: Sequence[Round]) -> None:
        """Compiles what `rounds` launch, side by side."""
        from services.worker.devices.compiling import compile_kernels

        self.run(lambda: compile_kernels(rounds))

    def capture(self, rounds: Round) -> Round:
        """A CUDA graph of `rounds`. All graphs share one pool: only one of them ever runs."""
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        with torch.cuda.graph(graph, pool=self._pool, stream=self.stream, capture_error_mode="thread_local"):
            rounds()
        self._pool = self._pool or graph.pool()
        self._graphs.append(graph)
        nodes, executable = _instantiate(graph.raw_cuda_graph(), self.stream.cuda_stream)
        self.nodes.append(nodes)
        self._executables.append(executable)
        return lambda: self._launch(executable)

    def close(self) -> None:
        """Gives everything back, registrations before the memory they name."""
        torch.cuda.synchronize()
        for executable in self._executables:
            _destroy(executable)
        self._executables.clear()
        self._graphs.clear()
        registered: list[Registration] = self._registered
        for registration in registered:
            registration.close()
        if self.region is not None:
            self.region.close()


def _check(status: Any) -> None:
    if int(status):
        raise ContractBreach(f"a CUDA call of a captured round failed: {status}")


def _launcher(stream: int) -> Callable[[Any], None]:
    """What launches an executable graph on `stream`."""
    from cuda.bindings import driver as cuda

    handle, launch = cuda.CUstream(stream), cuda.cuGraphLaunch

    def call(executable: Any) -> None:
        _check(launch(executable, handle)[0])

    return call


def _instantiate(graph: int, stream: int) -> tuple[int, Any]:
    """Nodes of a captured graph, and its executable form, uploaded so that its first launch costs what others do."""
    from cuda.bindings import driver as cuda

    captured = cuda.CUgraph(graph)
    status, _, count = cuda.cuGraphGetNodes(captured)
    _check(status)
    status, executable = cuda.cuGraphInstantiate(captured, 0)
    _check(status)
    _check(cuda.cuGraphUpload(executable, cuda.CUstream(stream))[0])
    return int(count), executable


def _destroy(executable: Any) -> None:
    from cuda.bindings import driver as cuda

    _check(cuda.cuGraphExecDestroy(executable)[0])


class CudaEnds:
    """`services.worker.devices.catalog.Ends` by CUDA events around each launch."""

    depth = IN_FLIGHT

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream
        self._begun, self._ended = ([torch.cuda.Event(enable_timing=True) for _ in range(IN_FLIGHT)] for _ in range(2))
        self._first = True

    def begin(self, sequence: int) -> None:
        """Marks where the round will begin: behind the one before."""
        self._begun[sequence % IN_FLIGHT].record(self._stream)

    def end(self, sequence: int) -> None:
        """Marks where it ends."""
        self._ended[sequence % IN_FLIGHT].record(self._stream)

    def over(self, sequence: int) -> bool:
        """Whether the round is over."""
        return bool(self._ended[sequence % IN_FLIGHT].query())

    def wait(self, sequence: int) -> None:
        """Returns when the round is over; the interpreter's lock is free meanwhile."""
        self._ended[sequence % IN_FLIGHT].synchronize()

    def device_ns(self, sequence: int) -> tuple[int, int]:
        """Time from mark to mark, and from the end of the round before; none before the first."""
        here, before = sequence % IN_FLIGHT, (sequence - 1) % IN_FLIGHT
        took = self._begun[here].elapsed_time(self._ended[here])
        idle = 0.0 if self._first else self._ended[before].elapsed_time(self._begun[here])
        self._first = False
        return int(took * 1e6), int(max(idle, 0.0) * 1e6)
