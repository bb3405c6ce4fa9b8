"""Row-invariant evaluation: with it, a function of rows is called for each row alone, in shapes that never change.

Runs in the worker on the CPU. Float kernels choose their order of summation by the number of rows, by alignment and by
how threads divide them; a call of one row leaves them no choice. Whoever adds integers exactly (int8_linear.py) needs
this for attention alone; float32 models need it everywhere (docs/adr/0008).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import torch
from torch import Tensor

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Rowwise:
    """Calls functions whose row i of the result depends on row i of the arguments only."""

    deterministic: bool

    def __call__(self, function: Callable[..., Found], *rows: Tensor) -> Found:
        """`function(*rows)`, the arguments [R, ...] with R >= 1; if deterministic, put together from R calls.

        The function returns a tensor, a tuple of tensors or a dataclass of tensors, each [R, ...].
        """
        if not self.deterministic:
            return function(*rows)
        return _joined([function(*(_alone(part, row) for part in rows)) for row in range(len(rows[0]))])


def _alone(rows: Tensor, row: int) -> Tensor:
    """The row as [1, ...] in storage of its own: a view's alignment would follow from the row's place."""
    return rows[row : row + 1].clone(memory_format=torch.contiguous_format)


def _joined(parts: list[Found]) -> Found:
    first: Any = parts[0]
    if len(parts) == 1:
        return parts[0]
    found: Any
    if isinstance(first, Tensor):
        found = torch.cat([part for part in parts if isinstance(part, Tensor)])
    elif isinstance(first, tuple):
        columns: Any = zip(*parts, strict=True)
        found = tuple(torch.cat(column) for column in columns)
    else:
        found = type(first)(*(torch.cat([getattr(part, field.name) for part in parts]) for field in fields(first)))
    result: Found = found
    return result
