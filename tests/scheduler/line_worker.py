"""A worker whose launch thread has a line of its own: rounds of a device on the CPU, over a model of hashes.

`python -m tests.scheduler.line_worker CORE RUN_DIR` is such a worker as a process.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import services.worker.service as worker_service
from recipes.components.device_drafter import DeviceDrafter
from services.worker.config import WorkerConfig
from services.worker.devices.catalog import DeviceCatalog
from services.worker.devices.choice import CpuDevice
from services.worker.devices.host import HostFrames
from services.worker.devices.launching import DeviceLaunchThread
from services.worker.preparation import Frames
from shared.manifest import Manifest
from tests.worker.devices.test_traffic import CPU, model_of


def device_over(manifest: Manifest, frames: Frames, drafter: DeviceDrafter | None) -> CpuDevice:
    """What `device_of` gives a worker on a GPU, here without one."""

    def prepare() -> DeviceCatalog:
        torch.set_grad_enabled(False)
        layouts = (frames.plan_layout, frames.completion_layout)
        host = HostFrames(layouts, frames.plan.payload, frames.completion.payload)
        catalog = DeviceCatalog(manifest, model_of(manifest, CPU), drafter, layouts, host, CPU)
        catalog.capture()
        return catalog

    return CpuDevice(DeviceLaunchThread(prepare), frames)


def main() -> int:
    """Runs until it is told to stop."""
    vars(worker_service)["device_of"] = lambda config, manifest, frames, *rest: device_over(manifest, frames, None)
    return worker_service.run(WorkerConfig(core=Path(sys.argv[1]), run_dir=Path(sys.argv[2])))


if __name__ == "__main__":
    sys.exit(main())
