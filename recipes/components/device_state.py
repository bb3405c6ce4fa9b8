"""Request state as tensors: one row a slot and one more that padding lanes write to; advanced by captured rounds alone.

The device's form of `request_state.py`, whose rules it keeps. Every write goes to row `slot`, or to the last row where
there is no slot to write to, so that no shape and no branch depends on a value.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor

from recipes.components.device_philox import stream_keys
from recipes.components.request_state import NOBODY
from shared.frames import MAXIMUM_BIAS, MAXIMUM_END_IDS, InitFloat, InitInt, Status


class Word(IntEnum):
    """Columns of `DeviceState.words`, int64."""

    EPOCH = 0
    REQUEST = 1
    CONSUMED = 2
    PENDING = 3
    PREVIOUS = 4
    GENERATED = 5
    STATUS = 6
    DRAFT_CACHE = 7
    BUDGET = 8
    PROMPT_LENGTH = 9
    TOP_LOGPROBS = 10
    TOP_K = 11
    MIN_TOKENS = 12
    END_COUNT = 13
    BIAS_COUNT = 14
    PENALISED = 15
    DRAFT_KEY = 16
    ACCEPTANCE_KEY = 17
    ORDINARY_KEY = 18


WORDS = 24
FLOATS = 8
"""Columns of a slot's rows, `InitFloat` first among the floats; the rest is padding."""


@dataclass(frozen=True, slots=True)
class Admission:
    """One request as an init plan describes it: tensors of one row each, `slot` int64 [1] already safe to write to."""

    slot: Tensor
    epoch: Tensor
    request: Tensor
    integers: Tensor
    floats: Tensor
    end_ids: Tensor
    bias_ids: Tensor
    bias_values: Tensor


class KernelFields(NamedTuple):
    """What kernels take of `DeviceState`; `seen` is uint8."""

    words: Tensor
    floats: Tensor
    end_ids: Tensor
    bias_ids: Tensor
    bias_values: Tensor
    seen: Tensor
    counts: Tensor


@dataclass(frozen=True, slots=True)
class DeviceState:
    """S slots, vocabulary V, sampling vectors of H; `scratch` is row S. Nothing here is ever allocated anew."""

    slots: int
    vocab_size: int
    hidden_size: int
    device: torch.device
    words: Tensor = field(init=False)
    """int64 [S + 1, WORDS]."""
    floats: Tensor = field(init=False)
    """float32 [S + 1, FLOATS]."""
    end_ids: Tensor = field(init=False)
    """int32 [S + 1, MAXIMUM_END_IDS], -1 beyond the count."""
    bias_ids: Tensor = field(init=False)
    """int32 [S + 1, MAXIMUM_BIAS], V beyond the count."""
    bias_values: Tensor = field(init=False)
    """float32 [S + 1, MAXIMUM_BIAS]."""
    seen: Tensor = field(init=False)
    """bool [S + 1, V]."""
    counts: Tensor = field(init=False)
    """int32 [S + 1, V]."""
    vectors: Tensor = field(init=False)
    """float32 [S + 1, H]: the sampling vector of the last consumed row."""

    def __post_init__(self) -> None:
        rows, device = self.slots + 1, self.device
        made = {
            "words": torch.zeros(rows, WORDS, dtype=torch.int64, device=device),
            "floats": torch.zeros(rows, FLOATS, device=device),
            "end_ids": torch.zeros(rows, MAXIMUM_END_IDS, dtype=torch.int32, device=device),
            "bias_ids": torch.zeros(rows, MAXIMUM_BIAS, dtype=torch.int32, device=device),
            "bias_values": torch.zeros(rows, MAXIMUM_BIAS, device=device),
            "seen": torch.zeros(rows, self.vocab_size, dtype=torch.bool, device=device),
            "counts": torch.zeros(rows, self.vocab_size, dtype=torch.int32, device=device),
            "vectors": torch.zeros(rows, self.hidden_size, device=device),
        }
        for name, tensor in made.items():
            object.__setattr__(self, name, tensor)
        self.clear()

    @property
    def scratch(self) -> int:
        """The row that belongs to nobody."""
        return self.slots

    def fields(self) -> KernelFields:
        """Sampling values and what has been said, as kernels take them."""
        seen = self.seen.view(torch.uint8)
        return KernelFields(self.words, self.floats, self.end_ids, self.bias_ids, self.bias_values, seen, self.counts)

    def clear(self) -> None:
        """Every slot empty: a new scheduler starts from here. Not inside a round."""
        self.words.zero_()
        for column in (Word.EPOCH, Word.REQUEST, Word.PENDING, Word.PREVIOUS, Word.TOP_LOGPROBS):
            self.words[:, column] = NOBODY
        self.floats.zero_()
        self.floats[:, [InitFloat.TEMPERATURE, InitFloat.TOP_P, InitFloat.REPETITION]] = 1.0
        self.end_ids.fill_(NOBODY)
        self.bias_ids.fill_(self.vocab_size)

    def safe(self, slots: Tensor) -> Tensor:
        """Rows to index by: the slot itself, or the scratch row where it is no slot."""
        return torch.where((slots >= 0) & (slots < self.slots), slots, self.slots)

    def admit(self, admission: Admission) -> None:
        """Resets row `admission.slot` for a request."""
        row, integers, floats = admission.slot, admission.integers, admission.floats
        words = torch.zeros(1, WORDS, dtype=torch.int64, device=self.device)
        words[:, Word.EPOCH], words[:, Word.REQUEST] = admission.epoch, admission.request
        words[:, Word.PENDING : Word.PREVIOUS + 1].fill_(NOBODY)
        words[:, Word.STATUS].fill_(int(Status.RUNNING))
        for word, column in _FROM_INIT:
            words[:, word] = integers[column]
        plain = (
            (floats[InitFloat.REPETITION] == 1.0)
            & (floats[InitFloat.FREQUENCY] == 0.0)
            & (floats[InitFloat.PRESENCE] == 0.0)
        )
        words[:, Word.PENALISED] = (~plain).to(torch.int64)
        words[:, Word.DRAFT_KEY : Word.ORDINARY_KEY + 1] = stream_keys(integers[InitInt.SEED : InitInt.SEED + 1])
        self.words.index_copy_(0, row, words)
        self.floats[:, : len(InitFloat)].index_copy_(0, row, floats[None])
        ends = _counted(admission.end_ids, integers[InitInt.END_COUNT], NOBODY)
        self.end_ids.index_copy_(0, row, ends[None])
        biased = _counted(admission.bias_ids, integers[InitInt.BIAS_COUNT], self.vocab_size)
        self.bias_ids.index_copy_(0, row, biased[None])
        self.bias_values.index_copy_(0, row, admission.bias_values[None])
        self.seen.index_fill_(0, row, False)
        self.counts.index_fill_(0, row, 0)

    def note(self, rows: Tensor, tokens: Tensor, mask: Tensor, counted: Tensor) -> None:
        """Marks `tokens` int64 [n] as seen by `rows` where `mask`, and counts those `counted` as emitted."""
        wanted = mask & (self.words[rows, Word.PENALISED] != 0)
        flat = torch.where(wanted, rows, self.scratch) * self.vocab_size + torch.where(wanted, tokens, 0)
        self.seen.view(-1).index_fill_(0, flat, True)
        self.counts.view(-1).index_add_(0, flat, (wanted & counted).to(torch.int32))


_FROM_INIT = (
    (Word.CONSUMED, InitInt.PREFIX),
    (Word.BUDGET, InitInt.BUDGET),
    (Word.PROMPT_LENGTH, InitInt.PROMPT_LENGTH),
    (Word.TOP_LOGPROBS, InitInt.TOP_LOGPROBS),
    (Word.TOP_K, InitInt.TOP_K),
    (Word.MIN_TOKENS, InitInt.MIN_TOKENS),
    (Word.END_COUNT, InitInt.END_COUNT),
    (Word.BIAS_COUNT, InitInt.BIAS_COUNT),
)


def _counted(values: Tensor, count: Tensor, beyond: int) -> Tensor:
    """`values` int32 [n] with `beyond` from `count` on."""
    return torch.where(torch.arange(len(values), device=values.device) < count, values, beyond)
