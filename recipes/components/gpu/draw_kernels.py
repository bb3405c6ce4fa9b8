"""Triton kernels of the target law, last step: wide rows draw their token, or the residual of a rejected draft.

Also what is left for one program: rows whose border neither gathering nor bracketing gave away. And the law itself,
for drafters, whose proposals are judged by the law that they were drawn from.
"""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from recipes.components.gpu.border_kernels import (
    NO_KEY,
    border_of_mass,
    border_of_rank,
    kept_weight,
    key_of,
    mass_below,
    pick_in_block,
    reached_part,
)
from recipes.components.gpu.sampling_kernels import (
    MIN_P,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    draft_test,
    keys_of,
    residual,
)
from recipes.components.gpu.survey_kernels import (
    ADDED,
    CORRECTED,
    DRAWN,
    FLOATS_HERE,
    SOUGHT,
    WORDS_HERE,
    arrived,
    is_active,
    is_changed,
    logits_at,
    overall,
)


@triton.jit
def _part_weights(
    logits: tl.tensor, scratch: tl.tensor, lanes: tl.tensor, changed: tl.tensor, part: tl.tensor, border: tl.tensor,
    floor: tl.tensor, total: tl.tensor, corrects: tl.tensor, place: tl.tensor, top: tl.tensor,
    temperature: tl.tensor, V: tl.constexpr, PART: tl.constexpr, LEARNED: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """float64 [PART]: what each token of a part weighs in the law, or in what a rejected draft leaves of it."""
    token = part * PART + tl.arange(0, PART)
    weight = kept_weight(keys_of(logits, scratch, changed, token, top, temperature, V), border, floor)
    if LEARNED:  # noqa: SIM102
        if corrects:
            weight = residual(weight, total, lanes.law, place, token, V)
    return weight


@triton.jit
def _pick_row(
    logits: tl.tensor, scratch: tl.tensor, lanes: tl.tensor, changed: tl.tensor, border: tl.tensor, floor: tl.tensor,
    total: tl.tensor, corrects: tl.tensor, place: tl.tensor, top: tl.tensor, temperature: tl.tensor, draw: tl.tensor,
    V: tl.constexpr, PART: tl.constexpr, PARTS: tl.constexpr, LEARNED: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:  # fmt: skip
    """A draw from a row whose parts' sums lie in scratch memory, and the sum of all; the draw is idle if that is 0."""
    program = tl.program_id(0)
    part = tl.arange(0, PARTS)
    sums = tl.load(scratch.sums + program * PARTS + part, mask=part * PART < V, other=0.0)
    own, before, target = reached_part(sums, draw, PARTS)
    weight = _part_weights(logits, scratch, lanes, changed, own, border, floor, total, corrects, place, top,
                           temperature, V, PART, LEARNED)  # fmt: skip
    return pick_in_block(weight, own * PART + tl.arange(0, PART), before, target), tl.sum(sums)


@triton.jit
def _seek(
    logits: tl.tensor, scratch: tl.tensor, mine: tl.tensor, own: tl.tensor, changed: tl.tensor, top: tl.tensor,
    V: tl.constexpr, PART: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:  # fmt: skip
    """The border of a row under its filters, bit by bit, and the weight of what it keeps. Spoils adjusted logits."""
    row = scratch.adjusted + tl.program_id(0).to(tl.int64) * V
    temperature, top_p = tl.load(own + TEMPERATURE), tl.load(own + TOP_P)
    for start in range(0, V, PART):
        token = start + tl.arange(0, PART)
        offset = tl.program_id(0).to(tl.int64) * V + token
        value = logits_at(logits, scratch.adjusted, changed, offset, token < V)
        tl.store(row + token, tl.div_rn(value - top, temperature), mask=token < V)
    tl.debug_barrier()
    rank = tl.load(mine + TOP_K)
    bound = tl.full([], NO_KEY, tl.int32)
    if (rank > 0) & (rank < V):
        bound = border_of_rank(row, rank.to(tl.int32), V, PART) + 1
    if top_p < 1.0:
        mass = top_p.to(tl.float64) * mass_below(row, bound, 0.0, V, PART)
        bound = tl.minimum(bound, border_of_mass(row, bound, mass, V, PART) + 1)
    return bound - 1, mass_below(row, bound, tl.load(own + MIN_P).to(tl.float64), V, PART)


@triton.jit
def _draw_sought(
    logits: tl.tensor, scratch: tl.tensor, mine: tl.tensor, own: tl.tensor, lanes: tl.tensor, lane: tl.tensor,
    index: tl.tensor, changed: tl.tensor, top: tl.tensor, W: tl.tensor, V: tl.constexpr, PART: tl.constexpr,
    PARTS: tl.constexpr, LEARNED: tl.constexpr, GIVEN: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The token of a row that one program searches alone."""
    program = tl.program_id(0)
    border, total = _seek(logits, scratch, mine, own, changed, top, V, PART)
    tl.store(scratch.borders + program, border)
    tl.store(scratch.totals + program, total)
    tests, draft, bar, draw, correction = draft_test(mine, lanes, lane, index, W, V, LEARNED, GIVEN)
    floor, place = tl.load(own + MIN_P).to(tl.float64), lane.to(tl.int64) * (W - 1) + index
    # Distances stand in the place of logits now: the largest is nought, and nothing divides them.
    nought, one = top * 0.0, top * 0.0 + 1.0
    sought = border >= -1
    corrects = lane < 0
    passed = lane < 0
    if LEARNED:  # noqa: SIM102
        if tests & (total != 1.0):
            key = key_of(tl.load(scratch.adjusted + program.to(tl.int64) * V + draft))
            passed = bar < kept_weight(key, border, floor) / total
            corrects = passed == 0
    for part in range(tl.cdiv(V, PART)):
        weight = _part_weights(logits, scratch, lanes, sought, part, border, floor, total, corrects, place, nought, one,
                               V, PART, LEARNED)  # fmt: skip
        tl.store(scratch.sums + program * PARTS + part, tl.sum(weight))
    tl.debug_barrier()
    chosen, left = _pick_row(logits, scratch, lanes, sought, border, floor, total, corrects, place, nought, one,
                             tl.where(corrects, correction, draw), V, PART, PARTS, LEARNED)  # fmt: skip
    return tl.where(passed | (corrects & (left <= 0)), draft, chosen)


@triton.jit(do_not_specialize=["W", "GROUPS"])
def draw_rows(
    logits: tl.tensor, slots: tl.tensor, lanes: tl.tensor, scratch: tl.tensor, tokens: tl.tensor, W: tl.tensor,
    V: tl.constexpr, PART: tl.constexpr, PARTS: tl.constexpr, GROUPS: tl.tensor, ADJUSTED: tl.constexpr,
    LEARNED: tl.constexpr, GIVEN: tl.constexpr, CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """Wide rows that are not decided yet: each part is summed, and whoever arrives last draws."""
    if CHAINED:
        gdc_wait()
        gdc_launch_dependents()
    program, group = tl.program_id(0), tl.program_id(1)
    kind = tl.load(scratch.kinds + program)
    lane, index = program // W, program % W
    slot = tl.load(lanes.rows + lane)
    mine, own = slots.words + slot * WORDS_HERE, slots.floats + slot * FLOATS_HERE
    if (kind == DRAWN) | (kind == CORRECTED):
        changed = is_changed(mine, index, ADJUSTED)
        top, _, _ = overall(scratch, program, program >= 0, V, PART, PARTS)
        temperature, floor = tl.load(own + TEMPERATURE), tl.load(own + MIN_P).to(tl.float64)
        border = tl.load(scratch.borders + program)
        corrects = kind == CORRECTED
        total = tl.load(scratch.totals + program, mask=corrects, other=1.0)
        place = lane.to(tl.int64) * (W - 1) + index
        for part in range(group, tl.cdiv(V, PART), GROUPS):
            weight = _part_weights(logits, scratch, lanes, changed, part, border, floor, total, corrects, place, top,
                                   temperature, V, PART, LEARNED)  # fmt: skip
            tl.store(scratch.sums + program * PARTS + part, tl.sum(weight))
        if arrived(scratch, program, ADDED, GROUPS):
            _tests, draft, _bar, draw, correction = draft_test(mine, lanes, lane, index, W, V, LEARNED, GIVEN)
            chosen, left = _pick_row(logits, scratch, lanes, changed, border, floor, total, corrects, place, top,
                                     temperature, tl.where(corrects, correction, draw), V, PART, PARTS,
                                     LEARNED)  # fmt: skip
            tl.store(tokens + program, tl.where(corrects & (left <= 0), draft, chosen))
            if corrects == 0:
                tl.store(scratch.totals + program, left)
    elif (kind == SOUGHT) & (group == 0):
        changed = is_changed(mine, index, ADJUSTED)
        top, _, _ = overall(scratch, program, program >= 0, V, PART, PARTS)
        said = _draw_sought(logits, scratch, mine, own, lanes, lane, index, changed, top, W, V, PART, PARTS, LEARNED,
                            GIVEN)  # fmt: skip
        tl.store(tokens + program, said)


@triton.jit
def write_laws(
    logits: tl.tensor, slots: tl.tensor, lanes: tl.tensor, scratch: tl.tensor, tokens: tl.tensor, finite: tl.tensor,
    laws: tl.tensor, STRIDE: tl.tensor, V: tl.constexpr, PART: tl.constexpr, PARTS: tl.constexpr, CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """The law that each lane's only row was drawn from, float32 [V] every STRIDE; a point mass if it was not drawn."""
    if CHAINED:
        gdc_wait()
        gdc_launch_dependents()
    program, part = tl.program_id(0), tl.program_id(1)
    if is_active(lanes, program, program * 0):
        own = slots.floats + tl.load(lanes.rows + program) * FLOATS_HERE
        temperature, floor = tl.load(own + TEMPERATURE), tl.load(own + MIN_P).to(tl.float64)
        top, _, _ = overall(scratch, program, program >= 0, V, PART, PARTS)
        token = part * PART + tl.arange(0, PART)
        here = token < V
        offset = program.to(tl.int64) * V + token
        said = tl.load(tokens + program)
        if (temperature == 0.0) | (tl.load(finite + program) == 0):
            law = tl.where(token == said, 1.0, 0.0)
        else:
            sought = tl.load(scratch.kinds + program) == SOUGHT
            value = logits_at(logits, scratch.adjusted, sought, offset, here)
            scaled = tl.where(sought, value, tl.div_rn(value - top, temperature))
            weight = kept_weight(key_of(scaled), tl.load(scratch.borders + program), floor)
            law = (weight / tl.load(scratch.totals + program)).to(tl.float32)
        tl.store(laws + program.to(tl.int64) * STRIDE + token, law, mask=here)
