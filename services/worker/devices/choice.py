"""Which device a worker runs on: the one place that decides by `--device`.

A device has a launch thread, a name for the scheduler, and the region in which the scheduler finds completed rounds.
CUDA is imported only by a worker that is told to use it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from services.worker.config import WorkerConfig
from services.worker.preparation import Frames, prepare
from services.worker.recording import Recording
from services.worker.replay import LaunchThread
from services.worker.rows import Tables
from shared.manifest import Manifest
from shared.regions import RegionHandle

if TYPE_CHECKING:
    from services.worker.devices.preparation import CudaPreparation


class WorkerDevice(Protocol):
    """What the polling thread needs of a device."""

    @property
    def launch(self) -> LaunchThread: ...

    @property
    def uuid(self) -> str:
        """The GPU's UUID, or `cpu`."""
        ...

    @property
    def completion(self) -> RegionHandle:
        """Where completion frames lie, once the launch thread is ready."""
        ...

    def close(self) -> None:
        """Gives device memory back; the launch thread is idle."""
        ...


@dataclass(frozen=True, slots=True)
class CpuDevice:
    """Rounds in this process's own memory."""

    launch: LaunchThread
    frames: Frames

    @property
    def uuid(self) -> str:
        """There is no GPU."""
        return "cpu"

    @property
    def completion(self) -> RegionHandle:
        """The shared region."""
        return self.frames.completion.handle

    def close(self) -> None:
        """The frames are the worker's."""


@dataclass(frozen=True, slots=True)
class CudaDevice:
    """Captured rounds on a GPU."""

    launch: LaunchThread
    frames: Frames
    preparation: CudaPreparation

    @property
    def uuid(self) -> str:
        """The GPU's UUID."""
        return self.preparation.device_uuid

    @property
    def completion(self) -> RegionHandle:
        """Device memory, or with `--frames host` the shared region."""
        made = self.preparation.frames
        return self.frames.completion.handle if made is None or made.region is None else made.region.handle

    def close(self) -> None:
        """Waits for what runs, then unregisters and frees."""
        self.preparation.close()


def device_of(
    config: WorkerConfig, manifest: Manifest, frames: Frames, tables: Tables, recording: Recording | None
) -> WorkerDevice:
    """The device that the configuration names. Raises `RegionError` without a GPU."""
    if config.device == "cpu":
        return CpuDevice(LaunchThread(lambda: prepare(config, manifest, frames, tables), recording), frames)
    from services.worker.devices.launching import DeviceLaunchThread
    from services.worker.devices.preparation import CudaPreparation

    preparation = CudaPreparation(config, manifest, frames, tables)
    thread = DeviceLaunchThread(preparation.prepare, lambda: preparation.recorder(recording))
    return CudaDevice(thread, frames, preparation)
