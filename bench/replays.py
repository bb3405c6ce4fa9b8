"""What the benches of captured rounds have in common: rows to capture, a graph of them, and how long a replay takes."""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import statistics
from collections.abc import Callable

import torch

from compose.bench.floor import bandwidth
from recipes.components.device_model import DeviceRows

COPIED_S = 1.0
BATCHES, REPLAYS, BATCH_US = 7, 40, 60_000
"""Batches of replays between two events; a batch has `REPLAYS`, or fewer if it would take longer than `BATCH_US`."""


def lanes_at(lanes: int, width: int, position: int, pages: tuple[int, int], vocab: int = 1) -> DeviceRows:
    """Full lanes whose first row is at `position`; `pages`: of how many requests, and of each, in random order."""
    source, (requests, each) = torch.Generator().manual_seed(lanes * 100 + width), pages
    tables = torch.randperm(requests * each, generator=source).view(requests, each)[:lanes]
    return DeviceRows(
        tokens=torch.randint(0, vocab, (lanes * width,), generator=source).cuda(),
        slots=torch.arange(lanes).cuda(),
        first=torch.full((lanes,), position).cuda(),
        counts=torch.full((lanes,), width).cuda(),
        tables=tables.int().contiguous().cuda(),
        width=width,
    )


def captured(run: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """A graph of what `run` launches, replayed once."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        run()
    graph.instantiate()
    graph.replay()
    torch.cuda.synchronize()
    return graph


def nodes_of(graph: torch.cuda.CUDAGraph) -> int:
    """Nodes of a `captured` graph."""
    from cuda.bindings import runtime

    _, _, nodes = runtime.cudaGraphGetNodes(graph.raw_cuda_graph())
    return int(nodes)


def microseconds(graph: torch.cuda.CUDAGraph) -> float:
    """GPU time of a replay, as long as replays are queued ahead: the median of batches."""
    count = max(2, min(REPLAYS, int(BATCH_US / _batch(graph, 5))))
    return statistics.median(_batch(graph, count) for _ in range(BATCHES))


def _batch(graph: torch.cuda.CUDAGraph, count: int) -> float:
    def replays() -> None:
        for _ in range(count):
            graph.replay()

    return _between(replays) / count


def copy_bandwidth() -> float:
    """Bytes a microsecond of a large copy, read and written, as a floor measures it (compose/bench/floor.py)."""
    return bandwidth(COPIED_S) * 1e3


def _between(run: Callable[[], object]) -> float:
    """Microseconds of what `run` enqueues, and nothing else."""
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    run()
    stop.record()
    stop.synchronize()
    return float(start.elapsed_time(stop)) * 1000
