"""GPU time of captured rounds of the real Qwen3.8-Flash geometry on one card: python3 bench/cuda_qwen38.py

Weights are random, drawn on the card (73 GB; the n-gram table reduced to 20,000 rows a hash head, in the card's
memory). A round here is the target's forward, logits of all rows, and commit of all rows: no sampling of them. With
`--drafter` a second line is the same round with the MTP layer: W - 1 proposals before it, drawn without filters, and
all rows absorbed behind it. Each line is a graph: lanes B, rows W, position; nodes, microseconds a replay, what its
bytes take at the copy bandwidth of this run, and the ratio. Bytes count weights as the checkpoint stores them, experts
by the measured union of the rows' choices, states read and written, keys and values that attention may choose; of the
drafter everything once a depth, its head included. `--kernels` tells which kernels the time of one replay went to:
from the end of the kernel before to its own end.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from types import ModuleType

import torch
from torch import Tensor

from bench.replays import captured, copy_bandwidth, lanes_at, microseconds, nodes_of
from compose.bench.opened import as_served
from compose.bench.traffic import qwen38_drafter, qwen38_target
from recipes.components.device_drafter import DeviceTask
from recipes.components.device_model import DeviceRows
from recipes.components.device_state import DeviceState
from recipes.components.gpu.expert_block import ExpertBlock
from recipes.components.gpu.rows import Placed
from recipes.components.gpu.streams import Injection
from recipes.qwen38 import device_drafter, device_target
from recipes.qwen38.architecture import Architecture
from recipes.qwen38.device_drafter import DeviceMtp, DrafterCounts
from recipes.qwen38.device_target import DeviceTarget
from recipes.qwen38.random_weights import full_architecture, random_weights
from services.worker.devices.compiling import compile_kernels

SLOTS, LONGEST = 4, 65_536
PAGES = SLOTS, LONGEST // 64
LISTED = 32
"""Kernels of a replay, of the largest part of its time."""


def rows_at(a: Architecture, lanes: int, width: int, position: int) -> DeviceRows:
    """Lanes at `position`, each table as wide as for the longest request."""
    return lanes_at(lanes, width, position, PAGES, a.vocab_size)


@dataclass(frozen=True, slots=True)
class Bench:
    """The model of one run."""

    a: Architecture
    target: DeviceTarget
    drafter: DeviceMtp | None
    state: DeviceState
    """Requests with neutral sampling values."""

    def plain(self, rows: DeviceRows) -> Callable[[], None]:
        """A round of the target."""

        def run() -> None:
            self.target.logits(self.target.forward(rows))
            self.target.commit(rows, rows.counts)

        return run

    def drafted(self, rows: DeviceRows) -> Callable[[], None]:
        """The same with proposals and absorbing."""
        drafter, task = self.drafter, self._task(rows)
        assert drafter is not None

        def run() -> None:
            if rows.width > 1:
                drafter.propose(task)
            vectors = self.target.forward(rows)
            self.target.logits(vectors)
            self.target.commit(rows, rows.counts)
            drafter.absorb(rows, vectors, rows.counts)

        return run

    def rounds(self, rows: DeviceRows) -> list[Callable[[], None]]:
        """Without a drafter, and with it if there is one."""
        return [self.plain(rows), *([self.drafted(rows)] if self.drafter is not None else [])]

    def _task(self, rows: DeviceRows) -> DeviceTask:
        """As many drafts as the rows hold."""
        draws = torch.rand(len(rows.slots), rows.width - 1, device="cuda")
        pending = rows.tokens[:: rows.width].contiguous()
        limits = rows.counts - 1
        return DeviceTask(rows.slots, rows.slots, rows.first, pending, limits, rows.tables, draws, self.state)


def bench_of(drafted: bool) -> Bench:
    """Random weights, and state for the longest context."""
    a, counts = full_architecture(), DrafterCounts(SLOTS, snapshots=0, pages=prod(PAGES))
    weights, own = random_weights(a, torch.device("cuda"), torch.bfloat16, seed=1, drafter=drafted)
    target = DeviceTarget(a, weights, SLOTS, counts.snapshots, counts.pages, positions=LONGEST)
    drafter = None if own is None else DeviceMtp(a, own, target.sparse, counts, target.faults)
    return Bench(a, target, drafter, DeviceState(SLOTS, a.vocab_size, a.streams_width, torch.device("cuda")))


@contextmanager
def counted(module: ModuleType) -> Iterator[list[int]]:
    """Different experts that the rows of each block choose, of those that `module` runs inside."""
    found: list[int] = []
    original = vars(module)["experts_of"]

    def counting(experts: ExpertBlock, placed: Placed, x: Tensor, into: Injection) -> None:
        best = (x.float() @ experts.router[: experts.routed.count].float().T).topk(experts.routed.top).indices
        found.append(int(torch.bincount(best.flatten()).count_nonzero()))
        original(experts, placed, x, into)

    vars(module)["experts_of"] = counting
    try:
        yield found
    finally:
        vars(module)["experts_of"] = original


def kernel_times(graph: torch.cuda.CUDAGraph) -> list[tuple[float, int, str]]:
    """(microseconds, launches, kernel) of one replay, the largest first."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        graph.replay()
        torch.cuda.synchronize()
    events = [event for event in profiler.events() if str(event.device_type).endswith("CUDA")]
    events.sort(key=lambda event: event.time_range.end)
    spent: dict[str, list[float]] = defaultdict(lambda: [0.0, 0])
    before = events[0].time_range.start
    for event in events:
        spent[event.name][0] += event.time_range.end - before
        spent[event.name][1] += 1
        before = event.time_range.end
    return sorted(((took, int(count), name) for name, (took, count) in spent.items()), reverse=True)


def measure(bench: Bench, rows: DeviceRows, position: int, bandwidth: float, listed: bool) -> None:
    """The lines of one shape and position."""
    a, lanes, width = bench.a, len(rows.slots), rows.width
    rounds = bench.rounds(rows)
    with counted(device_target) as chosen, counted(device_drafter) as drafted:
        rounds[-1]()
    union = sum(chosen)
    bound = qwen38_target(a, lanes, position, union) / bandwidth
    about = f"{union / a.num_hidden_layers:.0f} experts a layer"
    alone = told(f"B {lanes} W {width} at {position:6}", captured(rounds[0]), bound, about, listed)
    if len(rounds) > 1:
        own = qwen38_drafter(a, lanes, position, width - 1, sum(drafted)) / bandwidth
        about = f"{own:.0f} of it the drafter's, {alone:.0f} us without it"
        told("        with drafts", captured(rounds[1]), bound + own, about, listed)


def told(name: str, graph: torch.cuda.CUDAGraph, bound: float, about: str, listed: bool) -> float:
    """The line of one graph, and its kernels if they are to be `listed`; microseconds of a replay."""
    took = microseconds(graph)
    print(
        f"{name}: {nodes_of(graph):5} nodes {took:8.0f} us, bound {bound:6.0f}, ratio {took / bound:5.2f} ({about})",
        flush=True,
    )
    for spent, count, kernel in kernel_times(graph)[:LISTED] if listed else ():
        print(f"    {spent:8.1f} us {count:5} x {spent / count:6.2f} {kernel[:100]}", flush=True)
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usual = ",".join([*(f"1x{width}" for width in range(1, 9)), "2x1", "4x1", "4x8"])
    parser.add_argument("--shapes", default=usual, help="lanes x rows, comma-separated")
    parser.add_argument("--positions", default="4096", help="of the first row, comma-separated")
    parser.add_argument("--drafter", action="store_true", help="rounds with the MTP layer beside those without")
    parser.add_argument("--kernels", default="", help="shapes of which to list kernels, as in --shapes")
    options = parser.parse_args()
    bandwidth, started = copy_bandwidth(), time.monotonic()
    bench = bench_of(options.drafter)
    torch.cuda.synchronize()
    made = time.monotonic()
    shapes = [(lanes, width) for lanes, width in (map(int, one.split("x")) for one in options.shapes.split(","))]
    positions = list(map(int, options.positions.split(",")))
    rows = {(*size, place): rows_at(bench.a, *size, place) for size in shapes for place in positions}
    compile_kernels([run for own in rows.values() for run in bench.rounds(own)])
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, copy {bandwidth / 1e6:.2f} TB/s; "
        f"{torch.cuda.memory_allocated() / 1e9:.1f} GB made in {made - started:.0f} s, kernels in "
        f"{time.monotonic() - made:.0f}",
        flush=True,
    )
    listed = options.kernels.split(",")
    with as_served():
        for (lanes, width, place), own in rows.items():
            measure(bench, own, place, bandwidth, f"{lanes}x{width}" in listed)


if __name__ == "__main__":
    main()
