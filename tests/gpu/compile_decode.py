"""Decode rounds of Qwen3.8-Flash-Next for compile_kernels.py: a delta net and a sparse-attention layer at full size."""

from __future__ import annotations

from dataclasses import replace

import torch

from recipes.components.device_model import DeviceRows
from recipes.components.gpu import head_rows, recurrence, rows, selection, verified_delta
from recipes.components.indexed_attention import Indexer
from recipes.components.paged_attention import Heads

INDEXER = Indexer(heads=4, size=128, ratio=4, budget=512, rotary=64, theta=1e7, epsilon=1e-6)
DELTA = recurrence.DeltaShape(key_heads=16, value_heads=48, key=128, value=128)
CHANNELS, LAYERS = 2 * 16 * 128 + 48 * 128, 2


def gated_delta_net(lanes: DeviceRows) -> None:
    """One layer of a round, and the commit of two layers at once."""
    count = len(lanes.tokens)
    projected = torch.zeros(LAYERS, count, CHANNELS + 48 * 128 + 96, dtype=torch.bfloat16)
    records = recurrence.Records(
        torch.zeros(LAYERS, count, 16, 128), torch.zeros(LAYERS, count, 48, 128), torch.zeros(LAYERS, count, 48),
        torch.zeros(0),
    )  # fmt: skip
    matrices = torch.zeros(LAYERS, 2, 48, 128, 128)
    histories = torch.zeros(LAYERS, 2, 3, CHANNELS, dtype=torch.bfloat16)
    gates = recurrence.DeltaGates(torch.zeros(48), torch.zeros(48))
    net = verified_delta.DeltaNet(torch.zeros(CHANNELS, 4), gates, torch.zeros(128), 1e-6)
    state = verified_delta.DeltaState(matrices[0], histories[0])
    verified_delta.verified_delta(net, state, projected[0], lanes, DELTA, records.layer(0))
    recurrence.recover(matrices, records, lanes, lanes.counts, lanes.slots, DELTA)
    recurrence.advance(histories, projected, lanes, lanes.counts, lanes.slots)


def sparse_attention(lanes: DeviceRows) -> None:
    """One layer, in a context of 65,536 tokens and more, whose choice is made in two steps."""
    long = DeviceRows(
        lanes.tokens, lanes.slots, lanes.first, lanes.counts, lanes.tables[:, :1].repeat(1, 1030), lanes.width
    )
    heads, count = Heads(24, 2, 256), len(lanes.tokens)
    _, placed = rows.open_rows(long, torch.zeros(16, 8, dtype=torch.bfloat16))
    shape = head_rows.HeadShape(heads, INDEXER)
    index = selection.IndexState(
        torch.zeros(2, 12, 128, dtype=torch.bfloat16), torch.zeros(2, 12, dtype=torch.int64),
        torch.zeros(64, 128, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.int32),
    )  # fmt: skip
    state = head_rows.SparseState(torch.zeros(2, 2, 2, 64, 256, dtype=torch.bfloat16), index)
    norms = head_rows.HeadNorms(torch.zeros(256), torch.zeros(256), torch.zeros(128), torch.zeros(128))
    projected, turns = torch.zeros(count, sum(shape.sizes), dtype=torch.bfloat16), torch.zeros(64, 64)
    queries, index_queries = head_rows.place_heads(projected, norms, turns, state, long, placed, shape)
    head_rows.keep_heads(projected[:, shape.kept :].contiguous(), norms, turns, state, long, placed, shape)
    chosen = selection.select(index_queries, index, placed, INDEXER)
    # So short that all groups are within the budget, and nothing has a score.
    selection.select(index_queries, index, replace(placed, tables=placed.tables[:, :32].contiguous()), INDEXER)
    selection.attend_chosen(queries, projected, state.pages, placed, chosen, INDEXER, heads)
    selection.keep_rings(index.ring[None], index.tags[None], long, long.counts, long.slots)


def decode(lanes: DeviceRows) -> None:
    """All of it, for cards whose kernels follow one another early."""
    for module in (head_rows, recurrence, rows, selection, verified_delta):
        module.__dict__["runs_triton"] = lambda tensor: True
        module.__dict__["chained"] = lambda tensor: True
    gated_delta_net(lanes)
    sparse_attention(lanes)
