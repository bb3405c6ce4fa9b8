"""Triton kernels of a round's lanes: what they are and draft, and what comes of their rows.

A learned drafter proposes between the first two of them. `lanes.py`, `device_acceptance.py` and `programs.py` are the
reference. One program a lane; scalars are computed by all of its threads alike.
"""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from recipes.components.device_state import WORDS, Word
from recipes.components.gpu.border_kernels import uniform
from recipes.components.philox import CHAIN_STRIDE
from services.worker.devices.completion import NOTE, Note
from shared.frames import COPY_TOKENS, MAXIMUM_END_IDS, Fault, Source, Status


def _constant(value: int) -> tl.constexpr:
    return tl.constexpr(int(value))


S_WORDS, N_WORDS, N_TOKENS = _constant(WORDS), _constant(NOTE), _constant(len(Note))
ENDS, TEXT = _constant(MAXIMUM_END_IDS), _constant(COPY_TOKENS)
S_EPOCH, S_REQUEST, S_CONSUMED = _constant(Word.EPOCH), _constant(Word.REQUEST), _constant(Word.CONSUMED)
S_PENDING, S_PREVIOUS, S_GENERATED = _constant(Word.PENDING), _constant(Word.PREVIOUS), _constant(Word.GENERATED)
S_DRAFTS, S_DRAFT_KEY = _constant(Word.DRAFT_CACHE), _constant(Word.DRAFT_KEY)
S_STATUS, S_BUDGET, S_PENALISED = _constant(Word.STATUS), _constant(Word.BUDGET), _constant(Word.PENALISED)
N_WRITTEN, N_EMITTED, N_OFFERED = _constant(Note.WRITTEN), _constant(Note.EMITTED), _constant(Note.OFFERED)
N_ACCEPTED, N_COPIED, N_SOURCES = _constant(Note.ACCEPTED), _constant(Note.COPIED), _constant(Note.SOURCES)
N_WIDTH, N_FAULTS = _constant(Note.WIDTH), _constant(Note.FAULTS)
RUNNING, ENDED, LENGTH = _constant(Status.RUNNING), _constant(Status.ENDED), _constant(Status.LENGTH)
TORN, UNEXPECTED, STALE = _constant(Fault.TORN_PLAN), _constant(Fault.UNEXPECTED_PLAN), _constant(Fault.STALE_EPOCH)
NOT_FINITE, LEARNT, STRIDE = _constant(Fault.NOT_FINITE), _constant(Source.LEARNED), _constant(CHAIN_STRIDE)


@triton.jit
def plan_fault(
    plan: tl.tensor, counter: tl.tensor, GRAPH: tl.tensor, P_HEAD: tl.constexpr, P_TAIL: tl.constexpr,
    P_GRAPH: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The fault of a torn plan, or of one for another round or graph, int64."""
    head = tl.load(plan + P_HEAD)
    foreign = (head != tl.load(counter)) | (tl.load(plan + P_GRAPH) != GRAPH)
    return tl.where(head != tl.load(plan + P_TAIL), TORN, tl.where(foreign, UNEXPECTED, 0)).to(tl.int64)


@triton.jit
def _copies_behind(
    text: tl.tensor, place: tl.tensor, length: tl.tensor, previous: tl.tensor, pending: tl.tensor, limit: tl.tensor,
    alive: tl.tensor,
) -> tl.tensor:  # fmt: skip
    """How many tokens of a continuation stand behind its `place`, where the pending token must be."""
    length = tl.minimum(tl.maximum(length, 0), TEXT)
    covered = alive & (place >= 1) & (place < length)
    agrees = tl.load(text + place - 1, mask=covered, other=-1).to(tl.int64) == previous
    agrees = agrees & (tl.load(text + place, mask=covered, other=-1).to(tl.int64) == pending)
    count = tl.maximum(tl.minimum(limit, length - place - 1), 0)
    return tl.where(covered & agrees, count, 0)


@triton.jit
def _note_lane(
    note: tl.tensor, said: tl.tensor, emitted: tl.tensor, accepted: tl.tensor, copied: tl.tensor, offered: tl.tensor,
    sources: tl.tensor, width: tl.tensor, faults: tl.tensor,
) -> None:  # fmt: skip
    """What a lane did."""
    tl.store(note + N_WRITTEN, 1)
    tl.store(note + N_EMITTED, emitted)
    tl.store(note + N_OFFERED, offered)
    tl.store(note + N_ACCEPTED, accepted)
    tl.store(note + N_COPIED, copied)
    tl.store(note + N_SOURCES, sources)
    tl.store(note + N_WIDTH, width)
    tl.store(note + N_FAULTS, faults)
    for place in range(emitted.to(tl.int32)):
        tl.store(note + N_TOKENS + place, tl.load(said + place))


@triton.jit(do_not_specialize=["GRAPH", "W", "B", "SLOTS"])
def open_lanes(
    plan: tl.tensor, counter: tl.tensor, words: tl.tensor, notes: tl.tensor, rows: tl.tensor, slots: tl.tensor,
    live: tl.tensor, faults: tl.tensor, first: tl.tensor, room: tl.tensor, offered: tl.tensor, drafts: tl.tensor,
    sources: tl.tensor, tokens: tl.tensor, counts: tl.tensor, asked: tl.tensor, pendings: tl.tensor,
    draws: tl.tensor, GRAPH: tl.tensor, W: tl.tensor, B: tl.tensor, SLOTS: tl.tensor, P_HEAD: tl.constexpr,
    P_TAIL: tl.constexpr, P_GRAPH: tl.constexpr, P_LANES: tl.constexpr, P_SLOT: tl.constexpr, P_EPOCH: tl.constexpr,
    P_REQUEST: tl.constexpr, P_CEILING: tl.constexpr, P_ANCHOR: tl.constexpr, P_LENGTH: tl.constexpr,
    P_SOURCE: tl.constexpr, P_TOKENS: tl.constexpr, LEARNS: tl.constexpr, CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """Judges the plan, empties notes, finds live lanes, slices their copies, and if it LEARNS asks a drafter for more.

    Plan offsets are in words.
    """
    if CHAINED:
        gdc_wait()
        gdc_launch_dependents()
    lane = tl.program_id(0)
    fault = plan_fault(plan, counter, GRAPH, P_HEAD, P_TAIL, P_GRAPH)
    if lane < SLOTS:
        at = tl.arange(0, N_WORDS)
        told = tl.where(at == N_WRITTEN, (fault != 0).to(tl.int64), tl.where(at == N_FAULTS, fault, 0))
        tl.store(notes + lane * N_WORDS + at, told)
    if lane < B:
        slot = tl.load(plan + P_SLOT + lane)
        named = (fault == 0) & (lane < tl.load(plan + P_LANES)) & (slot >= 0) & (slot < SLOTS)
        row = tl.where(named, slot, SLOTS).to(tl.int64)
        mine = words + row * S_WORDS
        same = tl.load(mine + S_EPOCH) == tl.load(plan + P_EPOCH + lane)
        same = same & (tl.load(mine + S_REQUEST) == tl.load(plan + P_REQUEST + lane))
        running = tl.load(mine + S_STATUS) == RUNNING
        pending, previous = tl.load(mine + S_PENDING), tl.load(mine + S_PREVIOUS)
        bad = tl.where(same == 0, STALE, tl.where(running & (pending < 0), UNEXPECTED, 0)).to(tl.int64)
        alive = named & (bad == 0) & running
        consumed = tl.load(mine + S_CONSUMED)
        left = tl.load(mine + S_BUDGET) - tl.load(mine + S_GENERATED)
        limit = tl.minimum(tl.minimum(tl.load(plan + P_CEILING + lane), left), W) - 1
        place = consumed - tl.load(plan + P_ANCHOR + lane)
        text = (plan + P_TOKENS).to(tl.pointer_type(tl.int32)) + lane * TEXT
        length = tl.load(plan + P_LENGTH + lane)
        count = _copies_behind(text, place, length, previous, pending, limit, alive)
        tl.store(rows + lane, row)
        tl.store(slots + lane, tl.where(alive, slot, -1))
        tl.store(live + lane, alive.to(tl.uint8))
        tl.store(faults + lane, tl.where(named, bad, 0))
        tl.store(first + lane, tl.where(alive, consumed, 0))
        tl.store(room + lane, left)
        tl.store(offered + lane, count)
        tl.store(sources + lane, tl.where(count > 0, tl.load(plan + P_SOURCE + lane), 0))
        tl.store(counts + lane, tl.where(alive, count + 1, 0))
        tl.store(tokens + lane * W, tl.where(alive, pending, 0))
        for step in range(W - 1):
            draft = tl.load(text + place + 1 + step, mask=step < count, other=-1).to(tl.int64)
            tl.store(drafts + lane * (W - 1) + step, draft)
            tl.store(tokens + lane * W + 1 + step, tl.where(step < count, draft, 0))
        if LEARNS:
            tl.store(asked + lane, tl.where(alive & (limit > count), limit, 0))
            tl.store(pendings + lane, tl.where(alive, pending, 0))
            key = tl.load(mine + S_DRAFT_KEY)
            for step in range(W - 1):
                tl.store(draws + lane * (W - 1) + step, uniform(key, consumed * STRIDE + step))


@triton.jit(do_not_specialize=["W"])
def join_drafts(
    proposed: tl.tensor, proposals: tl.tensor, asked: tl.tensor, offered: tl.tensor, drafts: tl.tensor,
    learned: tl.tensor, sources: tl.tensor, tokens: tl.tensor, counts: tl.tensor, W: tl.tensor, KS: tl.constexpr,
    CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """Learned drafts take the place behind a lane's copies, if they agree with these: `proposals` of `proposed`."""
    if CHAINED:
        gdc_wait()
        gdc_launch_dependents()
    lane = tl.program_id(0)
    step = tl.arange(0, KS)
    real = step < W - 1
    place = lane * (W - 1) + step
    copied, limit = tl.load(offered + lane), tl.load(asked + lane)
    count = tl.minimum(tl.load(proposals + lane), limit)
    mine = tl.load(drafts + place, mask=real, other=-1)
    theirs = tl.load(proposed + place, mask=real & (step < count), other=-1)
    differs = tl.sum(((step < copied) & (theirs != mine)).to(tl.int32)) > 0
    taken = (count > copied) & (differs == 0)
    if taken:
        tl.store(offered + lane, count)
        tl.store(counts + lane, count + 1)
        tl.store(sources + lane, tl.load(sources + lane) | LEARNT)
        tl.store(drafts + place, theirs, mask=real)
        tl.store(tokens + lane * W + 1 + step, tl.where(step < count, theirs, 0), mask=real)
    tl.store(learned + place, (taken & (step >= copied) & (step < count)).to(tl.uint8), mask=real)


@triton.jit
def _walk(
    said: tl.tensor, finite: tl.tensor, drafts: tl.tensor, learned: tl.tensor, ends: tl.tensor, alive: tl.tensor,
    ahead: tl.tensor, room: tl.tensor, W: tl.tensor, LEARNS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor]:  # fmt: skip
    """Rows in order, to the first rejection, end token or spent budget: emitted, accepted, copied, ended, void."""
    going, ended, void = alive, alive & (room < room), alive & (room < room)
    emitted, accepted, copied = room * 0, room * 0, room * 0
    for step in range(W):
        token = tl.load(said + step)
        void = void | (going & (tl.load(finite + step) == 0))
        going = going & (void == 0)
        emitted += going.to(tl.int64)
        last = tl.sum((ends == token).to(tl.int32)) > 0
        ended = ended | (going & last)
        here = going & (step < ahead)
        survived = here & (token == tl.load(drafts + step, mask=here, other=-1))
        accepted += survived.to(tl.int64)
        if LEARNS:
            copied += (survived & (tl.load(learned + step, mask=here, other=0) == 0)).to(tl.int64)
        else:
            copied += survived.to(tl.int64)
        going = survived & (last == 0) & (emitted != room)
    emitted, accepted, copied = tl.where(void, 0, emitted), tl.where(void, 0, accepted), tl.where(void, 0, copied)
    return emitted, accepted, copied, ended & (void == 0), void


@triton.jit
def copy_vector(source: tl.tensor, target: tl.tensor, H: tl.constexpr, BLOCK: tl.constexpr) -> None:
    """A sampling vector, into float32."""
    column = tl.arange(0, BLOCK)
    for base in range(0, H, BLOCK):
        held = tl.load(source + base + column, mask=base + column < H)
        tl.store(target + base + column, held.to(tl.float32), mask=base + column < H)


@triton.jit
def _advance(
    mine: tl.tensor, start: tl.tensor, emitted: tl.tensor, ended: tl.tensor, inputs: tl.tensor, said: tl.tensor,
    seen: tl.tensor, token_counts: tl.tensor, LEARNS: tl.constexpr,
) -> None:  # fmt: skip
    """The state row of a lane that has emitted something; `seen` and `token_counts` are its rows too."""
    generated = tl.load(mine + S_GENERATED) + emitted
    spent = tl.where(generated >= tl.load(mine + S_BUDGET), LENGTH, RUNNING)
    penalised = tl.load(mine + S_PENALISED) != 0
    tl.debug_barrier()
    tl.store(mine + S_CONSUMED, start + emitted)
    if LEARNS:
        tl.store(mine + S_DRAFTS, start + emitted - 1)
    tl.store(mine + S_PREVIOUS, tl.load(inputs + emitted - 1))
    tl.store(mine + S_PENDING, tl.load(said + emitted - 1))
    tl.store(mine + S_GENERATED, generated)
    tl.store(mine + S_STATUS, tl.where(ended, ENDED, spent).to(tl.int64))
    if penalised:
        for index in range(emitted.to(tl.int32)):
            token = tl.load(said + index)
            tl.store(seen + token, 1)
            tl.atomic_add(token_counts + token, 1, sem="relaxed")


@triton.jit(do_not_specialize=["W", "V", "SLOTS", "SNAPSHOTS"])
def settle_lanes(
    plan: tl.tensor, words: tl.tensor, notes: tl.tensor, end_ids: tl.tensor, seen: tl.tensor, token_counts: tl.tensor,
    vectors: tl.tensor, kept_vectors: tl.tensor, snapshot_words: tl.tensor, snapshot_vectors: tl.tensor,
    rows: tl.tensor, live: tl.tensor, faults: tl.tensor, broken: tl.tensor, first: tl.tensor, room: tl.tensor,
    offered: tl.tensor, drafts: tl.tensor, learned: tl.tensor, sources: tl.tensor, inputs: tl.tensor,
    said: tl.tensor, finite: tl.tensor, kept: tl.tensor, export_at: tl.tensor, export_row: tl.tensor, W: tl.tensor,
    V: tl.tensor, SLOTS: tl.tensor, SNAPSHOTS: tl.tensor, P_EXPORT: tl.constexpr, P_BOUNDARY: tl.constexpr,
    H: tl.constexpr, BLOCK: tl.constexpr, LEARNS: tl.constexpr, CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """Accepts, advances the lane's state, exports what belongs to a boundary, and notes what was done.

    `broken` int32 [SLOTS + 1]: what went wrong while the lane's rows were computed; told once. LEARNS: the drafter
    will have absorbed what is kept; with W = 1 nobody looks at `learned`.
    """
    if CHAINED:
        gdc_wait()
        gdc_launch_dependents()
    lane = tl.program_id(0)
    row, start = tl.load(rows + lane), tl.load(first + lane)
    lost = tl.load(broken + row).to(tl.int64)
    note = notes + row * N_WORDS
    inputs, said, vectors = inputs + lane * W, said + lane * W, vectors + lane * W * H
    ends = tl.load(end_ids + row * ENDS + tl.arange(0, ENDS))
    ahead, left = tl.load(offered + lane), tl.load(room + lane)
    running = tl.load(live + lane) != 0
    alive = running & (lost == 0)
    before = lane * (W - 1)
    emitted, accepted, copied, ended, void = _walk(
        said, finite + lane * W, drafts + before, learned + before, ends, alive, ahead, left, W, LEARNS
    )
    target = tl.load(plan + P_EXPORT + lane)
    at = tl.load(plan + P_BOUNDARY + lane) - start
    wanted = (at > 0) & (at <= emitted) & (target >= 0) & (target < SNAPSHOTS)
    tl.store(kept + lane, emitted)
    tl.store(export_at + lane, tl.where(wanted, at, 0))
    tl.store(export_row + lane, tl.where(wanted, target, -1))
    if wanted:
        tl.store(snapshot_words + target * 3, start + at)
        tl.store(snapshot_words + target * 3 + 1, tl.load(inputs + at - 1))
        tl.store(snapshot_words + target * 3 + 2, (start + at - 1) * LEARNS)
        copy_vector(vectors + (at - 1) * H, snapshot_vectors + target * H, H, BLOCK)
    if emitted > 0:
        _advance(
            words + row * S_WORDS, start, emitted, ended, inputs, said, seen + row * V, token_counts + row * V, LEARNS
        )
        copy_vector(vectors + (emitted - 1) * H, kept_vectors + row * H, H, BLOCK)
    if row < SLOTS:
        done = alive & (void == 0)
        source = tl.where(done, tl.load(sources + lane), 0)
        fault = tl.where(void, NOT_FINITE, tl.load(faults + lane)).to(tl.int64)
        _note_lane(note, said, emitted, accepted, copied, tl.where(done, ahead, 0), source,
                   tl.where(running, ahead + 1, 0), tl.where(lost != 0, lost, fault))  # fmt: skip
        tl.debug_barrier()
        tl.store(broken + row, 0)
