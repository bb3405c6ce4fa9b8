"""What each row of a round says: target law and ordinary draw of all rows, in one kernel where Triton is at hand.

Runs in the worker. On a CPU, and for rounds with learned drafts, whose acceptance needs the law itself, it is the
reference of `device_law.py` and `device_acceptance.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from recipes.components.device_acceptance import Candidates, row_tokens
from recipes.components.device_law import adjusted_rows, row_laws
from recipes.components.device_state import DeviceState, Word
from recipes.components.gpu.launch import power_above, runs_triton

_BLOCK, _WARPS = 8192, 16
"""A row is read in few steps, each with many loads under way: one program waits for all of them."""
_COLUMNS = 128
"""Columns whose best tokens bound the k-th best of a row, for a k up to their number."""
_FEWEST = 64
"""Tokens that are compared each with each."""
_CAPACITY = 2048
"""Tokens that the kernel sorts; where more may pass its filters, it searches the whole row."""


def say_rows(found: Candidates, logits: Tensor, state: DeviceState) -> tuple[Tensor, Tensor]:
    """(tokens int64, finite bool) [B, W] of raw logits float32 [B * W, V]: what each row says if it is reached."""
    if found.law is not None or not runs_triton(logits):
        return _say_rows(found, logits, state)
    from recipes.components.gpu.sampling_kernels import draw_rows

    lanes, width, device = len(found.rows), found.drafts.shape[1] + 1, logits.device
    count, vocab = logits.shape
    block, capacity = min(_BLOCK, power_above(vocab)), min(_CAPACITY, power_above(vocab))
    columns, fewest = min(_COLUMNS, block), min(_FEWEST, capacity)
    tokens = torch.empty(count, dtype=torch.int64, device=device)
    finite = torch.empty(count, dtype=torch.uint8, device=device)
    adjusted = torch.empty(count, vocab, device=device)
    gathered = torch.empty(count, capacity, dtype=torch.int64, device=device)
    counters = torch.empty(count, dtype=torch.int32, device=device)
    draw_rows[(count,)](
        logits, state.words, state.floats, state.end_ids, state.bias_ids, state.bias_values,
        state.seen.view(torch.uint8), state.counts, found.rows, found.live.view(torch.uint8), found.first.contiguous(),
        found.offered.contiguous(), found.drafts.contiguous(), adjusted, gathered, counters, tokens, finite, width,
        vocab, block, columns, fewest, capacity, num_warps=_WARPS, enable_fp_fusion=False,
    )  # fmt: skip
    return tokens.view(lanes, width), finite.view(torch.bool).view(lanes, width)


def _say_rows(found: Candidates, logits: Tensor, state: DeviceState) -> tuple[Tensor, Tensor]:
    lanes, ahead = found.drafts.shape
    width = ahead + 1
    rows = found.rows.repeat_interleave(width)
    steps = torch.arange(width, device=rows.device)
    prefix = torch.where(steps[:ahead] < steps[:, None], found.drafts[:, None], -1)
    emitted = state.words[found.rows, Word.GENERATED, None] + steps
    changed = adjusted_rows(logits, state, rows, prefix.flatten(0, 1), emitted.flatten())
    laws = row_laws(changed, state, rows)
    return row_tokens(found, laws, state), laws.finite.view(lanes, width)
