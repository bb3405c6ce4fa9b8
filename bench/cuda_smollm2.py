"""GPU time of a captured SmolLM2 round, forward and logits, on one card: python3 bench/cuda_smollm2.py

Random weights of SmolLM2-135M's geometry: a forward's time depends on no value. Each line is a graph: lanes B, rows W,
position, weights; its nodes, microseconds a replay (median of batches of replays between two events), and the bytes
of weights over the copy bandwidth of this run. `--plain` starts no kernel early.
"""

from __future__ import annotations

import argparse
from functools import partial

import torch

from bench.replays import captured, copy_bandwidth, lanes_at, microseconds, nodes_of
from compose.bench.opened import as_served
from compose.bench.random_core import SMOLLM2_135M
from recipes.components.device_model import DeviceRows
from recipes.smollm2.architecture import Architecture, WeightFormat
from recipes.smollm2.device_target import DeviceTarget
from recipes.smollm2.device_weights import random_device_weights

LANES = 16
PAGES = 128  # of one lane: the whole context


def run(target: DeviceTarget, rows: DeviceRows, told: int) -> None:
    """A round, the first `told` rows of which go through the head."""
    target.logits(target.forward(rows)[:told])


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
    with as_served():
        measure(replace_layers(options.layers), widths, bandwidth)


def measure(architecture: Architecture, widths: list[tuple[int, int, int]], bandwidth: float) -> None:
    """A line for each format and shape: lanes, rows, position."""
    forms: tuple[WeightFormat, ...] = ("float32", "int8")
    for form in forms:
        weights = random_device_weights(architecture, form, torch.device("cuda"), torch.bfloat16)
        target = DeviceTarget(architecture, weights, LANES * PAGES, LANES, 4096)
        for lanes, width, position in widths:
            rows = lanes_at(lanes, width, position, (LANES, PAGES), architecture.vocab_size)
            graph = captured(partial(run, target, rows, lanes * width if width <= 8 else 1))
            nodes, took, bound = nodes_of(graph), microseconds(graph), weights.read_bytes / bandwidth
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
