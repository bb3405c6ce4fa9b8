"""Memory that torch did not allocate, as tensors on the GPU: CUDA's own allocations and registered host memory.

Runs in the worker. A tensor keeps nothing alive: whoever holds the memory gives it back after the last round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class _Bytes:
    """In the form that torch wraps."""

    pointer: int
    count: int

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": (self.count,), "typestr": "|u1", "data": (self.pointer, False), "version": 3}


def bytes_at(pointer: int, count: int) -> Tensor:
    """uint8 [count] at device address `pointer`."""
    return torch.as_tensor(_Bytes(pointer, count), device="cuda")
