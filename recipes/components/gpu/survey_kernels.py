"""Triton kernel of the target law, first step: rows are adjusted by penalties and bias, and surveyed.

A row of V tokens is cut into parts, one program each; what the parts of a row find meets in scratch memory, and the
program that arrives last may go on alone. `target_law.py` is the law, `device_law.py` the reference.
"""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from recipes.components.device_state import FLOATS, WORDS, Word
from shared.frames import MAXIMUM_BIAS, MAXIMUM_END_IDS, InitFloat


def _constant(value: int) -> tl.constexpr:
    return tl.constexpr(int(value))


WORDS_HERE, FLOATS_HERE = _constant(WORDS), _constant(FLOATS)
ENDS, BIASES, BIASES_PADDED = _constant(MAXIMUM_END_IDS), _constant(MAXIMUM_BIAS), _constant(512)
GENERATED, MIN_TOKENS = _constant(Word.GENERATED), _constant(Word.MIN_TOKENS)
BIAS_COUNT, PENALISED = _constant(Word.BIAS_COUNT), _constant(Word.PENALISED)
REPETITION = _constant(InitFloat.REPETITION)
FREQUENCY, PRESENCE = _constant(InitFloat.FREQUENCY), _constant(InitFloat.PRESENCE)

DONE, DRAWN, CORRECTED, NUCLEUS, SOUGHT = _constant(0), _constant(1), _constant(2), _constant(3), _constant(4)
"""What a row still needs: nothing; a draw; a draw of the residual; its nucleus found; a search by one program."""
GATHERED, WEIGHED, BRACKETED, ADDED = _constant(0), _constant(1), _constant(2), _constant(3)
"""Counters of a row: tokens gathered, and parts that have arrived, by kernel."""
TALLIES = _constant(4)


@triton.jit
def is_active(lanes: tl.tensor, lane: tl.tensor, index: tl.tensor) -> tl.tensor:
    """Whether row `index` of a lane says anything."""
    return (tl.load(lanes.live + lane) != 0) & (index <= tl.load(lanes.offered + lane))


@triton.jit
def is_changed(mine: tl.tensor, index: tl.tensor, ADJUSTED: tl.constexpr) -> tl.tensor:
    """Whether a row's logits are not the model's own; then they lie in scratch memory."""
    early = tl.load(mine + GENERATED) + index < tl.load(mine + MIN_TOKENS)
    return ((tl.load(mine + PENALISED) != 0) | (tl.load(mine + BIAS_COUNT) > 0) | early) & ADJUSTED


@triton.jit
def logits_at(
    logits: tl.tensor, adjusted: tl.tensor, changed: tl.tensor, offset: tl.tensor, here: tl.tensor
) -> tl.tensor:  # fmt: skip
    """Logits of a row after penalties and bias, minus infinity where not `here`."""
    own = tl.load(logits + offset, mask=here & (changed == 0), other=float("-inf"))
    other = tl.load(adjusted + offset, mask=here & changed, other=float("-inf"))
    return tl.where(changed, other, own)


@triton.jit
def _penalised(
    value: tl.tensor, token: tl.tensor, here: tl.tensor, own: tl.tensor, seen: tl.tensor, counts: tl.tensor,
    drafts: tl.tensor, before: tl.tensor,
) -> tl.tensor:  # fmt: skip
    """Logits after penalties, the drafts before the row counted."""
    repetition = tl.load(own + REPETITION)
    lessening = (1.0 / repetition.to(tl.float64)).to(tl.float32)
    frequency, presence = tl.load(own + FREQUENCY), tl.load(own + PRESENCE)
    count = tl.load(counts + token, mask=here, other=0)
    met = tl.load(seen + token, mask=here, other=0) != 0
    for index in range(before):
        same = token == tl.load(drafts + index)
        count += same.to(tl.int32)
        met = met | same
    factor = tl.where(value > 0, lessening, repetition)
    value = tl.where(met, value * factor, value)
    return value - (frequency * count.to(tl.float32) + presence * (count > 0).to(tl.float32))


@triton.jit
def _bias(
    row: tl.tensor, mine: tl.tensor, slots: tl.tensor, slot: tl.tensor, early: tl.tensor, start: tl.tensor,
    stop: tl.tensor,
) -> None:  # fmt: skip
    """Logit bias, then minimum length, on tokens [start, stop) of `row`. A biased token is named once."""
    tl.debug_barrier()
    at = tl.arange(0, BIASES_PADDED)
    biased = at < tl.minimum(tl.load(mine + BIAS_COUNT), BIASES)
    token = tl.load(slots.bias_ids + slot * BIASES + at, mask=biased, other=-1)
    value = tl.load(slots.bias_values + slot * BIASES + at, mask=biased, other=0.0)
    known = (token >= start) & (token < stop)
    value += tl.load(row + token, mask=known, other=0.0)
    tl.store(row + token, value, mask=known)
    tl.debug_barrier()
    end = tl.load(slots.end_ids + slot * ENDS + tl.arange(0, ENDS))
    tl.store(row + end, float("-inf"), mask=early & (end >= start) & (end < stop))
    tl.debug_barrier()


@triton.jit(do_not_specialize=["W"])
def survey_rows(
    logits: tl.tensor, slots: tl.tensor, lanes: tl.tensor, scratch: tl.tensor, W: tl.tensor, V: tl.constexpr,
    PART: tl.constexpr, COLUMNS: tl.constexpr, PARTS: tl.constexpr, ADJUSTED: tl.constexpr, CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """Adjusts a part of a row, and leaves its largest logit, that one's lowest id, its NaN and maxima by column."""
    if CHAINED:
        gdc_wait()
        gdc_launch_dependents()
    program, part = tl.program_id(0), tl.program_id(1)
    lane, index = program // W, program % W
    if part == 0:
        tl.store(scratch.tallies + program * TALLIES + tl.arange(0, 4), 0)
        tl.store(scratch.kinds + program, DONE)
    if is_active(lanes, lane, index):
        slot = tl.load(lanes.rows + lane)
        mine, own = slots.words + slot * WORDS_HERE, slots.floats + slot * FLOATS_HERE
        offset = program.to(tl.int64) * V
        token = part * PART + tl.arange(0, PART)
        here = token < V
        value = tl.load(logits + offset + token, mask=here, other=float("-inf"))
        if is_changed(mine, index, ADJUSTED):
            if tl.load(mine + PENALISED) != 0:
                drafts = lanes.drafts + lane * (W - 1)
                value = _penalised(value, token, here, own, slots.seen + slot * V, slots.counts + slot * V, drafts,
                                   index)  # fmt: skip
            row = scratch.adjusted + offset
            tl.store(row + token, value, mask=here)
            early = tl.load(mine + GENERATED) + index < tl.load(mine + MIN_TOKENS)
            _bias(row, mine, slots, slot, early, part * PART, tl.minimum(part * PART + PART, V))
            value = tl.load(row + token, mask=here, other=float("-inf"))
        sane = tl.where(value == value, value, float("-inf"))
        top = tl.max(sane)
        place = program * PARTS + part
        tl.store(scratch.tops + place, top)
        tl.store(scratch.places + place, tl.min(tl.where((sane == top) & here, token, V)))
        tl.store(scratch.broken + place, tl.sum((value != value).to(tl.int32)))
        best = tl.max(tl.reshape(sane, [PART // COLUMNS, COLUMNS]), 0)
        tl.store(scratch.columns + place * COLUMNS + tl.arange(0, COLUMNS), best)


@triton.jit
def overall(
    scratch: tl.tensor, program: tl.tensor, active: tl.tensor, V: tl.constexpr, PART: tl.constexpr, PARTS: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:  # fmt: skip
    """The largest logit of a row that was surveyed, its lowest id, and how many NaN the row holds."""
    part = tl.arange(0, PARTS)
    real = active & (part * PART < V)
    tops = tl.load(scratch.tops + program * PARTS + part, mask=real, other=float("-inf"))
    top = tl.max(tops)
    places = tl.load(scratch.places + program * PARTS + part, mask=real, other=V)
    place = tl.min(tl.where(tops == top, places, V))
    return top, place, tl.sum(tl.load(scratch.broken + program * PARTS + part, mask=real, other=0))


@triton.jit
def arrived(scratch: tl.tensor, program: tl.tensor, which: tl.constexpr, count: tl.tensor) -> tl.tensor:
    """Whether this is the last of `count` programs of a row; then it sees what the others have stored."""
    tl.debug_barrier()
    before = tl.atomic_add(scratch.tallies + program * TALLIES + which, 1, sem="acq_rel", scope="gpu")
    tl.debug_barrier()
    return before == count - 1
