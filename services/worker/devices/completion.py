"""The completion frame of a captured round: what lanes did is noted in a row a slot, and the round's end publishes it.

Every slot's record is made from its state after the round and its note; a slot that no lane named has an empty one. The
frame's ends are cleared first and set last. Same records as `services/worker/completion.py` writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from recipes.components.device_law import raw_logprobs_rows
from recipes.components.device_state import DeviceState, Word
from recipes.components.gpu.launch import power_above, runs_triton
from services.worker.devices.plan import field_view
from shared.frames import METADATA, ROW_TOKENS, TOP_LOGPROBS, Layout, Meta, Status


class Note(IntEnum):
    """Columns of a slot's note; the emitted tokens follow."""

    WRITTEN = 0
    EMITTED = 1
    OFFERED = 2
    ACCEPTED = 3
    COPIED = 4
    SOURCES = 5
    WIDTH = 6
    FAULTS = 7


NOTE = len(Note) + ROW_TOKENS
_PART = 2048
"""Tokens of a row that one program looks at for log probabilities."""

_FROM_STATE = (
    (Meta.EPOCH, Word.EPOCH),
    (Meta.REQUEST, Word.REQUEST),
    (Meta.CONSUMED, Word.CONSUMED),
    (Meta.GENERATED, Word.GENERATED),
    (Meta.STATUS, Word.STATUS),
    (Meta.DRAFT_CACHE, Word.DRAFT_CACHE),
)
_FROM_NOTE = (
    (Meta.EMITTED, Note.EMITTED),
    (Meta.OFFERED, Note.OFFERED),
    (Meta.ACCEPTED, Note.ACCEPTED),
    (Meta.COPIED, Note.COPIED),
    (Meta.SOURCES, Note.SOURCES),
    (Meta.WIDTH, Note.WIDTH),
    (Meta.FAULTS, Note.FAULTS),
)


@dataclass(frozen=True, slots=True)
class Emissions:
    """What n lanes did, all int64 [n] but `tokens` [n, at most eight]. `rows`: the slot, or the scratch row."""

    rows: Tensor
    tokens: Tensor
    emitted: Tensor
    offered: Tensor
    accepted: Tensor
    copied: Tensor
    sources: Tensor
    width: Tensor
    faults: Tensor


@dataclass(frozen=True, slots=True)
class Told:
    """Raw log probabilities by state row: of the emitted tokens, and of the best alternatives, best first."""

    chosen: Tensor
    ids: Tensor
    values: Tensor

    @property
    def all(self) -> tuple[Tensor, Tensor, Tensor]:
        """The three of them."""
        return self.chosen, self.ids, self.values


class DeviceCompletion:
    """Notes of the round in hand and the two frames, `frames` int64 [2, nbytes / 8]."""

    def __init__(self, state: DeviceState, layout: Layout, frames: Tensor) -> None:
        self._state, self._frames = state, frames
        self._layout = layout
        self._head, self._tail = layout.offset_of("head") // 8, layout.offset_of("tail") // 8
        rows, device = state.slots + 1, state.device
        self._staged = torch.zeros(layout.nbytes // 8, dtype=torch.int64, device=device)
        self._records = field_view(self._staged, layout, "records")
        self._views = tuple(field_view(self._staged, layout, name) for name in ("logprobs", "top_ids", "top_logprobs"))
        self.notes = torch.zeros(rows, NOTE, dtype=torch.int64, device=device)
        self._arrived = torch.zeros(rows * ROW_TOKENS, dtype=torch.int32, device=device)
        shape = (rows, ROW_TOKENS)
        self._told = Told(
            torch.zeros(shape, device=device),
            torch.zeros(*shape, TOP_LOGPROBS, dtype=torch.int32, device=device),
            torch.zeros(*shape, TOP_LOGPROBS, device=device),
        )

    def begin(self, faults: Tensor) -> None:
        """Nobody has done anything yet; a plan of `faults` int64 [1] will not change that."""
        self.notes.zero_()
        self.fail(faults)

    def fail(self, faults: Tensor) -> None:
        """A round that does nothing: every slot's record carries the error bits int64 [1], if there are any."""
        slots = self._state.slots
        self.notes[:slots, Note.WRITTEN] |= faults != 0
        self.notes[:slots, Note.FAULTS] |= faults

    def note(self, done: Emissions) -> None:
        """Notes of lanes that name different slots, or the scratch row."""
        ones = torch.ones_like(done.emitted)
        columns = (ones, done.emitted, done.offered, done.accepted, done.copied, done.sources, done.width, done.faults)
        width = done.tokens.shape[1]
        steps = torch.arange(width, device=done.tokens.device)
        tokens = torch.where(steps < done.emitted[:, None], done.tokens, 0)
        self.notes[:, : len(Note) + width].index_copy_(0, done.rows, torch.cat([torch.stack(columns, 1), tokens], 1))

    def blame(self, slots: Tensor, faults: Tensor) -> None:
        """Empty records with these error bits, int64 [n], for existing slots; where there is no bit, nothing."""
        rows = torch.where(faults != 0, slots, self._state.scratch)
        zero = torch.zeros_like(rows)
        self.note(Emissions(rows, zero[:, None], zero, zero, zero, zero, zero, zero, faults))

    def tell(self, counter: Tensor, logits: Tensor, rows: Tensor, emitted: Tensor, tokens: Tensor) -> None:
        """Raw log probabilities of the first `emitted` int64 [n] of `tokens` [n, W], for state rows [n] that asked.

        `logits` float32 [n * W, V]. Before `publish`.
        """
        lanes, width = tokens.shape
        if runs_triton(logits):
            self._tell_kernel(counter, logits, rows, emitted, tokens, False)
            return
        found = raw_logprobs_rows(logits, tokens.flatten(), TOP_LOGPROBS)
        chosen, ids, values = (part.view(lanes, width, -1) for part in found)
        self._keep(rows, chosen[..., 0], ids, values)

    def score(self, counter: Tensor, logits: Tensor, row: Tensor, count: Tensor, tokens: Tensor) -> None:
        """The same of the first `count` int64 [1] of `tokens` [1, n], a scored chunk of state row [1].

        They fill the frame's rows one behind the other, whichever slot these belong to: the round has no lanes.
        """
        if runs_triton(logits):
            self._tell_kernel(counter, logits, row, count, tokens, True)
            return
        found = raw_logprobs_rows(logits, tokens.flatten(), TOP_LOGPROBS)
        for kept, part in zip(self._told.all, found, strict=True):
            kept.flatten(0, 1)[: tokens.shape[1]] = part.view(tokens.shape[1], *kept.shape[2:]).to(kept.dtype)

    def _tell_kernel(
        self, counter: Tensor, logits: Tensor, rows: Tensor, emitted: Tensor, tokens: Tensor, scored: bool
    ) -> None:
        lanes, width = tokens.shape
        from services.worker.devices.logprob_kernels import tell_rows

        offset, (count, vocab) = self._layout.offset_of, logits.shape
        part = min(_PART, power_above(vocab))
        parts = -(-vocab // part)

        def left(columns: int, kind: torch.dtype) -> Tensor:
            return torch.empty(count, columns, dtype=kind, device=logits.device)

        tell_rows[(lanes * width, parts)](
            logits, self._state.words, rows, emitted, tokens, self._frames, counter, left(parts, torch.float32),
            left(parts, torch.float64), left(parts * TOP_LOGPROBS, torch.int64), self._arrived, width,
            self._layout.nbytes // 8, offset("logprobs"), offset("top_ids"), offset("top_logprobs"), vocab, scored,
            part, parts, power_above(parts), power_above(TOP_LOGPROBS), num_warps=4,
        )  # fmt: skip

    def _keep(self, rows: Tensor, chosen: Tensor, ids: Tensor, values: Tensor) -> None:
        width, count = chosen.shape[1], ids.shape[2]
        self._told.chosen[:, :width].index_copy_(0, rows, chosen.float())
        self._told.ids[:, :width, :count].index_copy_(0, rows, ids.to(torch.int32))
        self._told.values[:, :width, :count].index_copy_(0, rows, values.float())

    def publish(self, counter: Tensor) -> None:
        """Records of every slot into frame `counter & 1`, the ends last; then the counter goes on."""
        if runs_triton(counter):
            self._publish_kernels(counter)
        else:
            self._publish_plain(counter)
            counter.add_(1)

    def _publish_kernels(self, counter: Tensor) -> None:
        from services.worker.devices.frame_kernels import publish_frame

        words, offset = self._layout.nbytes // 8, self._layout.offset_of
        publish_frame[(1,)](
            self._state.words, self.notes, self._frames, counter, self._state.slots, words, offset("head"),
            offset("tail"), offset("records"), num_warps=4,
        )  # fmt: skip

    def _publish_plain(self, counter: Tensor) -> None:
        state, frame = self._state, counter & 1
        words, notes = state.words[: state.slots], self.notes[: state.slots]
        record = torch.zeros(state.slots, METADATA + ROW_TOKENS, dtype=torch.int64, device=state.device)
        record[:, Meta.SLOT] = torch.arange(state.slots, device=state.device)
        record[:, Meta.SEQUENCE] = counter
        for meta, word in _FROM_STATE:
            record[:, meta] = words[:, word]
        for meta, column in _FROM_NOTE:
            record[:, meta] = notes[:, column]
        ended = (words[:, Word.STATUS] == int(Status.ENDED)).to(torch.int64)
        record[:, Meta.VISIBLE] = words[:, Word.GENERATED] - ended
        record[:, METADATA:] = notes[:, len(Note) :]
        empty = torch.zeros_like(record)
        empty[:, Meta.SLOT] = -1
        self._records.copy_(torch.where(notes[:, Note.WRITTEN, None] != 0, record, empty))
        for view, source in zip(self._views, self._told.all, strict=True):
            view.copy_(source[: state.slots])
        self._staged[self._head] = self._staged[self._tail] = -1
        self._frames.index_copy_(0, frame, self._staged[None])
        self._frames[:, self._tail].index_copy_(0, frame, counter)
        self._frames[:, self._head].index_copy_(0, frame, counter)
