"""GPU time of a captured SmolLM2 round, forward and logits, on one card: python3 bench/cuda_smollm2.py

Random weights of SmolLM2-135M's geometry: a forward's time depends on no value. Each line is a graph: lanes B, rows W,
position, weights; its nodes, microseconds a replay (median of batches of replays between two events), and the bytes
of weights over the copy bandwidth of this run. `--plain` starts no kernel early.
"""

from __future__ import annotations

import argparse
import statistics

import torch

from compose.bench.random_core import SMOLLM2_135M
from recipes.components.device_model import DeviceRows
from recipes.smollm2.architecture import Architecture, WeightFormat
from recipes.smollm2.device_target import DeviceTarget
from recipes.smollm2.device_weights import random_device_weights

LANES = 16
PAGES = 128  # of one lane: the whole context
BATCHES, REPLAYS = 7, 40


def rows_at(lanes: int, width: int, position: int) -> DeviceRows:
    """Lanes whose first row is at `position`, pages in random order."""
    source = torch.Generator().manual_seed(lanes * 100 + width)
    tables = torch.randperm(LANES * PAGES, generator=source).view(LANES, PAGES)[:lanes]
    return DeviceRows(
        tokens=torch.randint(0, SMOLLM2_135M.vocab_size, (lanes * width,), generator=source).cuda(),
        slots=torch.arange(lanes).cuda(),
        first=torch.full((lanes,), position).cuda(),
        counts=torch.full((lanes,), width).cuda(),
        tables=tables.int().contiguous().cuda(),
        width=width,
    )


def captured(target: DeviceTarget, rows: DeviceRows, logits: int) -> tuple[torch.cuda.CUDAGraph, int]:
    """A graph of one round with `logits` rows through the head, and its nodes."""
    from cuda.bindings import runtime

    def once() -> None:
        target.logits(target.forward(rows)[:logits])

    once()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        once()
    _, _, nodes = runtime.cudaGraphGetNodes(graph.raw_cuda_graph())
    graph.instantiate()
    return graph, nodes


def microseconds(graph: torch.cuda.CUDAGraph) -> float:
    """GPU time of a replay, as long as replays are queued ahead."""
    for _ in range(5):
        graph.replay()
    found = []
    for _ in range(BATCHES):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(REPLAYS):
            graph.replay()
        stop.record()
        stop.synchronize()
        found.append(start.elapsed_time(stop) * 1000 / REPLAYS)
    return statistics.median(found)


def copy_bandwidth() -> float:
    """Bytes a microsecond of a large copy, read and written."""
    source = torch.randn(1 << 29, device="cuda")
    target = torch.empty_like(source)
    target.copy_(source)
    found = []
    for _ in range(5):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        target.copy_(source)
        stop.record()
        stop.synchronize()
        found.append(2 * source.nbytes / (start.elapsed_time(stop) * 1000))
    return statistics.median(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=SMOLLM2_135M.layers)
    parser.add_argument("--plain", action="store_true", help="start no kernel before the one before it has ended")
    parser.add_argument("--quick", action="store_true", help="only W = 1")
    options = parser.parse_args()
    if options.plain:
        import recipes.components.gpu.attention
        import recipes.components.gpu.linear
        import recipes.components.gpu.rows

        for module in (recipes.components.gpu.attention, recipes.components.gpu.linear, recipes.components.gpu.rows):
            module.chained = lambda tensor: False  # type: ignore[attr-defined]
    bandwidth = copy_bandwidth()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, copy {bandwidth / 1e6:.2f} TB/s")
    print(f"{'weights':8} {'B':>3} {'W':>4} {'at':>5} {'nodes':>6} {'us':>8} {'bound':>7} {'ratio':>6} {'tok/s':>8}")
    widths = [(lanes, 1, 384) for lanes in (1, 2, 4, 8, 16)]
    if not options.quick:
        widths += [(1, width, 384) for width in range(2, 9)] + [(4, 8, 384), (16, 8, 384)]
        widths += [(1, 1, 127), (1, 1, 4096), (16, 1, 4096), (1, 512, 0), (1, 4096, 0)]
    architecture = replace_layers(options.layers)
    forms: tuple[WeightFormat, ...] = ("float32", "int8")
    for form in forms:
        weights = random_device_weights(architecture, form, torch.device("cuda"), torch.bfloat16)
        target = DeviceTarget(architecture, weights, LANES * PAGES, LANES, 4096)
        for lanes, width, position in widths:
            rows = rows_at(lanes, width, position)
            graph, nodes = captured(target, rows, lanes * width if width <= 8 else 1)
            took, bound = microseconds(graph), weights.read_bytes / bandwidth
            print(
                f"{'bf16' if form == 'float32' else form:8} {lanes:3} {width:4} {position:5} {nodes:6} {took:8.1f}"
                f" {bound:7.1f} {took / bound:6.2f} {lanes * 1e6 / took:8.0f}",
                flush=True,
            )
            del graph


def replace_layers(layers: int) -> Architecture:
    """The geometry with so many layers."""
    import msgspec

    return msgspec.structs.replace(SMOLLM2_135M, layers=layers)


if __name__ == "__main__":
    main()
