"""Reads a completion frame: one record a slot, checked against the round it should be of. Pure over its views.

A record that is not current is counted by the caller and ignored; never an assertion (architecture.md, section 3).
"""

from __future__ import annotations

from dataclasses import dataclass

from services.scheduler.requests import Request
from shared.errors import ContractBreach, StaleRecord
from shared.frames import METADATA, ROW_TOKENS, TOP_LOGPROBS, CompletionFrame, Fault, Meta, Source, Status
from shared.messages.common import TokenLogprobs


@dataclass(frozen=True, slots=True)
class Record:
    """What one round did to one request. `generated` and `consumed` are after it, `width` the rows it verified."""

    consumed: int
    generated: int
    status: Status
    offered: int
    accepted: int
    copied: int
    sources: Source
    width: int
    faults: Fault
    tokens: tuple[int, ...]


class Records:
    """The records of round `sequence`, copied out of its frame. Raises `StaleRecord` for a torn or foreign frame."""

    def __init__(self, frame: CompletionFrame, sequence: int) -> None:
        head, tail = int(frame.head[0]), int(frame.tail[0])
        if head != sequence or tail != sequence:
            raise StaleRecord(f"completion frame of round {sequence} says {head} and {tail}")
        self._frame = frame
        self._sequence = sequence
        self._rows: list[list[int]] = frame.records.tolist()

    def of(self, request: Request) -> Record:
        """Raises `StaleRecord` if the slot's record is of another request, epoch or round, or makes no sense."""
        row = self._rows[request.slot]
        current = (request.slot, request.epoch, request.number, self._sequence)
        if (row[Meta.SLOT], row[Meta.EPOCH], row[Meta.REQUEST], row[Meta.SEQUENCE]) != current:
            raise StaleRecord(f"slot {request.slot} holds no record of round {self._sequence} for this request")
        emitted = row[Meta.EMITTED]
        if not 0 <= emitted <= ROW_TOKENS:
            raise StaleRecord(f"a record of {emitted} tokens")
        try:
            status = Status(row[Meta.STATUS])
        except ValueError as error:
            raise StaleRecord(f"a record of status {row[Meta.STATUS]}") from error
        return Record(
            consumed=row[Meta.CONSUMED],
            generated=row[Meta.GENERATED],
            status=status,
            offered=row[Meta.OFFERED],
            accepted=row[Meta.ACCEPTED],
            copied=row[Meta.COPIED],
            sources=Source(row[Meta.SOURCES]),
            width=row[Meta.WIDTH],
            faults=Fault(row[Meta.FAULTS]),
            tokens=tuple(row[METADATA : METADATA + emitted]),
        )

    def logprobs(self, slot: int, count: int, alternatives: int) -> tuple[TokenLogprobs, ...]:
        """Raw log probabilities of the first `count` tokens, each with its `alternatives` most likely ones."""
        if not 0 <= alternatives <= TOP_LOGPROBS:
            raise ContractBreach(f"{alternatives} alternatives are not in a frame")
        frame = self._frame
        chosen = frame.logprobs[slot, :count].tolist()
        ids = frame.top_ids[slot, :count, :alternatives].tolist()
        values = frame.top_logprobs[slot, :count, :alternatives].tolist()
        return tuple(
            TokenLogprobs(logprob=logprob, top=tuple(zip(row_ids, row_values, strict=True)))
            for logprob, row_ids, row_values in zip(chosen, ids, values, strict=True)
        )
