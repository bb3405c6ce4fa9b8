"""Triton kernels of a round's prompt chunk, or of the one request that its `chunk_*` fields name.

`chunk.py` and `programs.py` are the reference. One program; whoever has nothing to do notes nothing. Plan offsets are
in words.
"""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from recipes.components.device_state import Word
from services.worker.devices.lane_kernels import (
    ENDED,
    ENDS,
    LENGTH,
    N_EMITTED,
    N_FAULTS,
    N_TOKENS,
    N_WIDTH,
    N_WORDS,
    N_WRITTEN,
    NOT_FINITE,
    RUNNING,
    S_BUDGET,
    S_CONSUMED,
    S_DRAFTS,
    S_EPOCH,
    S_GENERATED,
    S_PENALISED,
    S_PENDING,
    S_PREVIOUS,
    S_REQUEST,
    S_STATUS,
    S_WORDS,
    STALE,
    UNEXPECTED,
    copy_vector,
    plan_fault,
)
from shared.frames import Fault

S_PROMPT, BAD_TOKEN = tl.constexpr(int(Word.PROMPT_LENGTH)), tl.constexpr(int(Fault.BAD_TOKEN))
REPLAYED, DRAWN = tl.constexpr(2), tl.constexpr(1)
"""Values of `chunk_final`: a pending token is put back, or drawn."""


@triton.jit
def empty_notes(notes: tl.tensor, fault: tl.tensor, SLOTS: tl.tensor) -> None:
    """Nobody has done anything yet; a plan at fault will not change that."""
    column = tl.arange(0, N_WORDS)[None, :]
    told = tl.where(column == N_WRITTEN, (fault != 0).to(tl.int64), tl.where(column == N_FAULTS, fault, 0))
    for start in range(0, SLOTS, 16):
        slot = start + tl.arange(0, 16)[:, None]
        tl.store(notes + slot * N_WORDS + column, told + slot * 0, mask=slot < SLOTS)
    tl.debug_barrier()


@triton.jit
def put_note(note: tl.tensor, width: tl.tensor, faults: tl.tensor) -> None:
    """A record without tokens."""
    column = tl.arange(0, N_WORDS)
    told = tl.where(column == N_WRITTEN, 1, tl.where(column == N_WIDTH, width, tl.where(column == N_FAULTS, faults, 0)))
    tl.store(note + column, told.to(tl.int64))
    tl.debug_barrier()


@triton.jit
def _identity(
    plan: tl.tensor, words: tl.tensor, fault: tl.tensor, SLOTS: tl.tensor, P_SLOT: tl.constexpr,
    P_EPOCH: tl.constexpr, P_REQUEST: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:  # fmt: skip
    """Whether a good plan names a slot, its row, and the fault of naming another request."""
    slot = tl.load(plan + P_SLOT)
    named = (fault == 0) & (slot >= 0) & (slot < SLOTS)
    row = tl.where(named, slot, SLOTS).to(tl.int64)
    same = tl.load(words + row * S_WORDS + S_EPOCH) == tl.load(plan + P_EPOCH)
    same = same & (tl.load(words + row * S_WORDS + S_REQUEST) == tl.load(plan + P_REQUEST))
    return named, row, tl.where(named & (same == 0), STALE, 0).to(tl.int64)


@triton.jit(do_not_specialize=["GRAPH", "BUCKET", "V", "SLOTS"])
def open_chunk(
    plan: tl.tensor, counter: tl.tensor, words: tl.tensor, notes: tl.tensor, tokens: tl.tensor, slots: tl.tensor,
    first: tl.tensor, counts: tl.tensor, GRAPH: tl.tensor, BUCKET: tl.tensor, V: tl.tensor, SLOTS: tl.tensor,
    P_HEAD: tl.constexpr, P_TAIL: tl.constexpr, P_GRAPH: tl.constexpr, P_SLOT: tl.constexpr, P_EPOCH: tl.constexpr,
    P_REQUEST: tl.constexpr, P_START: tl.constexpr, P_LENGTH: tl.constexpr, P_TOKENS: tl.constexpr,
    BLOCK: tl.constexpr, ALONE: tl.constexpr, CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """The rows of a chunk, its slot -1 unless it is taken; judges the plan and empties notes if it is ALONE."""
    if CHAINED:
        gdc_wait()
        gdc_launch_dependents()
    fault = plan_fault(plan, counter, GRAPH, P_HEAD, P_TAIL, P_GRAPH)
    if ALONE:
        empty_notes(notes, fault, SLOTS)
    named, row, bad = _identity(plan, words, fault, SLOTS, P_SLOT, P_EPOCH, P_REQUEST)
    start, length = tl.load(plan + P_START), tl.load(plan + P_LENGTH)
    text = (plan + P_TOKENS).to(tl.pointer_type(tl.int32))
    at = tl.arange(0, BLOCK)
    foreign = tl.zeros([BLOCK], tl.int32)
    for base in range(0, BUCKET, BLOCK):
        here = (base + at < BUCKET) & (base + at < length)
        token = tl.load(text + base + at, mask=here, other=0)
        foreign += ((token < 0) | (token >= V)).to(tl.int32)
    unexpected = (tl.load(words + row * S_WORDS + S_CONSUMED) != start) | (length < 1) | (length > BUCKET)
    other = tl.where(unexpected, UNEXPECTED, tl.where(tl.sum(foreign) > 0, BAD_TOKEN, 0)).to(tl.int64)
    bad = tl.where(named, tl.where(bad != 0, bad, other), 0)
    taken = named & (bad == 0)
    for base in range(0, BUCKET, BLOCK):
        here = (base + at < length) & taken
        token = tl.load(text + base + at, mask=here & (base + at < BUCKET), other=0)
        tl.store(tokens + base + at, token.to(tl.int64), mask=base + at < BUCKET)
    tl.store(slots, tl.where(taken, row, -1))
    tl.store(first, tl.where(taken, start, 0))
    tl.store(counts, tl.where(taken, length, 0))
    if bad != 0:
        put_note(notes + row * N_WORDS, row * 0, bad)


@triton.jit
def _count_tokens(
    mine: tl.tensor, tokens: tl.tensor, seen: tl.tensor, token_counts: tl.tensor, start: tl.tensor, kept: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """Marks a chunk's tokens as seen, and counts those behind the prompt as emitted."""
    prompt = tl.load(mine + S_PROMPT)
    at = tl.arange(0, BLOCK)
    for base in range(0, kept.to(tl.int32), BLOCK):
        here = base + at < kept
        token = tl.load(tokens + base + at, mask=here, other=0)
        tl.store(seen + token, (token * 0 + 1).to(tl.uint8), mask=here)
        tl.atomic_add(token_counts + token, 1, mask=here & (start + base + at >= prompt), sem="relaxed")


@triton.jit
def _leave_snapshot(
    words: tl.tensor, vectors: tl.tensor, target: tl.tensor, consumed: tl.tensor, previous: tl.tensor,
    absorbed: tl.tensor, source: tl.tensor, H: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """Fills snapshot row `target` but for what the model and its drafter hold."""
    tl.store(words + target * 3, consumed)
    tl.store(words + target * 3 + 1, previous)
    tl.store(words + target * 3 + 2, absorbed)
    copy_vector(source, vectors + target * H, H, BLOCK)


@triton.jit(do_not_specialize=["V", "SLOTS", "SNAPSHOTS"])
def settle_chunk(
    plan: tl.tensor, words: tl.tensor, notes: tl.tensor, seen: tl.tensor, token_counts: tl.tensor, vectors: tl.tensor,
    kept_vectors: tl.tensor, snapshot_words: tl.tensor, snapshot_vectors: tl.tensor, broken: tl.tensor,
    tokens: tl.tensor, slots: tl.tensor, first: tl.tensor, counts: tl.tensor, out: tl.tensor, wants: tl.tensor,
    last: tl.tensor, V: tl.tensor, SLOTS: tl.tensor, SNAPSHOTS: tl.tensor, P_FINAL: tl.constexpr,
    P_PENDING: tl.constexpr, P_EXPORT: tl.constexpr, H: tl.constexpr, BLOCK: tl.constexpr, LEARNS: tl.constexpr,
    CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """Takes a chunk into its slot's state.

    `out` int64 [7, 2], first column: rows kept, slot, slot and row of a snapshot (-1: none), state row, position to
    draw at, rows fed. `wants` uint8 [1]: whether the pending token is to be drawn, from `last` float32 [H].
    """
    if CHAINED:
        gdc_wait()
        gdc_launch_dependents()
    slot, start, count = tl.load(slots), tl.load(first), tl.load(counts)
    given = slot >= 0
    row = tl.where(given, slot, SLOTS).to(tl.int64)
    lost = tl.load(broken + row).to(tl.int64)
    taken = given & (lost == 0)
    kept = tl.where(taken, count, 0)
    mine, consumed = words + row * S_WORDS, start + kept
    target = tl.load(plan + P_EXPORT)
    exports = taken & (target >= 0) & (target < SNAPSHOTS)
    final = tl.load(plan + P_FINAL)
    absorbed = (consumed - 1) if LEARNS else tl.load(mine + S_DRAFTS)
    tl.debug_barrier()
    tl.store(broken + row, 0)
    if given:
        put_note(notes + row * N_WORDS, count, lost)
    if taken:
        source, previous = vectors + (kept - 1) * H, tl.load(tokens + kept - 1)
        tl.store(mine + S_CONSUMED, consumed)
        tl.store(mine + S_PREVIOUS, previous)
        tl.store(mine + S_DRAFTS, absorbed)
        copy_vector(source, kept_vectors + row * H, H, BLOCK)
        copy_vector(source, last, H, BLOCK)
        if exports:
            _leave_snapshot(snapshot_words, snapshot_vectors, target, consumed, previous, absorbed, source, H, BLOCK)
        penalised = tl.load(mine + S_PENALISED) != 0
        if penalised:
            _count_tokens(mine, tokens, seen + row * V, token_counts + row * V, start, kept, BLOCK)
        if final == REPLAYED:
            pending = tl.load(plan + P_PENDING)
            tl.store(mine + S_GENERATED, consumed - tl.load(mine + S_PROMPT) + 1)
            tl.store(mine + S_PENDING, pending)
            if penalised:
                tl.debug_barrier()
                tl.store(seen + row * V + pending, 1)
                tl.atomic_add(token_counts + row * V + pending, 1, sem="relaxed")
    else:
        copy_vector(kept_vectors + row * H, last, H, BLOCK)  # nobody's, but it makes logits
    _tell_draw(out, wants, kept, tl.where(taken, slot, -1), tl.where(exports, target, -1), row, consumed - 1, count,
               taken & (final == DRAWN))  # fmt: skip


@triton.jit
def _tell_draw(
    out: tl.tensor, wants: tl.tensor, kept: tl.tensor, slot: tl.tensor, target: tl.tensor, row: tl.tensor,
    position: tl.tensor, width: tl.tensor, wanted: tl.tensor,
) -> None:  # fmt: skip
    """What the kernels behind need to know."""
    tl.store(out, kept)
    tl.store(out + 2, slot)
    tl.store(out + 4, tl.where(target >= 0, slot, -1))
    tl.store(out + 6, target)
    tl.store(out + 8, row)
    tl.store(out + 10, position)
    tl.store(out + 12, width)
    tl.store(wants, wanted.to(tl.uint8))


@triton.jit(do_not_specialize=["GRAPH", "SLOTS", "SNAPSHOTS"])
def open_named(
    plan: tl.tensor, counter: tl.tensor, words: tl.tensor, notes: tl.tensor, kept_vectors: tl.tensor,
    snapshot_words: tl.tensor, snapshot_vectors: tl.tensor, out: tl.tensor, wants: tl.tensor, last: tl.tensor,
    GRAPH: tl.tensor, SLOTS: tl.tensor, SNAPSHOTS: tl.tensor, P_HEAD: tl.constexpr, P_TAIL: tl.constexpr,
    P_GRAPH: tl.constexpr, P_SLOT: tl.constexpr, P_EPOCH: tl.constexpr, P_REQUEST: tl.constexpr,
    P_ROW: tl.constexpr, H: tl.constexpr, BLOCK: tl.constexpr, DRAWS: tl.constexpr, CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """The request that a plan names: it DRAWS its pending token from the saved vector, or is left in a snapshot row."""
    if CHAINED:
        gdc_wait()
        gdc_launch_dependents()
    fault = plan_fault(plan, counter, GRAPH, P_HEAD, P_TAIL, P_GRAPH)
    empty_notes(notes, fault, SLOTS)
    named, row, bad = _identity(plan, words, fault, SLOTS, P_SLOT, P_EPOCH, P_REQUEST)
    if bad != 0:
        put_note(notes + row * N_WORDS, row * 0, bad)
    mine, taken = words + row * S_WORDS, named & (bad == 0)
    target = tl.load(plan + P_ROW)
    exports = taken & (target >= 0) & (target < SNAPSHOTS)
    consumed = tl.load(mine + S_CONSUMED)
    if DRAWS:
        copy_vector(kept_vectors + row * H, last, H, BLOCK)
    elif exports:
        _leave_snapshot(snapshot_words, snapshot_vectors, target, consumed, tl.load(mine + S_PREVIOUS),
                        tl.load(mine + S_DRAFTS), kept_vectors + row * H, H, BLOCK)  # fmt: skip
        put_note(notes + row * N_WORDS, row * 0, bad)
    _tell_draw(out, wants, row * 0, tl.where(taken, row, -1), tl.where(exports, target, -1), row, consumed - 1,
               row * 0 + 1, taken)  # fmt: skip


@triton.jit(do_not_specialize=["V", "SLOTS"])
def settle_pending(
    words: tl.tensor, notes: tl.tensor, end_ids: tl.tensor, seen: tl.tensor, token_counts: tl.tensor, out: tl.tensor,
    wants: tl.tensor, said: tl.tensor, finite: tl.tensor, rows: tl.tensor, emitted: tl.tensor, V: tl.tensor,
    SLOTS: tl.tensor, CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """The pending token that was drawn; `rows` int64 [1] is whose log probability is told, `emitted` whether at all."""
    if CHAINED:
        gdc_wait()
        gdc_launch_dependents()
    wanted, sound = tl.load(wants) != 0, tl.load(finite) != 0
    row, token = tl.load(out + 8), tl.load(said)
    mine, note = words + row * S_WORDS, notes + row * N_WORDS
    done = wanted & sound
    if done:
        ends = tl.load(end_ids + row * ENDS + tl.arange(0, ENDS))
        ended = tl.sum((ends == token).to(tl.int32)) > 0
        generated = tl.load(mine + S_GENERATED) + 1
        spent = tl.where(generated >= tl.load(mine + S_BUDGET), LENGTH, RUNNING)
        tl.debug_barrier()
        tl.store(mine + S_PENDING, token)
        tl.store(mine + S_GENERATED, generated)
        tl.store(mine + S_STATUS, tl.where(ended, ENDED, spent).to(tl.int64))
        if tl.load(mine + S_PENALISED) != 0:
            tl.store(seen + row * V + token, 1)
            tl.atomic_add(token_counts + row * V + token, 1, sem="relaxed")
    if wanted:
        put_note(note, tl.load(out + 12), tl.where(sound, 0, NOT_FINITE).to(tl.int64))
        tl.store(note + N_EMITTED, done.to(tl.int64))
        tl.store(note + N_TOKENS, tl.where(done, token, 0))
    tl.store(rows, tl.where(wanted, row, SLOTS).to(tl.int64))
    tl.store(emitted, done.to(tl.int64))
