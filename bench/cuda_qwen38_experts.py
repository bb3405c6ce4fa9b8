"""GPU time of Qwen3.8's layers over packed weights at full size: python3 bench/cuda_qwen38_experts.py

NVFP4 experts and MXFP8 linear layers with random contents. A captured graph goes through a few hundred megabytes of
different weights, as a round does, so that nothing is left in the card's cache from the time before; figures are for
one layer. Lines: what, rows, microseconds, and what its bytes take at the copy bandwidth of this run. The experts'
are those of the union that random routing chose.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from bench.replays import copy_bandwidth, microseconds
from recipes.components.gpu import experts
from recipes.components.gpu.expert_block import ExpertBlock, expert_block
from recipes.components.gpu.mxfp8_linear import Mxfp8Weight, mxfp8_gated, mxfp8_linear
from recipes.components.gpu.streams import Injection

HIDDEN, INNER, EXPERTS, TOP = 2560, 640, 512, 10
FEWEST_BYTES = 400e6
"""Of weights that a graph goes through: several times the card's cache."""
LAYERS = {
    "delta in": (16_480, 2560),
    "delta out": (2560, 6144),
    "attention in": (13_952, 2560),
    "shared gate, up": (1280, 2560),
    "shared down": (2560, 640),
}
ROUNDS = ((1, 1), (1, 2), (1, 3), (1, 4), (1, 5), (1, 6), (1, 7), (1, 8), (2, 1), (4, 1), (2, 8), (4, 4), (4, 8))


def drawn(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape, device="cuda").to(dtype)


def timed(operators: Sequence[Callable[[], object]]) -> float:
    """Microseconds of one of the operators, which follow one another in a graph."""
    for operator in operators:
        operator()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for operator in operators:
            operator()
    return microseconds(graph) / len(operators)


def mxfp8(outputs: int, inner: int) -> Mxfp8Weight:
    return Mxfp8Weight(
        torch.randint(0, 127, (outputs, inner), dtype=torch.uint8, device="cuda").view(torch.float8_e4m3fn),
        torch.randint(110, 120, (outputs, inner // 32), dtype=torch.uint8, device="cuda"),
    )


def packed_experts() -> experts.PackedExperts:
    def bytes(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, dtype=torch.uint8, device="cuda")

    return experts.PackedExperts(
        gate_up=bytes(0, 256, EXPERTS, 2 * INNER, HIDDEN // 2),
        gate_up_scales=bytes(40, 60, EXPERTS, 2 * INNER, HIDDEN // 16),
        gate_up_singles=torch.full((EXPERTS, 2), 1e-3, device="cuda"),
        down=bytes(0, 256, EXPERTS, HIDDEN, INNER // 2),
        down_scales=bytes(40, 60, EXPERTS, HIDDEN, INNER // 16),
        down_singles=torch.full((EXPERTS,), 1e-3, device="cuda"),
        top=TOP,
    )


def mixtures(bandwidth: float) -> None:
    held = packed_experts()
    one = (held.gate_up[0].nbytes + held.down[0].nbytes) * 9 / 8
    for lanes, width in ROUNDS:
        count = lanes * width
        x, gate = drawn(count, HIDDEN), drawn(count, dtype=torch.float32)
        times = max(2, min(12, int(FEWEST_BYTES / (one * TOP * count))))
        scores = [drawn(count, EXPERTS, dtype=torch.float32) for _ in range(times)]
        routed = [experts.route(own, TOP) for own in scores]
        union = sum(chosen.flatten().bincount().count_nonzero().item() for _, chosen in routed) / times
        inners = [experts.inner_rows(x, held, chosen) for _, chosen in routed]
        parts = [experts.output_rows(inner, held, chosen) for inner, (_, chosen) in zip(inners, routed, strict=True)]
        whole = timed([partial(experts.mixture, x, held, *own, shared=x, shared_gate=gate) for own in routed])
        first = timed([partial(experts.inner_rows, x, held, chosen) for _, chosen in routed])
        second = timed(
            [partial(experts.output_rows, inner, held, own[1]) for inner, own in zip(inners, routed, strict=True)]
        )
        last = timed([partial(experts._add, part, own[0], x, gate) for part, own in zip(parts, routed, strict=True)])
        choice = timed([partial(experts.route, own, TOP) for own in scores])
        print(
            f"experts B {lanes} W {width} {whole:7.1f} us, bound {one * union / bandwidth:6.1f} ({union:.0f} experts): "
            f"in {first:.1f}, out {second:.1f}, sum {last:.1f}; choice {choice:.1f}",
            flush=True,
        )


def blocks(bandwidth: float) -> None:
    """Whole blocks, each with a router and a shared expert of its own, over the same routed experts."""
    held = packed_experts()
    one = (held.gate_up[0].nbytes + held.down[0].nbytes) * 9 / 8
    dense = (EXPERTS + 1) * HIDDEN * 2 + 3 * INNER * HIDDEN * 33 / 32
    for lanes, width in ROUNDS:
        count = lanes * width
        x, into = drawn(count, HIDDEN), Injection(drawn(count, 4 * HIDDEN).float(), torch.rand(count, 4, device="cuda"))
        times = max(2, min(12, int(FEWEST_BYTES / (one * TOP * count))))
        own = [
            ExpertBlock(drawn(EXPERTS + 1, HIDDEN), held, mxfp8(2 * INNER, HIDDEN), mxfp8(HIDDEN, INNER))
            for _ in range(times)
        ]
        chosen = [experts.route((x @ block.router.T).float()[:, :-1], TOP)[1] for block in own]
        union = sum(each.flatten().bincount().count_nonzero().item() for each in chosen) / times
        took = timed([partial(expert_block, block, x, into) for block in own])
        bound = (one * union + dense) / bandwidth
        print(f"block B {lanes} W {width} {took:7.1f} us, bound {bound:6.1f} ({union:.0f} experts)", flush=True)


def linears(bandwidth: float) -> None:
    for name, (outputs, inner) in LAYERS.items():
        size = outputs * inner * 33 / 32
        weights = [mxfp8(outputs, inner) for _ in range(min(64, int(FEWEST_BYTES / size) + 1))]
        through = mxfp8_gated if "gate" in name else mxfp8_linear
        found = [
            timed([partial(through, x, weight) for weight in weights])
            for x in (drawn(count, inner) for count in (1, 2, 4, 8, 16, 32))
        ]
        wide, x = [weight.wide(torch.bfloat16).T for weight in weights[:8]], drawn(1, inner)
        plain = timed([partial(torch.mm, x, weight) for weight in wide])
        print(
            f"{name:16} {outputs} x {inner}, bound {size / bandwidth:5.1f}: rows 1, 2, 4, 8, 16, 32: "
            + ", ".join(f"{took:.1f}" for took in found)
            + f" us; widened, one row by cuBLAS {plain:.1f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("experts", "blocks", "linear"))
    options = parser.parse_args()
    bandwidth = copy_bandwidth()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, copy {bandwidth / 1e6:.2f} TB/s")
    for name, measure in (("linear", linears), ("experts", mixtures), ("blocks", blocks)):
        if options.only in (None, name):
            measure(bandwidth)


if __name__ == "__main__":
    main()
