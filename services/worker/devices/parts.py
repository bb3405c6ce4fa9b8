"""What all programs of a core work on, in one value."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from recipes.components.device_drafter import DeviceDrafter
from recipes.components.device_model import DeviceModel
from recipes.components.device_state import DeviceState
from services.worker.devices.completion import DeviceCompletion
from services.worker.devices.plan import PlanTensors
from services.worker.devices.snapshots import DeviceSnapshots


@dataclass(frozen=True, slots=True)
class Parts:
    """A model, its drafter if it has one, and everything beside them on the same device.

    `faults` int32 [slots + 1]: bits that model or drafter set while they compute a slot's rows.
    """

    model: DeviceModel
    drafter: DeviceDrafter | None
    state: DeviceState
    snapshots: DeviceSnapshots
    plan: PlanTensors
    out: DeviceCompletion
    faults: Tensor
