"""GPU time of captured rounds of the real Qwen3.8-Flash geometry on one card: python3 bench/cuda_qwen38.py

Weights are random, drawn on the card (73 GB; the n-gram table reduced to 20,000 rows a hash head, in the card's
memory). A round here is the target's forward, logits of all rows, and commit of all rows: no sampling, no drafter. Each
line is a graph: lanes B, rows W, position; nodes, microseconds a replay, what its bytes take at the copy bandwidth of
this run, and the ratio. Bytes count weights as the checkpoint stores them, experts by the measured union of the rows'
choices, states read and written, keys and values that attention may choose. `--kernels` tells which kernels the time of
one replay went to: from the end of the kernel before to its own end.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from math import prod

import torch
from torch import Tensor

from bench.cuda_smollm2 import copy_bandwidth, microseconds
from recipes.components.device_model import DeviceRows
from recipes.components.gpu.expert_block import ExpertBlock
from recipes.components.gpu.streams import Injection
from recipes.components.safetensors_headers import BITS
from recipes.qwen38 import device_blocks, device_target
from recipes.qwen38.architecture import Architecture
from recipes.qwen38.device_target import DeviceTarget
from recipes.qwen38.inventory import target_tensors
from recipes.qwen38.random_weights import full_architecture, random_weights

SLOTS, LONGEST = 4, 65_536
_EXPERT = ".experts."


def rows_at(a: Architecture, lanes: int, width: int, position: int) -> DeviceRows:
    """Lanes whose first row is at `position`; pages in random order, each table as wide as for the longest request."""
    source = torch.Generator().manual_seed(lanes * 100 + width)
    pages = LONGEST // 64
    tables = torch.randperm(SLOTS * pages, generator=source).view(SLOTS, pages)[:lanes]
    return DeviceRows(
        tokens=torch.randint(0, a.vocab_size, (lanes * width,), generator=source).cuda(),
        slots=torch.arange(lanes).cuda(),
        first=torch.full((lanes,), position).cuda(),
        counts=torch.full((lanes,), width).cuda(),
        tables=tables.int().contiguous().cuda(),
        width=width,
    )


def captured(target: DeviceTarget, rows: DeviceRows) -> tuple[torch.cuda.CUDAGraph, int]:
    """A graph of one round, and its nodes."""
    from cuda.bindings import runtime

    def once() -> None:
        target.logits(target.forward(rows))
        target.commit(rows, rows.counts)

    once()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        once()
    _, _, nodes = runtime.cudaGraphGetNodes(graph.raw_cuda_graph())
    graph.instantiate()
    return graph, nodes


def expert_union(target: DeviceTarget, rows: DeviceRows) -> int:
    """Different experts that the rows choose, over all layers."""
    found: list[int] = []
    original = device_blocks.experts_of

    def counting(experts: ExpertBlock, x: Tensor, into: Injection) -> None:
        best = (x.float() @ experts.router[: experts.routed.count].float().T).topk(experts.routed.top).indices
        found.append(int(torch.bincount(best.flatten()).count_nonzero()))
        original(experts, x, into)

    device_target.__dict__["experts_of"] = counting
    try:
        target.forward(rows)
    finally:
        device_target.__dict__["experts_of"] = original
    return sum(found)


def round_bytes(a: Architecture, lanes: int, position: int, union: int) -> float:
    """What a round must read and write."""
    sizes = {
        name: prod(spec.shape) * BITS[spec.dtypes[0]] / 8
        for name, spec in target_tensors(a).items()
        if "ngram_embedding" not in name and "embed_tokens" not in name
    }
    dense = sum(size for name, size in sizes.items() if _EXPERT not in name)
    expert = 3 * a.hidden_size * a.moe_intermediate_size * (1 / 2 + 1 / 16)
    sparse = sum(a.is_sparse(layer) for layer in range(a.num_hidden_layers))
    matrices = a.linear_num_value_heads * a.linear_key_head_dim * a.linear_value_head_dim * 4
    states = lanes * (a.num_hidden_layers - sparse) * 2 * matrices
    seen = min(position, a.indexer_budget) * 2 * a.num_key_value_heads * a.head_dim * 2
    groups = position / a.indexer_compress_ratio * a.indexer_head_dim * 2 if position > a.indexer_budget else 0
    return dense + union * expert + states + lanes * sparse * (seen + groups)


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="1x1,1x2,1x4,1x8,2x1,4x1,4x8", help="lanes x rows, comma-separated")
    parser.add_argument("--positions", default="4096,65500", help="of the first row, comma-separated")
    parser.add_argument("--kernels", default="", help="shapes of which to list kernels, as in --shapes")
    options = parser.parse_args()
    bandwidth, started = copy_bandwidth(), time.monotonic()
    a = full_architecture()
    weights, _ = random_weights(a, torch.device("cuda"), torch.bfloat16, seed=1, drafter=False)
    target = DeviceTarget(a, weights, SLOTS, snapshots=0, pages=SLOTS * (LONGEST // 64), positions=LONGEST)
    torch.cuda.synchronize()
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, copy {bandwidth / 1e6:.2f} TB/s; "
        f"{torch.cuda.memory_allocated() / 1e9:.1f} GB made in {time.monotonic() - started:.0f} s",
        flush=True,
    )
    for shape in options.shapes.split(","):
        lanes, width = (int(part) for part in shape.split("x"))
        for position in (int(part) for part in options.positions.split(",")):
            rows, started = rows_at(a, lanes, width, position), time.monotonic()
            graph, nodes = captured(target, rows)
            prepared, union = time.monotonic() - started, expert_union(target, rows)
            took, bound = microseconds(graph), round_bytes(a, lanes, position, union) / bandwidth
            print(
                f"B {lanes} W {width} at {position:6}: {nodes:5} nodes {took:8.0f} us, bound {bound:6.0f}, "
                f"ratio {took / bound:5.2f} ({union / a.num_hidden_layers:.0f} experts a layer, "
                f"ready in {prepared:.0f} s)",
                flush=True,
            )
            if shape in options.kernels.split(","):
                for spent, count, name in kernel_times(graph)[:32]:
                    print(f"    {spent:8.1f} us {count:5} x {spent / count:6.2f} {name[:100]}", flush=True)
            del graph


if __name__ == "__main__":
    main()
