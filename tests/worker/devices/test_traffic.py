"""Random traffic over a twin on the CPU: a device's rounds do what the CPU's programs do, record by record."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from services.worker.devices.catalog import DeviceCatalog
from shared.manifest import Manifest, read
from tests.fixtures.scripted.recipe import COPIES, SCRIPTED, make_core
from tests.worker.devices.hashed import HashedDrafter, HashedModel, PackedDrafter, PackedModel
from tests.worker.devices.traffic import Traffic
from tests.worker.devices.twin import HostPeer, TwinCatalog, buffers, host_over, layouts_of
from tests.worker.host import Host

CPU = torch.device("cpu")


def small_core(folder: Path, learned: bool) -> Manifest:
    """A manifest of few pages and small chunks."""
    recipe = SCRIPTED if learned else COPIES
    return read(make_core(folder, recipe, context_length=256, prefill_buckets=(16,), mixed_chunk=8))


def model_of(manifest: Manifest, device: torch.device) -> HashedModel:
    """A model over the manifest's pool."""
    found = manifest.geometry
    return HashedModel(found.vocab_size, found.pages, found.concurrency, found.snapshot_slots, device)


def drafter_of(manifest: Manifest, device: torch.device) -> HashedDrafter:
    """A drafter over the manifest's slots."""
    found = manifest.geometry
    return HashedDrafter(found.vocab_size, found.concurrency, found.snapshot_slots, device)


def twin(manifest: Manifest, learned: bool) -> Host:
    """Hashes on the CPU's programs and on a device's rounds."""
    layouts = layouts_of(manifest)
    peer, frames = HostPeer(layouts), buffers(layouts)
    drafter = drafter_of(manifest, CPU) if learned else None
    peer.catalog = DeviceCatalog(manifest, model_of(manifest, CPU), drafter, layouts, peer.frames, CPU)
    peer.catalog.capture()
    parts = PackedModel(model_of(manifest, CPU)), PackedDrafter(drafter_of(manifest, CPU), 7) if learned else None
    return host_over(manifest, TwinCatalog(manifest, parts, peer, layouts, frames), layouts, frames)


@pytest.mark.parametrize("learned", [False, True])
def test_a_device_does_what_the_cpu_does(tmp_path: Path, learned: bool) -> None:
    traffic = Traffic(twin(small_core(tmp_path, learned), learned), seed=4)
    traffic.run(150)
    assert traffic.seen["mixed"] > 3
    assert traffic.seen["restored"] > 2
    assert traffic.seen["recomputed"] > 1
    assert min(traffic.seen["fault 32"], traffic.seen["lost chunk"]) > 0
    assert traffic.seen["fault 128"] + traffic.seen["fault 4"] > 0
    assert {traffic.seen[f"emitted {count}"] > 0 for count in range(7)} == {True}
