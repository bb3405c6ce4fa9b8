"""Compiles operators for prompt chunks as compile_kernels.py does: python -m tests.gpu.compile_chunks CAPABILITY

In the sizes of Qwen3.8-Flash-Next, but for the length of contexts and the number of experts.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor
from triton.runtime import driver, jit

import recipes.components.gpu.chunk_attention as chunk_attention
import recipes.components.gpu.chunk_recurrence as chunk_recurrence
import recipes.components.gpu.delta_prefill as delta_prefill
import recipes.components.gpu.grouped_experts as grouped
import recipes.components.gpu.recurrence as recurrence
import recipes.components.gpu.selection as selection
from recipes.components.device_model import DeviceRows
from recipes.components.gpu.experts import PackedExperts
from recipes.components.gpu.rows import open_rows
from recipes.components.paged_attention import Heads
from tests.gpu.compile_decode import DELTA, INDEXER
from tests.gpu.compile_kernels import AbsentCard, compile_only, idle_rows


def prompt_chunks(rows: DeviceRows, capability: int) -> None:
    """The gated delta rule, choice and attention of near and far rows, experts of few and of many rows each."""
    for module in (chunk_attention, delta_prefill):
        module.__dict__["roomy"] = lambda tensor: capability == 90
    for module in (chunk_recurrence, grouped, recurrence, selection):
        module.__dict__["runs_triton"] = lambda tensor: True
    delta_rule(rows)
    tables = rows.tables[:, :1].repeat(1, 128)
    sparse_attention(DeviceRows(rows.tokens, rows.slots, rows.first, rows.counts, tables, rows.width))
    for each in (1, 128):
        sorted_experts(each)


def _drawn(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.bfloat16)


def delta_rule(rows: DeviceRows) -> None:
    """One layer."""
    count = len(rows.tokens)
    gates = recurrence.DeltaGates(torch.zeros(48), torch.zeros(48))
    projected, channels = _drawn(count, 16480), 2 * 16 * 128 + 48 * 128
    inputs, thin = projected[:, :channels], projected[:, -48:]
    tails, taps = _drawn(3 * len(rows.slots), channels), _drawn(channels, 4)
    mixed = chunk_recurrence.convolve_chunk(_drawn(2, 3, channels), inputs, taps, rows, tails)
    recurrence.delta(torch.zeros(2, 48, 128, 128), mixed, thin, thin, gates, rows, DELTA)


def sparse_attention(rows: DeviceRows) -> None:
    """One layer, in a context that some rows see more of than they can choose."""
    count = len(rows.tokens)
    placed, nothing = open_rows(rows, _drawn(16, 8))[1], torch.zeros(0)
    state = selection.IndexState(nothing, nothing, _drawn(64, 128), nothing)
    chosen = selection.select(_drawn(count, 4, 128), state, placed, INDEXER)
    pages, projected = _drawn(2, 2, 2, 64, 256), _drawn(count, 24 * 512 + 64)[:, : 24 * 512]
    heads = Heads(24, 2, 256)
    selection.attend_chosen(_drawn(count, 24, 256), projected, pages, placed, chosen, INDEXER, heads)
    chunk_attention._SPLITS = ((count, 4, 2),)  # as of fewer rows
    selection.attend_chosen(_drawn(count, 24, 256), projected, pages, placed, chosen, INDEXER, heads)


def sorted_experts(each: int) -> None:
    """Two experts, to which `each` rows go on the average."""
    hidden, inner, count = 2560, 640, 2 * each

    def packed(outputs: int, inputs: int) -> tuple[Tensor, Tensor]:
        values, scales = (torch.zeros(2, outputs, inputs // part, dtype=torch.uint8) for part in (2, 16))
        return values, scales

    held = PackedExperts(*packed(2 * inner, hidden), torch.ones(2, 2), *packed(hidden, inner), torch.ones(2), top=1)
    x, chosen = _drawn(count, hidden), torch.zeros(count, 1, dtype=torch.int32)
    grouped.grouped_mixture(x, held, torch.ones(count, 1), chosen, x, torch.zeros(count))


if __name__ == "__main__":
    driver.set_active(AbsentCard(int(sys.argv[1])))
    jit.JITFunction.__getitem__ = compile_only
    prompt_chunks(idle_rows(1, 1024), int(sys.argv[1]))
