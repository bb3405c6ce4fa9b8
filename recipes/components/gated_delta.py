"""The gated delta rule, row by row and in chunks: S <- d S; S <- S + k (beta (v - S^T k))^T; o = S^T q.

Runs in the worker on the CPU, float32. The row path leaves one record a row, from which `gdn_recovery` rebuilds the
state after any prefix; the chunked path is for prompts, whose rows are all kept. Queries and keys come normalised and
scaled.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

CHUNK = 32
"""Rows of one chunk. Decays inside a chunk multiply: longer ones would lose small products."""


@dataclass(frozen=True, slots=True)
class DeltaRows:
    """Inputs of R rows, HV value heads: `queries`, `keys` [R, HV, K]; `values` [R, HV, V]; `decays`, `betas` [R, HV].

    Key heads are repeated for their value heads already. `decays` lie in (0, 1].
    """

    queries: Tensor
    keys: Tensor
    values: Tensor
    decays: Tensor
    betas: Tensor


@dataclass(frozen=True, slots=True)
class Corrections:
    """What each row added: `keys` [R, HV, K], `values` [R, HV, V] = beta (v - S^T k), `decays` [R, HV]."""

    keys: Tensor
    values: Tensor
    decays: Tensor


def delta_rows(state: Tensor, rows: DeltaRows) -> tuple[Tensor, Corrections]:
    """Outputs [R, HV, V] and the records of R rows after `state` [HV, K, V], which stays as it is."""
    outputs, corrections = [], []
    for row in range(len(rows.keys)):
        key = rows.keys[row].unsqueeze(-1)
        state = state * rows.decays[row][:, None, None]
        correction = rows.betas[row].unsqueeze(-1) * (rows.values[row] - (state * key).sum(1))
        state = state + key * correction.unsqueeze(1)
        outputs.append((state * rows.queries[row].unsqueeze(-1)).sum(1))
        corrections.append(correction)
    return torch.stack(outputs), Corrections(rows.keys, torch.stack(corrections), rows.decays)


def delta_chunks(state: Tensor, rows: DeltaRows) -> tuple[Tensor, Tensor]:
    """Outputs [R, HV, V] of R rows after `state` [HV, K, V], and the state after them."""
    outputs = []
    for start in range(0, len(rows.keys), CHUNK):
        piece = slice(start, start + CHUNK)
        part = DeltaRows(*(t[piece].transpose(0, 1) for t in _tensors(rows)))
        output, state = _chunk(state, part)
        outputs.append(output.transpose(0, 1))
    return torch.cat(outputs), state


def _tensors(rows: DeltaRows) -> tuple[Tensor, ...]:
    return rows.queries, rows.keys, rows.values, rows.decays, rows.betas


def _chunk(state: Tensor, rows: DeltaRows) -> tuple[Tensor, Tensor]:
    """One chunk, heads first: [HV, C, ...]. The corrections of its rows solve one triangular system a head.

    With D_i the product of decays up to row i: u_i = beta_i (v_i - D_i S^T k_i - sum_{j<i} D_i/D_j (k_i.k_j) u_j).
    """
    logs = rows.decays.clamp(min=torch.finfo(torch.float32).tiny).log().cumsum(1)
    inherited = logs.exp().unsqueeze(-1)
    between = (logs.unsqueeze(-1) - logs.unsqueeze(-2)).tril().exp().tril()
    betas = rows.betas.unsqueeze(-1)
    system = betas * between.tril(-1) * (rows.keys @ rows.keys.transpose(1, 2))
    system = system + torch.eye(rows.keys.shape[1], dtype=system.dtype)
    wanted = betas * (rows.values - inherited * (rows.keys @ state))
    corrections = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True)
    scores = between * (rows.queries @ rows.keys.transpose(1, 2))
    outputs = inherited * (rows.queries @ state) + scores @ corrections
    remaining = (logs[:, -1:] - logs).exp().unsqueeze(-1)
    following = state * inherited[:, -1:] + (rows.keys * remaining).transpose(1, 2) @ corrections
    return outputs, following
