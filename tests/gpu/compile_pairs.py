"""What a draft layer launches beside its blocks, for `compile_kernels.py`, in the sizes of Qwen3.8-Flash-Next."""

from __future__ import annotations

import torch

import recipes.components.gpu.pairs as pairs
from recipes.components.device_drafter import DeviceTask
from recipes.components.device_model import DeviceRows
from recipes.components.device_state import DeviceState
from recipes.components.gpu.selection import IndexState


def draft_pairs(lanes: DeviceRows) -> None:
    """Pairs of committed and of proposed tokens, and tails of exported prefixes."""
    pairs.runs_triton = lambda tensor: True  # type: ignore[attr-defined]
    pairs.chained = lambda tensor: True  # type: ignore[attr-defined]
    hidden, count, kind = 2560, len(lanes.slots), torch.bfloat16
    norms = pairs.PairNorms(torch.zeros(16, hidden, dtype=kind), torch.zeros(hidden), torch.zeros(4 * hidden), 4, 1e-6)
    tails, vectors = torch.zeros(3, 4 * hidden, dtype=kind), torch.zeros(len(lanes.tokens), 4 * hidden)
    pairs.committed_pairs(norms, tails, lanes, vectors, lanes.counts)
    ring, tags = torch.zeros(3, 12, 128, dtype=kind), torch.zeros(3, 12, dtype=torch.int64)
    index = IndexState(ring, tags, ring, tags)
    pairs.export_prefix(tails, index, lanes, vectors, lanes.counts, lanes.slots, 1)
    none = torch.zeros(count, dtype=torch.int64)
    state = DeviceState(1, 16, 8, torch.device("cpu"))
    task = DeviceTask(none, none, none, none, none, lanes.tables, torch.zeros(count, 2), state)
    for depth in range(2):
        pairs.proposed_pairs(norms, tails, task, depth, (vectors, none))
