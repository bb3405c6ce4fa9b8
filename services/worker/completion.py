"""Completion records: what a round tells the host, written into frame `sequence & 1`.

The frame's head and tail are cleared first and set last, so a reader never takes a half-written frame for a whole one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recipes.components.request_state import NOBODY, RequestState
from shared.frames import METADATA, ROW_TOKENS, TOP_LOGPROBS, CompletionFrame, Fault, Meta, Source, Status


@dataclass(frozen=True, slots=True)
class Emission:
    """What one lane's round did. `width` counts the rows that were verified."""

    tokens: tuple[int, ...] = ()
    offered: int = 0
    accepted: int = 0
    copied: int = 0
    sources: Source = Source.NONE
    width: int = 0
    faults: Fault = Fault.NONE


class Completion:
    """One completion frame while its round runs."""

    def __init__(self, frame: CompletionFrame, state: RequestState, sequence: int) -> None:
        self._frame = frame
        self._state = state
        self._sequence = sequence
        frame.head[0] = frame.tail[0] = NOBODY
        frame.records.fill(0)
        frame.records[:, Meta.SLOT] = NOBODY

    def write(self, slot: int, emission: Emission) -> None:
        """The slot's record, after its state has settled."""
        state, record = self._state, self._frame.records[slot]
        ended = state.status[slot] == Status.ENDED
        record[:METADATA] = (
            slot,
            state.epoch[slot],
            state.request[slot],
            state.consumed[slot],
            state.generated[slot],
            state.generated[slot] - ended,
            state.status[slot],
            len(emission.tokens),
            emission.offered,
            emission.accepted,
            emission.sources,
            state.draft_cache[slot],
            emission.width,
            self._sequence,
            emission.faults,
            emission.copied,
        )
        record[METADATA : METADATA + len(emission.tokens)] = emission.tokens

    def write_logprobs(self, slot: int, row: int, logprob: float, ids: np.ndarray, values: np.ndarray) -> None:
        """Raw log probability of emitted token `row` and its alternatives (ids int, values float), best first.

        Rows of a scored chunk go on from slot 0 over all slots.
        """
        frame, count, at = self._frame, min(len(ids), TOP_LOGPROBS), slot * ROW_TOKENS + row
        frame.logprobs.reshape(-1)[at] = logprob
        frame.top_ids.reshape(-1, TOP_LOGPROBS)[at, :count] = ids[:count]
        frame.top_logprobs.reshape(-1, TOP_LOGPROBS)[at, :count] = values[:count]

    def fail(self, faults: Fault) -> None:
        """A round that did nothing: every slot's record carries the error bits."""
        for slot in range(self._state.slots):
            self.write(slot, Emission(faults=faults))

    def publish(self) -> None:
        """Makes the frame readable."""
        self._frame.tail[0] = self._sequence
        self._frame.head[0] = self._sequence
