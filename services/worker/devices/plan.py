"""The plan of a round in device memory: typed tensors over one frame, which the first nodes of every graph fetch.

Fetching reads the tail, then the body, then the head, the writer's order reversed: only then do two equal ends prove a
whole frame (docs/adr/0003). Runs in captured rounds; the host memory is the region that the scheduler writes.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from shared.frames import Layout


@dataclass(frozen=True, slots=True)
class PlanTensors:
    """`shared.frames.PlanFrame`, field by field, in device memory."""

    head: Tensor
    graph: Tensor
    lanes: Tensor
    slot: Tensor
    epoch: Tensor
    request: Tensor
    ceiling: Tensor
    copy_anchor: Tensor
    copy_length: Tensor
    copy_source: Tensor
    copy_tokens: Tensor
    page_table: Tensor
    export_slot: Tensor
    export_boundary: Tensor
    chunk_slot: Tensor
    chunk_epoch: Tensor
    chunk_request: Tensor
    chunk_start: Tensor
    chunk_length: Tensor
    chunk_final: Tensor
    chunk_pending: Tensor
    chunk_page_table: Tensor
    chunk_export_slot: Tensor
    chunk_tokens: Tensor
    init_slot: Tensor
    init_epoch: Tensor
    init_request: Tensor
    init_integers: Tensor
    init_floats: Tensor
    init_end_ids: Tensor
    init_bias_ids: Tensor
    init_bias_values: Tensor
    snapshot_row: Tensor
    restore_length: Tensor
    tail: Tensor


def field_view(words: Tensor, layout: Layout, name: str) -> Tensor:
    """The field `name` of a frame that lies in `words` int64 [nbytes / 8], in its own type and shape."""
    for field in layout.fields:
        if field.name == name:
            count = -(-field.nbytes // 8)
            kind = torch.from_numpy(np.empty(0, dtype=field.dtype)).dtype
            part = words[field.offset // 8 : field.offset // 8 + count].view(kind)
            return part[: int(np.prod(field.shape))].view(field.shape)
    raise KeyError(name)


def plan_tensors(words: Tensor, layout: Layout) -> PlanTensors:
    """Typed views of a plan frame in `words` int64 [nbytes / 8]."""
    return PlanTensors(**{field.name: field_view(words, layout, field.name) for field in fields(PlanTensors)})


class Fetch(Protocol):
    """Copies frame `counter & 1` of the host's two into device memory: the words below `stop`, and the ends."""

    def __call__(self, counter: Tensor, taken: Tensor, stop: int) -> None: ...


@dataclass(frozen=True, slots=True)
class PlainFetch:
    """The fetch in plain tensor operations. `host` int64 [2, nbytes / 8] is the region itself."""

    host: Tensor
    tail: int
    """Word of the tail; the head is word 0."""

    def __call__(self, counter: Tensor, taken: Tensor, stop: int) -> None:
        frame = counter & 1
        tail = self.host[:, self.tail].index_select(0, frame)
        body = self.host[:, :stop].index_select(0, frame)
        head = self.host[:, 0].index_select(0, frame)
        taken[:stop].copy_(body[0])
        taken[self.tail : self.tail + 1].copy_(tail)
        taken[:1].copy_(head)
