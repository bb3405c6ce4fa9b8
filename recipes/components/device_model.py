"""What a captured round asks of a model on a device: rows of fixed shape in, sampling vectors out, a state transaction.

Runs in the worker, inside captured graphs. Nothing here may wait for the host, allocate memory that outlives the call,
or depend on values in its shapes: what varies lies in tensors. `recipes/components/model.py` is the same contract for
the CPU, lane by lane, and is its reference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor


@dataclass(frozen=True, slots=True)
class DeviceRows:
    """B lanes of W rows: lane b's rows are b*W .. b*W + W - 1. Padding lanes have slot -1, rows beyond a lane's count
    are masked: they write nowhere and what they compute is never read."""

    tokens: Tensor
    """int64 [B * W]; zero where masked."""
    slots: Tensor
    """int64 [B], -1 for a padding lane."""
    first: Tensor
    """int64 [B]: absolute position of each lane's first row."""
    counts: Tensor
    """int64 [B]: valid rows, 0 .. W."""
    tables: Tensor
    """int32 [B, P]: page of position // 64."""
    width: int
    """W."""


class DeviceModel(Protocol):
    """A target model bound to its state on one device. Prefill is B = 1, W = bucket."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def hidden_size(self) -> int: ...

    def forward(self, rows: DeviceRows) -> Tensor:
        """Sampling vectors [B * W, hidden]. Writes keys and values of valid rows, candidates of recurrent kinds."""
        ...

    def logits(self, vectors: Tensor) -> Tensor:
        """Raw logits float32 [n, V] of sampling vectors [n, hidden]."""
        ...

    def commit(self, rows: DeviceRows, kept: Tensor) -> None:
        """Selects the state after each lane's first `kept` rows, int64 [B]; 0 keeps what was committed before."""
        ...

    def export(self, rows: DeviceRows, kept: Tensor, target: Tensor) -> None:
        """State after the first `kept` rows into snapshot rows `target`, int64 [B], -1: none. Before `commit`."""
        ...

    def reset(self, slot: Tensor) -> None:
        """Empties the recurrent state of `slot`, int64 [1]; -1: of nobody."""
        ...

    def snapshot(self, slot: Tensor, target: Tensor) -> None:
        """Copies committed state of `slot` into snapshot row `target`, int64 [1] each; -1 in either: nothing."""
        ...

    def restore(self, source: Tensor, slot: Tensor) -> None:
        """Copies snapshot row `source` into the state of `slot`, int64 [1] each; -1 in either: nothing."""
        ...


@runtime_checkable
class Faulting(Protocol):
    """A model or drafter whose rounds may go wrong: rows of a table did not come, state of a prefix was not held."""

    @property
    def faults(self) -> Tensor:
        """int32 [slots + 1]: bits of `Fault`, set while a slot's rows are computed. The round takes and clears them."""
        ...


@runtime_checkable
class Adopting(Protocol):
    """A model whose slots keep something of a prefix that only pages hold. Others need not know of it."""

    def adopt(self, slot: Tensor, consumed: Tensor) -> None:
        """The reset `slot` goes on behind `consumed` tokens in its pages; int64 [1] each, zero or slot -1: nothing."""
        ...
