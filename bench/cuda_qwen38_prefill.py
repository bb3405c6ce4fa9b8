"""GPU time of prompt chunks of the real Qwen3.8-Flash geometry on one card: python3 bench/cuda_qwen38_prefill.py

Random weights of four layers and of eight, three gated delta nets and one sparse attention in each four, every expert
as likely as the others: what the second four take, twelve times, with what is outside of them, is the whole model. Each
line is a chunk of W rows behind a position: milliseconds of the whole model (a captured forward, logits of the last
row, and commit), tokens/s, and what the arithmetic alone takes at this run's matrix rate. `--live` rows of a chunk are
tokens, as behind a cached prefix, and the others are masked. `--kernels` tells which kernels the eight layers' time
went to, largest first: from the end of the kernel before to its own end.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace

import msgspec
import torch

from bench.cuda_qwen38 import kernel_times, rows_at
from bench.replays import captured, microseconds
from compose.bench.opened import as_served
from recipes.components.device_model import DeviceRows
from recipes.qwen38.architecture import Architecture
from recipes.qwen38.device_target import DeviceTarget
from recipes.qwen38.random_weights import full_architecture, random_weights

PERIOD, PERIODS = 4, 12
SLOTS, LONGEST = 4, 65_536


def layers_of(periods: int) -> Architecture:
    """The real geometry with fewer layers."""
    whole = full_architecture()
    count = periods * PERIOD
    return msgspec.structs.replace(whole, num_hidden_layers=count, layer_types=whole.layer_types[:count])


def target_of(periods: int) -> DeviceTarget:
    """That many layers, and state for the longest context."""
    a = layers_of(periods)
    weights, _ = random_weights(a, torch.device("cuda"), torch.bfloat16, seed=1, drafter=False)
    return DeviceTarget(a, weights, SLOTS, snapshots=0, pages=SLOTS * (LONGEST // 64), positions=LONGEST)


def milliseconds(graph: torch.cuda.CUDAGraph) -> float:
    """Median time of a replay."""
    return microseconds(graph) / 1000


def matrix_rate() -> float:
    """Floating-point operations a millisecond of a bfloat16 product of random matrices."""
    left, right = torch.randn(2, 8192, 8192, device="cuda").bfloat16().unbind()
    return 2 * 8192**3 / milliseconds(captured(lambda: left @ right))


def operations(a: Architecture, width: int, position: int) -> float:
    """Floating-point operations of products in all layers of `a`: projections, experts, mixers, scores, attention.

    The gated delta rule counts as it is defined, with three products of a row and the state.
    """
    hidden, wide = a.hidden_size, a.linear_num_value_heads * a.linear_value_head_dim
    sparse = sum(a.is_sparse(layer) for layer in range(a.num_hidden_layers))
    delta = a.num_hidden_layers - sparse
    heads = a.num_attention_heads * a.head_dim
    seen = torch.arange(position + 1, position + width + 1).double()
    chosen = torch.where(seen >= a.indexer_budget + a.indexer_compress_ratio, float(a.indexer_budget), seen)
    scored = torch.where(seen > a.indexer_budget, seen / a.indexer_compress_ratio, 0.0)
    matrices = delta * (a.convolution_width + 2 * wide + 2 * a.linear_num_value_heads) * hidden
    matrices += sparse * (3 * heads + 2 * a.num_key_value_heads * a.head_dim) * hidden
    matrices += sparse * (a.indexer_n_heads + 1) * a.indexer_head_dim * hidden
    experts = 3 * hidden * a.moe_intermediate_size * (a.num_experts_per_tok + 1) + hidden * (a.num_experts + 1)
    mixers = 2 * (2 * a.hc_lowrank + a.hc_count) * a.streams_width
    state = delta * 3 * wide * a.linear_key_head_dim
    rows = width * (matrices + a.num_hidden_layers * (experts + mixers) + state)
    attended = sparse * (2 * heads * float(chosen.sum()) + a.indexer_n_heads * a.indexer_head_dim * float(scored.sum()))
    return 2 * (rows + attended)


def run_of(target: DeviceTarget, rows: DeviceRows) -> Callable[[], None]:
    """One chunk, as a prefill graph holds it."""

    def run() -> None:
        target.logits(target.forward(rows)[-1:])
        target.commit(rows, rows.counts)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", default="512,4096", help="rows of a chunk, comma-separated")
    parser.add_argument("--positions", default="0,4096,61440", help="of the first row, comma-separated")
    parser.add_argument("--live", type=int, help="rows that are tokens, all if left out")
    parser.add_argument("--kernels", action="store_true", help="list kernels of the eight layers")
    options = parser.parse_args()
    rate, whole = matrix_rate(), full_architecture()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, bfloat16 {rate / 1e9:.0f} TFLOP/s", flush=True)
    targets = [target_of(1), target_of(2)]
    with as_served():
        measure(targets, options, rate, whole)


def measure(targets: list[DeviceTarget], options: argparse.Namespace, rate: float, whole: Architecture) -> None:
    """A line for each width and position."""
    for width in map(int, options.widths.split(",")):
        for position in map(int, options.positions.split(",")):
            rows, live = rows_at(whole, 1, width, position), min(width, options.live or width)
            rows = replace(rows, counts=torch.full_like(rows.counts, live))
            graphs = [captured(run_of(target, rows)) for target in targets]
            few, more = (milliseconds(graph) for graph in graphs)
            took = few + (PERIODS - 1) * (more - few)
            bound = operations(whole, live, position) / rate
            print(
                f"W {width:5} ({live:5}) behind {position:6}: {took:7.1f} ms, {live / took * 1e3:7.0f} tokens/s, "
                f"arithmetic {bound:6.1f} ms; four layers {more - few:6.2f} ms",
                flush=True,
            )
            if options.kernels:
                for spent, count, name in kernel_times(graphs[1])[:32]:
                    print(f"    {spent:8.1f} us {count:5} x {spent / count:8.2f} {name[:100]}", flush=True)


if __name__ == "__main__":
    main()
