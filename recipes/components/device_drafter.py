"""What a captured round asks of a learned drafter on a device: the form of `model.Drafter` with all lanes at once.

Runs in the worker, inside captured graphs, under the rules of `device_model.py`. Its cache is built from committed
history only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from recipes.components.device_model import DeviceRows
from recipes.components.device_state import DeviceState


@dataclass(frozen=True, slots=True)
class DeviceDrafts:
    """`tokens` int64 [B, K], `counts` int64 [B] of them valid, `law` float32 [B, K, V] that each was drawn from."""

    tokens: Tensor
    counts: Tensor
    law: Tensor


@dataclass(frozen=True, slots=True)
class DeviceTask:
    """What B lanes ask of a drafter: at most `limits` int64 [B] drafts after `pending`; at limit 0 it asks nothing.

    `slots` int64 [B] is -1 for padding, `rows` the same with the scratch row in its place; `tables` int32 [B, P];
    `draws` float32 [B, K] are the round's uniforms of the draft domain; sampling values lie in `state`.
    """

    slots: Tensor
    rows: Tensor
    consumed: Tensor
    pending: Tensor
    limits: Tensor
    tables: Tensor
    draws: Tensor
    state: DeviceState


class DeviceDrafter(Protocol):
    """A learned drafter bound to its cache on one device."""

    def propose(self, task: DeviceTask) -> DeviceDrafts:
        """Drafts and the law of each. What this writes is not committed."""
        ...

    def absorb(self, rows: DeviceRows, vectors: Tensor, kept: Tensor) -> None:
        """Takes each lane's first `kept` inputs, int64 [B], with sampling vectors [B * W, hidden], into its cache."""
        ...

    def reset(self, slot: Tensor) -> None:
        """Empties the draft cache of `slot`, int64 [1]; -1: of nobody."""
        ...

    def snapshot(self, slot: Tensor, target: Tensor) -> None:
        """Copies draft state of `slot` into snapshot row `target`, int64 [1] each; -1 in either: nothing."""
        ...

    def export(self, rows: DeviceRows, vectors: Tensor, kept: Tensor, target: Tensor) -> None:
        """State of the prefix that ends with the first `kept` rows into rows `target`, -1: none. After `absorb`."""
        ...

    def restore(self, source: Tensor, slot: Tensor) -> None:
        """Copies snapshot row `source` into the draft state of `slot`, int64 [1] each; -1 in either: nothing."""
        ...
