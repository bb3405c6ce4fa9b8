"""What the round asks of a model: rows in, sampling vectors out, and a state transaction.

Runs in the worker. A model owns how its state looks; the round owns when it advances. `forward` may write state for
all of its rows, but only `commit` may make any of them reachable (mtp-design.md, "A speculative round is a state
transaction").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from recipes.components.target_law import Values


@dataclass(frozen=True, slots=True)
class Lane:
    """One request's rows in a packed batch: rows `start .. start + count` of `Rows`.

    `first` is the absolute position of its first row (the request's consumed count); `pages` int64 [max_pages] maps
    position // 64 to a page of the pool, valid as far as the lane's rows reach.
    """

    slot: int
    start: int
    count: int
    first: int
    pages: Tensor


@dataclass(frozen=True, slots=True)
class Rows:
    """A packed batch: `tokens` int64 [R], `positions` int64 [R], lanes in row order, no padding."""

    tokens: Tensor
    positions: Tensor
    lanes: tuple[Lane, ...]


@dataclass(frozen=True, slots=True)
class StateBytes:
    """One line of the memory bill: what it is for and how many bytes it takes."""

    name: str
    nbytes: int


class Model(Protocol):
    """A target model bound to its state. All tensors live on the worker's device."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def hidden_size(self) -> int: ...

    def forward(self, rows: Rows) -> Tensor:
        """Sampling vectors float32 [R, hidden_size]; each row sees exactly its own causal prefix.

        Writes key/value rows and candidate recurrent states of every row, none of them committed.
        """
        ...

    def logits(self, vectors: Tensor) -> Tensor:
        """Raw logits float32 [n, vocab_size] of sampling vectors [n, hidden_size]."""
        ...

    def commit(self, lane: Lane, kept: int) -> None:
        """Selects the state after the lane's first `kept` rows (0 <= kept <= lane.count) as committed state."""
        ...

    def reset(self, slot: int) -> None:
        """Empties the slot's recurrent state before a new request uses it."""
        ...

    def adopt(self, slot: int, consumed: int) -> None:
        """The empty slot goes on behind `consumed` tokens that its pages hold already.

        Raises `ContractBreach` where pages alone do not continue a prefix.
        """
        ...

    def snapshot(self, slot: int, target: int) -> None:
        """Copies the slot's committed state, pages aside, into snapshot row `target`."""
        ...

    def export(self, lane: Lane, kept: int, target: int) -> None:
        """Like `snapshot`, of the state after the lane's first `kept` rows; called before `commit`."""
        ...

    def restore(self, source: int, slot: int) -> None:
        """Copies snapshot row `source` into the slot's committed state."""
        ...


@dataclass(frozen=True, slots=True)
class Proposal:
    """Learned drafts of one lane: `tokens` int64 [k] and the law each was drawn from, `law` float32 [k, vocab_size]."""

    tokens: Tensor
    law: Tensor


@dataclass(frozen=True, slots=True)
class DraftTask:
    """What one lane asks of a drafter: at most `limit` drafts after `pending`, the token at position `consumed`.

    `pages` as in `Lane`, valid for positions below consumed + limit + 1; `draws` float32 [limit] are this round's
    uniforms of the draft domain; `values` the request's sampling values, which a drafter may shape its law by.
    """

    slot: int
    consumed: int
    pending: int
    limit: int
    pages: Tensor
    draws: Tensor
    values: Values


class Drafter(Protocol):
    """A learned drafter. It proposes from its own cache, and absorbs committed history only."""

    def propose(self, task: DraftTask) -> Proposal:
        """Drafts and the law of each. What this writes is not committed."""
        ...

    def absorb(self, lane: Lane, tokens: Tensor, vectors: Tensor, kept: int) -> None:
        """Takes the lane's first `kept` inputs, with their sampling vectors [count, hidden_size], into its cache."""
        ...

    def reset(self, slot: int) -> None:
        """Empties the slot's draft cache."""
        ...

    def snapshot(self, slot: int, target: int) -> None:
        """Copies the slot's committed draft state, pages aside, into snapshot row `target`."""
        ...

    def export(self, lane: Lane, vectors: Tensor, kept: int, target: int) -> None:
        """Like `snapshot`, of the prefix that ends with the lane's first `kept` rows; called after `absorb`."""
        ...

    def restore(self, source: int, slot: int) -> None:
        """Copies snapshot row `source` into the slot's draft state."""
        ...


def rows_of(tokens: Tensor, lanes: tuple[Lane, ...]) -> Rows:
    """Packs lanes, whose rows are `tokens` int64 [R] in order, with their absolute positions."""
    parts = [torch.arange(lane.first, lane.first + lane.count, dtype=torch.int64) for lane in lanes]
    positions = torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64)
    return Rows(tokens=tokens, positions=positions.to(tokens.device), lanes=lanes)
