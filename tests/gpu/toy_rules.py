"""The toy's law on the host: a model of integers whose every state can be compared exactly with the device's.

State is eight 64-bit words, s' = s * DECAY + token * (2j + 1) + j, and the model always continues with `choose(state)`.
No torch here: the process that plays the scheduler imports this.
"""

from __future__ import annotations

from dataclasses import dataclass

from recipes.components.copies import continuation_slice
from shared.frames import METADATA, ROW_TOKENS, Fault, Meta, Source

WORDS = 8
DECAY = 6364136223846793005
VOCABULARY = 512
_MASK = (1 << 64) - 1

State = tuple[int, ...]


def absorb(state: State, token: int) -> State:
    """The state after one more consumed token."""
    return tuple((word * DECAY + token * (2 * j + 1) + j) & _MASK for j, word in enumerate(state))


def choose(state: State) -> int:
    """The model's next token."""
    return (sum(word * (2 * j + 3) for j, word in enumerate(state)) & _MASK) >> 33 & (VOCABULARY - 1)


def signed(word: int) -> int:
    """A 64-bit word as the int64 that a tensor holds."""
    return word - (1 << 64) if word >> 63 else word


@dataclass(frozen=True, slots=True)
class Slot:
    """One request as the device holds it."""

    epoch: int
    request: int
    consumed: int
    generated: int
    previous: int
    pending: int
    state: State


@dataclass(frozen=True, slots=True)
class Lane:
    """One lane of a plan. `tokens[i]` belongs at absolute position `anchor + i`."""

    slot: int
    epoch: int
    request: int
    ceiling: int = ROW_TOKENS
    anchor: int = 0
    tokens: tuple[int, ...] = ()
    source: Source = Source.HISTORY
    export_slot: int = -1
    export_boundary: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a lane's round leaves: the slot afterwards, its record, and the state at the boundary if it was reached."""

    slot: Slot
    record: tuple[int, ...]
    exported: State | None = None


def first_slot(index: int) -> Slot:
    """The slot that worker and scheduler both start from: three prompt tokens consumed, one pending."""
    state, token = (0,) * WORDS, 0
    for token in (index + 1, index + 2, index + 3):
        state = absorb(state, token)
    return Slot(1000 + index, 2000 + index, 3, 1, token, choose(state), state)


def continuation(slot: Slot, count: int) -> tuple[int, ...]:
    """`previous`, `pending` and what the model will say after them: `count` tokens, from position consumed - 1."""
    tokens, state = [slot.previous, slot.pending], slot.state
    while len(tokens) < count:
        state = absorb(state, tokens[-1])
        tokens.append(choose(state))
    return tuple(tokens[:count])


def step(slots: list[Slot], lane: Lane, sequence: int) -> Outcome | None:
    """One lane's round, slots unchanged. None: there is no row for a record (a slot that does not exist)."""
    if not 0 <= lane.slot < len(slots):
        return None
    old = slots[lane.slot]
    if (lane.epoch, lane.request) != (old.epoch, old.request):
        return Outcome(old, record(lane.slot, old, sequence, faults=Fault.STALE_EPOCH))
    drafts = continuation_slice(
        lane.tokens, lane.anchor, old.consumed, old.previous, old.pending, min(lane.ceiling, ROW_TOKENS) - 1
    )
    state, emitted, exported = old.state, [], None
    inputs = (old.pending, *drafts)
    for row, token in enumerate(inputs):
        state = absorb(state, token)
        emitted.append(choose(state))
        if lane.export_slot >= 0 and lane.export_boundary == old.consumed + row + 1:
            exported = state
        if inputs[row + 1 : row + 2] != (emitted[-1],):
            break
    count = len(emitted)
    slot = Slot(
        old.epoch, old.request, old.consumed + count, old.generated + count, inputs[count - 1], emitted[-1], state
    )
    source = lane.source if drafts else Source.NONE
    return Outcome(slot, record(lane.slot, slot, sequence, emitted, len(drafts), source), exported)


def record(
    index: int,
    slot: Slot,
    sequence: int,
    emitted: list[int] | None = None,
    offered: int = 0,
    source: Source = Source.NONE,
    faults: Fault = Fault.NONE,
) -> tuple[int, ...]:
    """The record of a slot whose state has settled. Nothing emitted: a round that did nothing."""
    tokens = emitted or []
    row = [0] * (METADATA + ROW_TOKENS)
    row[Meta.SLOT], row[Meta.EPOCH], row[Meta.REQUEST] = index, slot.epoch, slot.request
    row[Meta.CONSUMED], row[Meta.GENERATED], row[Meta.VISIBLE] = slot.consumed, slot.generated, slot.generated
    row[Meta.EMITTED], row[Meta.OFFERED], row[Meta.SOURCES] = len(tokens), offered, source
    row[Meta.ACCEPTED] = row[Meta.COPIED] = max(len(tokens) - 1, 0)
    row[Meta.DRAFT_CACHE] = slot.consumed - 1
    row[Meta.WIDTH] = offered + 1 if tokens else 0
    row[Meta.SEQUENCE], row[Meta.FAULTS] = sequence, faults
    row[METADATA : METADATA + len(tokens)] = tokens
    return tuple(row)


EMPTY_RECORD = (-1,) + (0,) * (METADATA + ROW_TOKENS - 1)
"""The row of a slot that the plan does not name."""
