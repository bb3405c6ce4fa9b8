"""Triton kernels at both ends of every captured round: the plan comes in, records go out, the counter advances.

Kernels of one replay run one after the other, so a store of one is seen by the next. Host memory is an integer address
and is read volatile, past every cache. Words are int64.
"""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from recipes.components.device_state import WORDS, Word
from services.worker.devices.completion import NOTE, Note
from shared.frames import METADATA, ROW_TOKENS, Meta, Status


def _constant(value: int) -> tl.constexpr:
    return tl.constexpr(int(value))


S_WORDS, N_WORDS, RECORD, META = (
    _constant(WORDS),
    _constant(NOTE),
    _constant(METADATA + ROW_TOKENS),
    _constant(METADATA),
)
N_TOKENS = _constant(len(Note))
S_EPOCH, S_REQUEST, S_CONSUMED = _constant(Word.EPOCH), _constant(Word.REQUEST), _constant(Word.CONSUMED)
S_GENERATED, S_STATUS, S_DRAFTS = _constant(Word.GENERATED), _constant(Word.STATUS), _constant(Word.DRAFT_CACHE)
N_WRITTEN, N_EMITTED, N_OFFERED = _constant(Note.WRITTEN), _constant(Note.EMITTED), _constant(Note.OFFERED)
N_ACCEPTED, N_COPIED, N_SOURCES = _constant(Note.ACCEPTED), _constant(Note.COPIED), _constant(Note.SOURCES)
N_WIDTH, N_FAULTS = _constant(Note.WIDTH), _constant(Note.FAULTS)
M_SLOT, M_EPOCH, M_REQUEST = _constant(Meta.SLOT), _constant(Meta.EPOCH), _constant(Meta.REQUEST)
M_CONSUMED, M_GENERATED, M_VISIBLE = _constant(Meta.CONSUMED), _constant(Meta.GENERATED), _constant(Meta.VISIBLE)
M_STATUS, M_EMITTED, M_OFFERED = _constant(Meta.STATUS), _constant(Meta.EMITTED), _constant(Meta.OFFERED)
M_ACCEPTED, M_SOURCES, M_DRAFTS = _constant(Meta.ACCEPTED), _constant(Meta.SOURCES), _constant(Meta.DRAFT_CACHE)
M_WIDTH, M_SEQUENCE, M_FAULTS = _constant(Meta.WIDTH), _constant(Meta.SEQUENCE), _constant(Meta.FAULTS)
M_COPIED, ENDED = _constant(Meta.COPIED), _constant(Status.ENDED)


@triton.jit
def fetch_word(host: tl.tensor, counter: tl.tensor, taken: tl.tensor, word: tl.constexpr, FRAME: tl.constexpr) -> None:
    """One end of frame `counter & 1`: the tail is fetched before the body and the head after it (docs/adr/0003).

    By three kernels, whose order needs no fence: one kernel with fences that reach the host took 35 us, these take 8.
    """
    frame = (tl.load(counter) & 1) * FRAME
    tl.store(taken + word, tl.load(host.to(tl.pointer_type(tl.int64)) + frame + word, volatile=True))


@triton.jit
def fetch_body(
    host: tl.tensor, counter: tl.tensor, taken: tl.tensor, stop: tl.tensor, TAIL: tl.constexpr, FRAME: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """The words of frame `counter & 1` below `stop` but its ends."""
    at = 1 + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = (at < stop) & (at < TAIL)
    frame = (tl.load(counter) & 1) * FRAME
    words = tl.load(host.to(tl.pointer_type(tl.int64)) + frame + at, mask=here, volatile=True)
    tl.store(taken + at, words, mask=here)


@triton.jit
def _of_state(column: tl.tensor) -> tl.tensor:
    """The word of the state that a column of a record holds, or -1."""
    found = tl.where(column == M_EPOCH, S_EPOCH, -1)
    found = tl.where(column == M_REQUEST, S_REQUEST, found)
    found = tl.where(column == M_CONSUMED, S_CONSUMED, found)
    found = tl.where((column == M_GENERATED) | (column == M_VISIBLE), S_GENERATED, found)
    found = tl.where(column == M_STATUS, S_STATUS, found)
    return tl.where(column == M_DRAFTS, S_DRAFTS, found)


@triton.jit
def _of_note(column: tl.tensor) -> tl.tensor:
    """The column of a note that a column of a record holds, or -1."""
    found = tl.where(column == M_EMITTED, N_EMITTED, -1)
    found = tl.where(column == M_OFFERED, N_OFFERED, found)
    found = tl.where(column == M_ACCEPTED, N_ACCEPTED, found)
    found = tl.where(column == M_COPIED, N_COPIED, found)
    found = tl.where(column == M_SOURCES, N_SOURCES, found)
    found = tl.where(column == M_WIDTH, N_WIDTH, found)
    found = tl.where(column == M_FAULTS, N_FAULTS, found)
    return tl.where(column >= META, column - META + N_TOKENS, found)


@triton.jit
def publish_frame(
    words: tl.tensor, notes: tl.tensor, frames: tl.tensor, counter: tl.tensor, SLOTS: tl.constexpr,
    FRAME: tl.constexpr, HEAD: tl.constexpr, TAIL: tl.constexpr, RECORDS: tl.constexpr,
) -> None:  # fmt: skip
    """The record of every slot, in one program; then the frame's tail, its head, and the next round's number.

    Field offsets are in bytes.
    """
    now = tl.load(counter)
    out = frames + (now & 1) * FRAME
    tl.store(out + HEAD // 8, -1)
    tl.store(out + TAIL // 8, -1)
    column = tl.arange(0, 32)[None, :]
    state, note = _of_state(column), _of_note(column)
    for start in range(0, SLOTS, 16):
        slot = start + tl.arange(0, 16)[:, None]
        here = (slot < SLOTS) & (column < RECORD)
        written = tl.load(notes + slot * N_WORDS + N_WRITTEN, mask=slot < SLOTS, other=0) != 0
        ended = tl.load(words + slot * S_WORDS + S_STATUS, mask=slot < SLOTS, other=0) == ENDED
        value = tl.load(words + slot * S_WORDS + state, mask=here & (state >= 0), other=0)
        value += tl.load(notes + slot * N_WORDS + note, mask=here & (note >= 0), other=0)
        value -= ((column == M_VISIBLE) & ended).to(tl.int64)
        value = tl.where(column == M_SLOT, slot.to(tl.int64), value)
        value = tl.where(column == M_SEQUENCE, now, value)
        blank = tl.where(column == M_SLOT, -1, 0).to(tl.int64)
        tl.store(out + RECORDS // 8 + slot * RECORD + column, tl.where(written, value, blank), mask=here)
    tl.debug_barrier()
    tl.store(out + TAIL // 8, now)
    tl.store(out + HEAD // 8, now)
    tl.store(counter, now + 1)
