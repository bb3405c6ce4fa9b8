"""Compiles what a round launches for a GPU that need not be there: python -m tests.gpu.compile_kernels CAPABILITY

A process of its own, since elsewhere in the suite Triton interprets. Prints a line for each kernel compiled. Launches
are replaced by compilation alone; shapes are those of the tiny models, and SmolLM2's own for one layer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver, jit

import recipes.components.gpu.attention as attention
import recipes.components.gpu.linear as linear
import recipes.components.gpu.ngrams as ngrams
import recipes.components.gpu.recurrence as recurrence
import recipes.components.gpu.rows as rows
import recipes.components.gpu.selection as selection
import recipes.components.gpu.streams as streams
from recipes.components.device_model import DeviceRows
from recipes.components.hyperconnection import Mixer
from recipes.components.indexed_attention import Indexer
from recipes.components.paged_attention import Heads
from recipes.smollm2.architecture import Architecture
from recipes.smollm2.device_target import DeviceTarget
from recipes.smollm2.device_weights import random_device_weights
from tests.gpu.compile_decode import decode
from tests.gpu.compile_packed import packed_layers
from tests.gpu.compile_pairs import draft_pairs
from tests.gpu.compile_rounds import rounds
from tests.gpu.compile_tables import behind_mailbox

SMOLLM2 = Architecture(256, 576, 1, 9, 3, 64, 1536, 512, 1e5, 1e-5, True)


class AbsentCard:
    """As much of a Triton driver as compilation asks for."""

    def __init__(self, capability: int) -> None:
        self._target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def compile_only(kernel: Any, grid: Any) -> Callable[..., None]:
    """What `kernel[grid]` becomes."""

    def launch(*arguments: Any, **options: Any) -> None:
        compiled = kernel.run(*arguments, grid=grid, warmup=True, **options)
        print(f"{kernel.__name__} {compiled.metadata.target.arch} {compiled.metadata.shared}")

    return launch


def idle_rows(lanes: int, width: int) -> DeviceRows:
    nothing = torch.zeros(lanes, dtype=torch.int64)
    tokens = torch.zeros(lanes * width, dtype=torch.int64)
    return DeviceRows(tokens, nothing, nothing, nothing, torch.zeros(lanes, 8, dtype=torch.int32), width)


def smollm2() -> None:
    """Rounds of one row, of several lanes and rows, and a prompt chunk."""
    weights = random_device_weights(SMOLLM2, "int8", torch.device("cpu"), torch.bfloat16)
    target = DeviceTarget(SMOLLM2, weights, 4, 16, 64)
    for lanes, width in ((1, 1), (4, 8), (1, 64)):
        target.forward(idle_rows(lanes, width))


def recurrent_kinds(lanes: DeviceRows) -> None:
    """What chunks of a gated delta net take, and the n-gram layer, in the sizes of Qwen3.8-Flash-Next."""
    count, channels = len(lanes.tokens), 2 * 16 * 128 + 48 * 128
    inputs, taps = torch.zeros(count, channels, dtype=torch.bfloat16), torch.zeros(channels, 4)
    pool, outputs = torch.zeros(2, 3, channels), torch.zeros(count, 48, 128, dtype=torch.bfloat16)
    recurrence.convolve(pool, inputs, taps, lanes)
    recurrence.advance(pool, inputs, lanes, lanes.counts, lanes.slots)
    recurrence.finish(outputs, torch.zeros(count, 48 * 128, dtype=torch.bfloat16), torch.zeros(128), 1e-6)
    numbers = torch.ones(16, dtype=torch.int64)
    hashed = ngrams.DeviceHash(torch.ones(3, dtype=torch.int64), numbers, numbers, 3)
    ids = ngrams.ngram_ids(torch.zeros(2, 2, dtype=torch.int64), hashed, lanes)
    ngrams.gather_rows(torch.zeros(4, 96, dtype=torch.uint8), torch.ones(1), ids, 160, torch.bfloat16)


def wide_kinds(lanes: DeviceRows) -> None:
    """Hyperconnections, in the sizes of Qwen3.8-Flash-Next."""
    count, hidden = len(lanes.tokens), 2560
    wide = torch.zeros(4 * hidden)
    mixer = Mixer(wide, torch.zeros(320, 4 * hidden), torch.zeros(4 * hidden, 320), torch.zeros(4, 4 * hidden), 4, 1e-6)
    state = torch.zeros(count, 4 * hidden, dtype=torch.bfloat16)
    mixed, strengths = streams.mix(streams.DeviceMixer.of(mixer, torch.bfloat16), state, torch.bfloat16)
    streams.feed(state, strengths, mixed)


def sparse_attention(lanes: DeviceRows) -> None:
    """Indexer, choice and attention, in the sizes of Qwen3.8-Flash-Next but for the length of the context."""
    indexer = Indexer(heads=4, size=128, ratio=4, budget=512, rotary=64, theta=1e7, epsilon=1e-6)
    heads, count = Heads(24, 2, 256), len(lanes.tokens)
    _, placed = rows.open_rows(lanes, torch.zeros(16, 8, dtype=torch.bfloat16))
    turns = selection.half_turns(indexer, 64)
    state = selection.IndexState(
        torch.zeros(2, 12, 128, dtype=torch.bfloat16),
        torch.zeros(2, 12, dtype=torch.int64),
        torch.zeros(64, 128, dtype=torch.bfloat16),
        torch.zeros(len(lanes.slots), dtype=torch.int32),
    )
    raw, weight = torch.zeros(count, 128, dtype=torch.bfloat16), torch.zeros(256)
    pages = torch.zeros(2, 2, 2, 64, 256, dtype=torch.bfloat16)
    projected = torch.zeros(count, 24 * 512, dtype=torch.bfloat16)
    queries = selection.turn_heads(projected, weight, turns, placed, indexer, 24, 256, 512)
    half = torch.zeros(count, 512, dtype=torch.bfloat16)
    selection.store_state(half, half, weight, turns, placed, indexer, heads, pages)
    selection.compress(raw, weight, turns, state, lanes, indexer)
    selection.keep_ring(state, lanes, lanes.counts, lanes.slots)
    index_queries = selection.turn_heads(half, weight, turns, placed, indexer, 4, 128, 128)
    chosen = selection.select(index_queries, state, placed, indexer)
    selection.attend_chosen(queries, projected, pages, placed, chosen, indexer, heads)


def main(capability: int) -> None:
    driver.set_active(AbsentCard(capability))
    jit.JITFunction.__getitem__ = compile_only
    for module in (attention, linear, ngrams, recurrence, rows, selection, streams):
        module.runs_triton = lambda tensor: True  # type: ignore[attr-defined]
    for module in (attention, linear, rows, streams):
        module.chained = lambda tensor: True  # type: ignore[attr-defined]
    smollm2()
    lanes = idle_rows(1, 4)
    recurrent_kinds(lanes)
    wide_kinds(lanes)
    packed_layers()
    decode(lanes)
    behind_mailbox(lanes)
    draft_pairs(lanes)
    sparse_attention(DeviceRows(lanes.tokens, lanes.slots, lanes.first, lanes.counts, lanes.tables.repeat(1, 8), 4))
    rounds()


if __name__ == "__main__":
    main(int(sys.argv[1]))
