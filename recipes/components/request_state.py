"""Request state on the device: one row a slot, advanced by captured programs alone.

`consumed` tokens are in the target's state, `pending` is emitted but not consumed and belongs at position `consumed`,
`previous` lies before it. Counts and sampling vectors live here too, because they survive between rounds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recipes.components.target_law import Values, neutral_values
from shared.frames import InitFloat, InitInt, PlanFrame, Status

Ints = NDArray[np.int64]
NOBODY = -1
_UNSIGNED = (1 << 64) - 1


def _row(slots: int, value: int = 0) -> Ints:
    return np.full(slots, value, dtype=np.int64)


@dataclass(slots=True)
class RequestState:
    """S slots, vocabulary V, sampling vectors of H. Integers int64 [S]."""

    slots: int
    vocab_size: int
    hidden_size: int
    epoch: Ints = field(init=False)
    request: Ints = field(init=False)
    consumed: Ints = field(init=False)
    pending: Ints = field(init=False)
    previous: Ints = field(init=False)
    generated: Ints = field(init=False)
    status: Ints = field(init=False)
    draft_cache: Ints = field(init=False)
    budget: Ints = field(init=False)
    prompt_length: Ints = field(init=False)
    top_logprobs: Ints = field(init=False)
    seeds: list[int] = field(init=False)
    values: list[Values] = field(init=False)
    end_ids: list[frozenset[int]] = field(init=False)
    seen: Tensor = field(init=False)
    """bool [S, V]: tokens of the prompt and of what was emitted."""
    counts: Tensor = field(init=False)
    """int32 [S, V]: emitted tokens."""
    vectors: Tensor = field(init=False)
    """float32 [S, H]: the sampling vector of the last consumed row."""

    def __post_init__(self) -> None:
        self.seen = torch.zeros(self.slots, self.vocab_size, dtype=torch.bool)
        self.counts = torch.zeros(self.slots, self.vocab_size, dtype=torch.int32)
        self.vectors = torch.zeros(self.slots, self.hidden_size)
        self.clear()

    def clear(self) -> None:
        """Every slot empty: a new scheduler starts from here."""
        slots = self.slots
        self.epoch, self.request = _row(slots, NOBODY), _row(slots, NOBODY)
        self.consumed, self.pending, self.previous = _row(slots), _row(slots, NOBODY), _row(slots, NOBODY)
        self.generated, self.status, self.draft_cache = _row(slots), _row(slots), _row(slots)
        self.budget, self.prompt_length, self.top_logprobs = _row(slots), _row(slots), _row(slots, -1)
        self.seeds = [0] * slots
        self.values = [neutral_values()] * slots
        self.end_ids = [frozenset()] * slots

    def admit(self, slot: int, plan: PlanFrame) -> None:
        """Resets a slot for the request that the plan's `init_*` fields describe."""
        integers, floats = plan.init_integers, plan.init_floats
        self.epoch[slot], self.request[slot] = plan.init_epoch[0], plan.init_request[0]
        self.consumed[slot] = integers[InitInt.PREFIX]
        self.generated[slot] = self.draft_cache[slot] = 0
        self.pending[slot] = self.previous[slot] = NOBODY
        self.status[slot] = Status.RUNNING
        self.budget[slot] = integers[InitInt.BUDGET]
        self.prompt_length[slot] = integers[InitInt.PROMPT_LENGTH]
        self.top_logprobs[slot] = integers[InitInt.TOP_LOGPROBS]
        self.seeds[slot] = int(integers[InitInt.SEED]) & _UNSIGNED
        ends = tuple(int(token) for token in plan.init_end_ids[: integers[InitInt.END_COUNT]])
        biased = int(integers[InitInt.BIAS_COUNT])
        self.end_ids[slot] = frozenset(ends)
        self.values[slot] = Values(
            temperature=float(floats[InitFloat.TEMPERATURE]),
            top_k=int(integers[InitInt.TOP_K]),
            top_p=float(floats[InitFloat.TOP_P]),
            min_p=float(floats[InitFloat.MIN_P]),
            repetition=float(floats[InitFloat.REPETITION]),
            frequency=float(floats[InitFloat.FREQUENCY]),
            presence=float(floats[InitFloat.PRESENCE]),
            min_tokens=int(integers[InitInt.MIN_TOKENS]),
            end_ids=ends,
            bias_ids=torch.from_numpy(plan.init_bias_ids[:biased].astype(np.int64)),
            bias_values=torch.from_numpy(plan.init_bias_values[:biased].copy()),
        )
        self.seen[slot].zero_()
        self.counts[slot].zero_()

    def note_prompt(self, slot: int, start: int, tokens: Tensor) -> None:
        """Counts a chunk at absolute position `start`: prompt below `prompt_length`, replayed output from there on."""
        if not self.values[slot].penalised:
            return
        self.seen[slot, tokens] = True
        output = tokens[max(0, int(self.prompt_length[slot]) - start) :]
        self.counts[slot].index_add_(0, output, torch.ones(len(output), dtype=torch.int32))

    def emit(self, slot: int, tokens: tuple[int, ...]) -> None:
        """Counts emitted tokens once; rejected drafts never come here."""
        self.generated[slot] += len(tokens)
        if self.values[slot].penalised:
            ids = torch.tensor(tokens)
            self.seen[slot, ids] = True
            self.counts[slot].index_add_(0, ids, torch.ones(len(tokens), dtype=torch.int32))

    def settle(self, slot: int, ended: bool) -> None:
        """Sets the terminal status after an emission: an end token first, then the budget."""
        if ended:
            self.status[slot] = Status.ENDED
        elif self.generated[slot] >= self.budget[slot]:
            self.status[slot] = Status.LENGTH
