"""The toy round as Triton kernels: fetch the plan, open the frame, verify, commit, close.

They prove that the device protocol can be kept on the card; the law is `toy_rules.py`, the layouts are the real ones.
Kernels of one replay run one after the other, so a store of one kernel is seen by the next. Words are int64; host
memory is an integer address and is read volatile, past every cache.
"""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from tests.gpu.toy_words import (
    ANCHOR,
    BOUNDARY,
    CEILING,
    DIM,
    EPOCH,
    EXPORT,
    FACTOR,
    FRAME,
    LANES,
    LENGTH,
    M_ACCEPTED,
    M_CONSUMED,
    M_COPIED,
    M_DRAFT_CACHE,
    M_EMITTED,
    M_EPOCH,
    M_FAULTS,
    M_GENERATED,
    M_OFFERED,
    M_REQUEST,
    M_SEQUENCE,
    M_SLOT,
    M_SOURCES,
    M_STATUS,
    M_TOKENS,
    M_VISIBLE,
    M_WIDTH,
    OUT_FRAME,
    OUT_HEAD,
    OUT_TAIL,
    RECORD,
    RECORDS,
    REQUEST,
    S_COLUMNS,
    S_CONSUMED,
    S_EPOCH,
    S_GENERATED,
    S_PENDING,
    S_PREVIOUS,
    S_REQUEST,
    SLOT,
    SLOTS_HERE,
    SOURCE,
    STALE_EPOCH,
    TOKEN_ROOM,
    TOKENS,
    TORN_PLAN,
    UNEXPECTED_PLAN,
    V_COLUMNS,
    V_EMITTED,
    V_FAULT,
    V_INPUTS,
    V_OFFERED,
    V_TARGETS,
    VOCABULARY_MASK,
    W,
)


@triton.jit
def fetch_word(host: tl.tensor, sequence: tl.tensor, out: tl.tensor, word: tl.constexpr) -> None:
    """One word of frame `sequence & 1`. The tail is fetched before the body and the head after it: the writer's order,
    reversed, so a frame whose two ends agree held still while its body was read."""
    frame = (tl.load(sequence) & 1) * FRAME
    tl.store(out, tl.load(host.to(tl.pointer_type(tl.int64)) + frame + word, volatile=True))


@triton.jit
def fetch_body(host: tl.tensor, sequence: tl.tensor, plan: tl.tensor, block: tl.constexpr) -> None:
    """Frame `sequence & 1`, whole, into device memory."""
    at = tl.program_id(0) * block + tl.arange(0, block)
    frame = (tl.load(sequence) & 1) * FRAME
    words = tl.load(host.to(tl.pointer_type(tl.int64)) + frame + at, mask=at < FRAME, volatile=True)
    tl.store(plan + at, words, mask=at < FRAME)


@triton.jit
def write_record(
    out: tl.tensor,
    slots: tl.tensor,
    slot: tl.tensor,
    sequence: tl.tensor,
    fault: tl.tensor,
    offered: tl.tensor,
    emitted: tl.tensor,
    source: tl.tensor,
) -> None:
    """The metadata of a slot's record after its state has settled; nothing emitted means that nothing happened."""
    row = out + RECORDS + slot * RECORD
    mine = slots + slot * S_COLUMNS
    consumed = tl.load(mine + S_CONSUMED)
    generated = tl.load(mine + S_GENERATED)
    accepted = tl.maximum(emitted - 1, 0)
    tl.store(row + M_SLOT, slot)
    tl.store(row + M_EPOCH, tl.load(mine + S_EPOCH))
    tl.store(row + M_REQUEST, tl.load(mine + S_REQUEST))
    tl.store(row + M_CONSUMED, consumed)
    tl.store(row + M_GENERATED, generated)
    tl.store(row + M_VISIBLE, generated)
    tl.store(row + M_STATUS, 0)
    tl.store(row + M_EMITTED, emitted)
    tl.store(row + M_OFFERED, offered)
    tl.store(row + M_ACCEPTED, accepted)
    tl.store(row + M_SOURCES, tl.where(offered > 0, source, 0))
    tl.store(row + M_DRAFT_CACHE, consumed - 1)
    tl.store(row + M_WIDTH, tl.where(emitted > 0, offered + 1, 0))
    tl.store(row + M_SEQUENCE, sequence)
    tl.store(row + M_FAULTS, fault)
    tl.store(row + M_COPIED, accepted)


@triton.jit
def clear_frame(sequence: tl.tensor, completions: tl.tensor, ends: tl.tensor, faults: tl.tensor) -> None:
    """Judges the plan by its two ends, and clears the completion frame: no ends, no slot in any record."""
    now = tl.load(sequence)
    tail = tl.load(ends)
    head = tl.load(ends + 1)
    tl.store(faults, tl.where(head != tail, TORN_PLAN, tl.where(head != now, UNEXPECTED_PLAN, 0)))
    out = completions + (now & 1) * OUT_FRAME
    tl.store(out + OUT_HEAD, -1)
    tl.store(out + OUT_TAIL, -1)
    at = tl.arange(0, 32)
    for slot in range(SLOTS_HERE):
        tl.store(out + RECORDS + slot * RECORD + at, tl.where(at == M_SLOT, -1, 0).to(tl.int64), mask=at < RECORD)


@triton.jit
def absorb(state: tl.tensor, token: tl.tensor) -> tl.tensor:
    """The recurrent state after one more token."""
    at = tl.arange(0, DIM).to(tl.int64)
    return state * FACTOR + token * (2 * at + 1) + at


@triton.jit
def choose(state: tl.tensor) -> tl.tensor:
    """The token that the model says next."""
    at = tl.arange(0, DIM).to(tl.int64)
    return (tl.sum(state * (2 * at + 3)) >> 33) & VOCABULARY_MASK


@triton.jit
def verify(
    plan: tl.tensor, plan32: tl.tensor, faults: tl.tensor, slots: tl.tensor, states: tl.tensor, verdicts: tl.tensor
) -> None:
    """Slices the continuation at the pending position, runs all its rows, accepts. Writes nothing but the verdict."""
    lane = tl.program_id(0)
    slot = tl.load(plan + SLOT + lane)
    live = (tl.load(faults) == 0) & (lane < tl.load(plan + LANES)) & (slot >= 0) & (slot < SLOTS_HERE)
    slot = tl.where(live, slot, 0)
    mine = slots + slot * S_COLUMNS
    same = (tl.load(plan + EPOCH + lane) == tl.load(mine + S_EPOCH)) & (
        tl.load(plan + REQUEST + lane) == tl.load(mine + S_REQUEST)
    )
    length = tl.load(plan + LENGTH + lane)
    at = tl.load(mine + S_CONSUMED) - tl.load(plan + ANCHOR + lane)
    text = plan32 + TOKENS + lane * TOKEN_ROOM
    covered = (at >= 1) & (at < length)
    pending = tl.load(mine + S_PENDING)
    agrees = (tl.load(text + at - 1, mask=covered, other=-1) == tl.load(mine + S_PREVIOUS)) & (
        tl.load(text + at, mask=covered, other=-1) == pending
    )
    room = tl.minimum(tl.minimum(tl.load(plan + CEILING + lane), W) - 1, length - at - 1)
    offered = tl.where(covered & agrees, tl.maximum(room, 0), 0)
    verdict = verdicts + lane * V_COLUMNS
    state = tl.load(states + slot * DIM + tl.arange(0, DIM))
    token, alive, emitted = pending, offered >= 0, tl.zeros([], tl.int64)
    for row in tl.static_range(W):
        state = absorb(state, token)
        target = choose(state)
        draft = tl.load(text + at + 1 + row, mask=row < offered, other=-1).to(tl.int64)
        emitted += alive.to(tl.int64)
        tl.store(verdict + V_INPUTS + row, token)
        tl.store(verdict + V_TARGETS + row, target)
        alive = alive & (row < offered) & (target == draft)
        token = draft
    tl.store(verdict + V_FAULT, tl.where(live & (same == 0), STALE_EPOCH, 0))
    tl.store(verdict + V_OFFERED, offered)
    tl.store(verdict + V_EMITTED, tl.where(live & same, emitted, 0))


@triton.jit
def commit(
    plan: tl.tensor,
    faults: tl.tensor,
    sequence: tl.tensor,
    slots: tl.tensor,
    states: tl.tensor,
    exports: tl.tensor,
    verdicts: tl.tensor,
    completions: tl.tensor,
) -> None:
    """Replays the accepted prefix into the live state, and as far as the boundary into the export row; then records."""
    lane = tl.program_id(0)
    slot = tl.load(plan + SLOT + lane)
    now = tl.load(sequence)
    out = completions + (now & 1) * OUT_FRAME
    fault = tl.load(faults)
    nothing = fault * 0
    if fault != 0:
        # The plan cannot be believed, its lanes least of all: every slot's record (as many as lanes) carries the bits.
        write_record(out, slots, lane.to(tl.int64), now, fault, nothing, nothing, nothing)
    elif (lane < tl.load(plan + LANES)) & (slot >= 0) & (slot < SLOTS_HERE):
        verdict = verdicts + lane * V_COLUMNS
        emitted = tl.load(verdict + V_EMITTED)
        mine = slots + slot * S_COLUMNS
        at = tl.arange(0, DIM)
        if emitted > 0:
            first = tl.load(mine + S_CONSUMED)
            export = tl.load(plan + EXPORT + lane)
            boundary = tl.load(plan + BOUNDARY + lane)
            state = tl.load(states + slot * DIM + at)
            for row in tl.static_range(W):
                state = tl.where(row < emitted, absorb(state, tl.load(verdict + V_INPUTS + row)), state)
                wanted = (export >= 0) & (row < emitted) & (first + row + 1 == boundary)
                tl.store(exports + export * DIM + at, state, mask=(at < DIM) & wanted)
            generated = tl.load(mine + S_GENERATED)
            tl.debug_barrier()
            tl.store(states + slot * DIM + at, state)
            tl.store(mine + S_CONSUMED, first + emitted)
            tl.store(mine + S_GENERATED, generated + emitted)
            tl.store(mine + S_PREVIOUS, tl.load(verdict + V_INPUTS + emitted - 1))
            tl.store(mine + S_PENDING, tl.load(verdict + V_TARGETS + emitted - 1))
            tokens = tl.load(verdict + V_TARGETS + at, mask=at < emitted, other=0)
            tl.store(out + RECORDS + slot * RECORD + M_TOKENS + at, tokens)
            tl.debug_barrier()
        source = tl.load(plan + SOURCE + lane)
        write_record(out, slots, slot, now, tl.load(verdict + V_FAULT), tl.load(verdict + V_OFFERED), emitted, source)


@triton.jit
def journal(
    plan: tl.tensor,
    sequence: tl.tensor,
    completions: tl.tensor,
    kept: tl.tensor,
    rounds: tl.tensor,
    block: tl.constexpr,
) -> None:
    """Keeps the plan's checksum and the records of every round in device memory, so that a test can look afterwards."""
    now = tl.load(sequence)
    total = tl.zeros([], tl.int64)
    for start in range(0, FRAME, block):
        at = (start + tl.arange(0, block)).to(tl.int64)
        total += tl.sum(tl.load(plan + at, mask=at < FRAME, other=0) * (2 * at + 1))
    page = kept + (now % rounds) * (1 + SLOTS_HERE * RECORD)
    tl.store(page, total)
    at = tl.arange(0, 128)
    words = tl.load(completions + (now & 1) * OUT_FRAME + RECORDS + at, mask=at < SLOTS_HERE * RECORD)
    tl.store(page + 1 + at, words, mask=at < SLOTS_HERE * RECORD)


@triton.jit
def publish_end(sequence: tl.tensor, completions: tl.tensor, word: tl.constexpr) -> None:
    """Sets one end of the completion frame: the tail first, then the head, each by a kernel of its own."""
    now = tl.load(sequence)
    tl.store(completions + (now & 1) * OUT_FRAME + word, now)


@triton.jit
def mirror(
    sequence: tl.tensor, completions: tl.tensor, host: tl.tensor, skip: tl.constexpr, block: tl.constexpr
) -> None:
    """The completion frame into registered host memory: the body, or with `skip` only the head, which comes last."""
    at = tl.program_id(0) * block + tl.arange(0, block)
    frame = (tl.load(sequence) & 1) * OUT_FRAME
    words = tl.load(completions + frame + at, mask=at < OUT_FRAME)
    is_head = at == OUT_HEAD
    wanted = is_head if skip else (at < OUT_FRAME) & (is_head == 0)
    tl.store(host.to(tl.pointer_type(tl.int64)) + frame + at, words, mask=wanted, cache_modifier=".wt")


@triton.jit
def advance(sequence: tl.tensor) -> None:
    """The round is over, whatever became of it: the next one takes the other frame."""
    tl.atomic_add(sequence, 1)
