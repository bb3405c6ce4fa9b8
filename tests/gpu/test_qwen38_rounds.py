"""Rounds of the tiny Qwen3.8 with its drafter in kernels: in float32 they do what the CPU's programs do.

Captured on a card; in Triton's interpreter, which needs minutes, a few of them. With references: tests/worker/devices.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from shared.manifest import Manifest
from tests.gpu.captured import CUDA, CudaPeer
from tests.gpu.places import interpreter
from tests.threads import torch_threads
from tests.worker.devices.qwen38 import qwen38_twin, small_core
from tests.worker.devices.test_qwen38_twin import CPU, host_peer
from tests.worker.devices.traffic import Traffic


@pytest.fixture(autouse=True)
def as_a_worker() -> Iterator[None]:
    """No gradients; and one thread, or the CPU's rounds wait for cores that other files of tests compile on."""
    with torch.no_grad(), torch_threads(1):
        yield


def nodes_of(manifest: Manifest, peer: CudaPeer) -> dict[str, int]:
    """Nodes of the graph of each shape; they were captured from the widest to the narrowest."""
    graphs = manifest.graphs
    order = sorted(range(len(graphs)), key=peer.catalog.rows, reverse=True)
    return {
        f"{graphs[index].kind} {graphs[index].batch_capacity}x{graphs[index].token_capacity}": count
        for index, count in zip(order, peer.frames.nodes, strict=True)
    }


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_interpreted_rounds_with_learned_drafts_do_what_the_cpu_does(tmp_path: Path) -> None:
    place = interpreter()

    def drive() -> Traffic:
        traffic = Traffic(qwen38_twin(small_core(tmp_path), CPU, host_peer), seed=6)
        traffic.run(12)
        return traffic

    found: Traffic = place.run(drive)
    assert found.seen["sources 1"] > 0, "rounds of learned drafts"


@pytest.mark.gpu
@pytest.mark.timeout(300)
def test_captured_rounds_with_learned_drafts_do_what_the_cpu_does(
    tmp_path: Path, figure: Callable[[str], None]
) -> None:
    """Random traffic: drafts of the MTP layer, copies, mixed rounds, exports and restorations; nothing is allocated."""
    begin = time.perf_counter()
    peers: list[CudaPeer] = []

    def captured(*parts: object) -> CudaPeer:
        peers.append(CudaPeer(*parts))  # type: ignore[arg-type]
        return peers[-1]

    host = qwen38_twin(small_core(tmp_path), CUDA, captured)
    peer = peers[0]
    figure(f"tiny Qwen3.8: {len(host.manifest.graphs)} graphs ready in {time.perf_counter() - begin:.1f} s")
    peer.count_allocations()
    try:
        traffic, begin = Traffic(host, seed=6), time.perf_counter()
        traffic.run(150)
        took = time.perf_counter() - begin
        assert peer.allocated == 0, "a replay allocated memory"
        assert min(traffic.seen[what] for what in ("mixed", "restored", "recomputed")) > 0
        assert {traffic.seen[f"emitted {count}"] > 0 for count in range(5)} == {True}
        assert traffic.seen["sources 1"] > 5, "rounds of learned drafts"
        figure(
            f"tiny Qwen3.8: {host.catalog.counter} rounds equal in {took:.1f} s; {dict(sorted(traffic.seen.items()))}"
        )
        figure(f"nodes: {nodes_of(host.manifest, peer)}")
    finally:
        peer.close()
