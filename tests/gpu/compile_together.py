"""Compiles what a round launches side by side, as a worker does at its start: python -m tests.gpu.compile_together

A process of its own, for a card that need not be there. Prints how many kernels the first and the second pass compiled:
the second asks for the same ones again.
"""

from __future__ import annotations

import torch
from triton.runtime import driver

import recipes.components.gpu.sampling as sampling
import services.worker.devices.catalog as catalog
import services.worker.devices.completion as completion
from services.worker.devices.compiling import compile_kernels
from services.worker.devices.readiness import Compilations
from tests.gpu.compile_kernels import AbsentCard
from tests.gpu.compile_rounds import ZeroModel, manifest_of
from tests.worker.devices.twin import HostPeer, layouts_of


def main() -> None:
    """Prints the two numbers."""
    driver.set_active(AbsentCard(90))
    for module in (sampling, catalog, completion):
        module.runs_triton = lambda tensor: True  # type: ignore[attr-defined]
    manifest = manifest_of(ZeroModel.hidden_size)
    layouts, model = layouts_of(manifest), ZeroModel(manifest.geometry.vocab_size)
    peer = HostPeer(layouts)
    device = catalog.DeviceCatalog(manifest, model, None, layouts, peer.frames, torch.device("cpu"))
    rounds = [device._round(index) for index in range(len(manifest.graphs))]
    listener = Compilations().listen()
    compile_kernels(rounds)
    first = listener.compiled
    compile_kernels(rounds)
    print(first, listener.compiled - first + listener.cached)


if __name__ == "__main__":
    main()
