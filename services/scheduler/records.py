"""Reads a completion frame: one record a slot, checked against the round it should be of. Pure over its views.

A record that is not current is counted by the caller and ignored; never an assertion (architecture.md, section 3).
"""

from __future__ import annotations

from operator import itemgetter

import msgspec

from services.scheduler.requests import Request
from shared.errors import ContractBreach, StaleRecord
from shared.frames import METADATA, ROW_TOKENS, TOP_LOGPROBS, CompletionFrame, Fault, Meta, Source, Status
from shared.messages.common import TokenLogprobs

_IDENTITY = itemgetter(Meta.SLOT, Meta.EPOCH, Meta.REQUEST, Meta.SEQUENCE)
_VALUES = itemgetter(
    Meta.CONSUMED, Meta.GENERATED, Meta.STATUS, Meta.EMITTED, Meta.OFFERED, Meta.ACCEPTED, Meta.COPIED, Meta.SOURCES,
    Meta.WIDTH, Meta.FAULTS,
)  # fmt: skip
_STATUS = {int(status): status for status in Status}
_PLAIN_SOURCES = {int(source): source for source in (Source.NONE, *Source)}
_SOUND = Fault.NONE
"""Enumerations by number: to call them takes longer than the rest of a record."""


class Record(msgspec.Struct, frozen=True):
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
        if _IDENTITY(row) != (request.slot, request.epoch, request.number, self._sequence):
            raise StaleRecord(f"slot {request.slot} holds no record of round {self._sequence} for this request")
        consumed, generated, status, emitted, offered, accepted, copied, sources, width, faults = _VALUES(row)
        if not 0 <= emitted <= ROW_TOKENS:
            raise StaleRecord(f"a record of {emitted} tokens")
        if status not in _STATUS:
            raise StaleRecord(f"a record of status {status}")
        found = _PLAIN_SOURCES.get(sources)
        return Record(
            consumed,
            generated,
            _STATUS[status],
            offered,
            accepted,
            copied,
            Source(sources) if found is None else found,
            width,
            Fault(faults) if faults else _SOUND,
            tuple(row[METADATA : METADATA + emitted]),
        )

    def logprobs(self, slot: int, count: int, alternatives: int) -> tuple[TokenLogprobs, ...]:
        """Raw log probabilities of the first `count` tokens, each with its `alternatives` most likely ones."""
        return self._told(slice(slot * ROW_TOKENS, slot * ROW_TOKENS + count), alternatives)

    def scores(self, count: int, alternatives: int) -> tuple[TokenLogprobs, ...]:
        """The same of the `count` rows of a scored chunk."""
        return self._told(slice(count), alternatives)

    def _told(self, rows: slice, alternatives: int) -> tuple[TokenLogprobs, ...]:
        if not 0 <= alternatives <= TOP_LOGPROBS:
            raise ContractBreach(f"{alternatives} alternatives are not in a frame")
        frame = self._frame
        chosen = frame.logprobs.reshape(-1)[rows].tolist()
        ids = frame.top_ids.reshape(-1, TOP_LOGPROBS)[rows, :alternatives].tolist()
        values = frame.top_logprobs.reshape(-1, TOP_LOGPROBS)[rows, :alternatives].tolist()
        return tuple(
            TokenLogprobs(logprob=logprob, top=tuple(zip(row_ids, row_values, strict=True)))
            for logprob, row_ids, row_values in zip(chosen, ids, values, strict=True)
        )
