"""The tiny Qwen3.8 with its MTP drafter in a device's rounds: under random traffic they do what the CPU's do.

Here with the references of all operators; over captured graphs on a card in tests/gpu/test_qwen38_rounds.py.
"""

from __future__ import annotations

from pathlib import Path

import torch

from recipes.components.device_drafter import DeviceDrafter
from recipes.components.device_model import DeviceModel
from services.worker.devices.catalog import DeviceCatalog
from shared.manifest import Manifest
from tests.threads import torch_threads
from tests.worker.devices.qwen38 import qwen38_twin, small_core
from tests.worker.devices.traffic import Traffic
from tests.worker.devices.twin import HostPeer, Layouts

CPU = torch.device("cpu")


def host_peer(manifest: Manifest, model: DeviceModel, drafter: DeviceDrafter | None, layouts: Layouts) -> HostPeer:
    """Rounds on the CPU."""
    peer = HostPeer(layouts)
    peer.catalog = DeviceCatalog(manifest, model, drafter, layouts, peer.frames, CPU)
    peer.catalog.capture()
    return peer


def test_a_device_does_what_the_cpu_does(tmp_path: Path) -> None:
    with torch.no_grad(), torch_threads(1):
        traffic = Traffic(qwen38_twin(small_core(tmp_path), CPU, host_peer), seed=6)
        traffic.run(100)
    assert min(traffic.seen[what] for what in ("mixed", "restored", "recomputed")) > 0
    assert {traffic.seen[f"emitted {count}"] > 0 for count in range(5)} == {True}
    assert traffic.seen["sources 1"] > 5, "rounds of learned drafts"
