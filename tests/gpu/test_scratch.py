"""What rounds share while they run is poisoned between them: no record may change, and nothing may be made anew.

Random traffic of every kind of graph, batch and width: first over a twin, whose other side is the CPU, then over real
models alone, whose rounds are planned twice, without poison and with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import torch

from recipes.components.device_model import DeviceModel
from recipes.smollm2.device_target import DeviceTarget
from recipes.smollm2.device_weights import random_device_weights
from shared.manifest import Manifest
from tests.gpu.captured import CUDA, CudaPeer
from tests.gpu.scratch import Scratch, nothing_is_made, poisoning
from tests.gpu.tape import Rounds
from tests.gpu.test_smollm2_target import TINY
from tests.worker.devices.alone import alone
from tests.worker.devices.hashed import PackedDrafter, PackedModel
from tests.worker.devices.test_traffic import CPU, drafter_of, model_of, small_core
from tests.worker.devices.traffic import Traffic
from tests.worker.devices.twin import TwinCatalog, buffers, host_over, layouts_of

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    """As the worker runs."""
    with torch.no_grad():
        yield


@pytest.mark.parametrize("learned", [False, True])
def test_no_record_and_no_state_lies_in_volatile_memory(
    tmp_path: Path, figure: Callable[[str], None], learned: bool
) -> None:
    manifest = small_core(tmp_path, learned)
    layouts = layouts_of(manifest)
    peer = CudaPeer(manifest, model_of(manifest, CUDA), drafter_of(manifest, CUDA) if learned else None, layouts)
    peer.count_allocations()
    try:
        scratch = Scratch(peer.frames)
        assert scratch.nbytes > 0
        vars(peer.catalog)["replay"] = poisoning(peer.catalog.replay, scratch)
        parts = PackedModel(model_of(manifest, CPU)), PackedDrafter(drafter_of(manifest, CPU), 7) if learned else None
        frames = buffers(layouts)
        host = host_over(manifest, TwinCatalog(manifest, parts, peer, layouts, frames), layouts, frames)
        traffic = Traffic(host, seed=31)
        traffic.run(20)  # whatever comparing needs is there now
        with nothing_is_made():
            traffic.run(100)
        assert peer.allocated == 0, "a replay allocated memory"
        assert min(traffic.seen[what] for what in ("mixed", "restored", "recomputed")) > 0
        figure(f"learned={learned}: {host.catalog.counter} rounds with {scratch.nbytes >> 20} MiB poisoned around each")
    finally:
        peer.close()


def smollm2(invariant: bool) -> Callable[[Manifest], DeviceModel]:
    """A tiny random model of this family, with the traffic's vocabulary."""

    def made(manifest: Manifest) -> DeviceModel:
        shape = msgspec.structs.replace(TINY, vocab_size=manifest.geometry.vocab_size)
        weights = random_device_weights(shape, "int8", CUDA, torch.bfloat16)
        return DeviceTarget(shape, weights, manifest.geometry.pages, 4, 64, invariant)

    return made


@pytest.mark.parametrize("make", [smollm2(False), smollm2(True)], ids=["smollm2", "smollm2 deterministic"])
def test_planned_again_with_poison_rounds_record_the_same(
    tmp_path: Path, figure: Callable[[str], None], make: Callable[[Manifest], DeviceModel]
) -> None:
    """Arrival counters too must be as they were, whatever graph ran before; and whether or not a round waits behind."""
    manifest = small_core(tmp_path, False)
    geometry = msgspec.structs.replace(manifest.geometry, hidden_size=TINY.hidden_size)
    manifest = msgspec.structs.replace(manifest, geometry=geometry)
    layouts = layouts_of(manifest)
    peer = CudaPeer(manifest, make(manifest), None, layouts)
    peer.count_allocations()
    try:
        host, catalog = alone(peer, manifest, layouts)
        catalog.launch = peer.catalog.replay
        rounds = Rounds(host, catalog)
        traffic = Traffic(host, seed=12)
        traffic.run(120)
        assert min(traffic.seen[what] for what in ("mixed", "restored", "recomputed")) > 0
        scratch = Scratch(peer.frames)
        catalog.launch = poisoning(peer.catalog.replay, scratch)
        catalog.reset()
        with nothing_is_made():
            parted = rounds.again()
        assert parted == []
        catalog.reset()
        assert rounds.again(queued=2) == []
        assert peer.allocated == 0, "a replay allocated memory"
        used = {one.graph for one in rounds.noted}
        figure(f"{len(rounds.noted)} rounds of {len(used)} graphs, {scratch.nbytes >> 20} MiB poisoned: the same")
    finally:
        peer.close()
