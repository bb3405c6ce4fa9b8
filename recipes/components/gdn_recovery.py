"""Compact recovery of a gated delta state: one committed matrix and a record a row, instead of a matrix a row.

Runs in the worker. A round of up to eight rows leaves keys, corrections and decays; commit replays the accepted
prefix into the live matrix (mtp-design.md, "Available operator contracts"). `checkpoint_columns` is the plain way,
one matrix a row: the reference, and what the records save.
"""

from __future__ import annotations

import torch
from torch import Tensor

from recipes.components.gated_delta import Corrections


def recover(state: Tensor, records: Corrections, kept: int) -> Tensor:
    """The state [HV, K, V] after the first `kept` rows; row by row as the rows were computed, so that it is equal."""
    for row in range(kept):
        state = state * records.decays[row][:, None, None]
        state = state + records.keys[row].unsqueeze(-1) * records.values[row].unsqueeze(1)
    return state


def checkpoint_columns(state: Tensor, records: Corrections) -> Tensor:
    """The state after 0, 1, ..., R rows: [R + 1, HV, K, V]."""
    return torch.stack([recover(state, records, kept) for kept in range(len(records.keys) + 1)])
