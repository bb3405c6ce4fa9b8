"""Triton kernel of raw log probabilities: a row is split over programs, if it was emitted and its request asked.

They go straight into the completion frame. `device_law.raw_logprobs_rows` is the reference.
"""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from recipes.components.device_state import WORDS, Word
from shared.frames import ROW_TOKENS, TOP_LOGPROBS

S_WORDS, ASKED = tl.constexpr(WORDS), tl.constexpr(int(Word.TOP_LOGPROBS))
ROWS, TOP = tl.constexpr(ROW_TOKENS), tl.constexpr(TOP_LOGPROBS)


@triton.jit
def _leave_part(
    row: tl.tensor, tops: tl.tensor, masses: tl.tensor, best: tl.tensor, asked: tl.tensor, start: tl.tensor,
    V: tl.constexpr, PART: tl.constexpr,
) -> None:  # fmt: skip
    """What one part of a row adds to its largest logit and its mass, and the part's `asked` best tokens, best first.

    A token is packed so that the larger logit is the larger number, and among equals the lower id.
    """
    at = start + tl.arange(0, PART)
    value = tl.load(row + at, mask=at < V, other=float("-inf"))
    top = tl.max(value)
    wide = value.to(tl.float64)
    tl.store(tops, top)
    tl.store(masses, tl.sum(tl.where(value > float("-inf"), tl.exp(wide - top.to(tl.float64)), 0.0)))
    bits = value.to(tl.int32, bitcast=True)
    ordered = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)
    bound = tl.full([], 0x7FFFFFFFFFFFFFFF, tl.int64)
    nothing = tl.full([PART], -0x7FFFFFFFFFFFFFFF, tl.int64)
    packed = tl.where(at < V, (ordered << 32) | (0x7FFFFFFF - at).to(tl.int64), nothing)
    for rank in range(asked):
        bound = tl.max(tl.where(packed < bound, packed, nothing))
        tl.store(best + rank, bound)


@triton.jit
def _tell_row(
    row: tl.tensor, tops: tl.tensor, masses: tl.tensor, best: tl.tensor, asked: tl.tensor, token: tl.tensor,
    chosen: tl.tensor, ids: tl.tensor, values: tl.tensor, V: tl.constexpr, PARTS: tl.constexpr,
    BLOCK: tl.constexpr, SPAN: tl.constexpr,
) -> None:  # fmt: skip
    """Joins what `PARTS` parts have left: the log probability of `token`, and the `asked` best ids and theirs."""
    part, rank = tl.arange(0, BLOCK), tl.arange(0, SPAN)
    highest = tl.load(tops + part, mask=part < PARTS, other=float("-inf"), cache_modifier=".cg").to(tl.float64)
    mass = tl.load(masses + part, mask=part < PARTS, other=0.0, cache_modifier=".cg")
    top = tl.max(highest)
    whole = top + tl.log(tl.sum(tl.where(mass > 0.0, mass * tl.exp(highest - top), 0.0)))
    tl.store(chosen, (tl.load(row + token).to(tl.float64) - whole).to(tl.float32))
    left = (part < PARTS)[:, None] & (rank < asked)[None, :]
    nothing = tl.full([BLOCK, SPAN], -0x7FFFFFFFFFFFFFFF, tl.int64)
    packed = tl.load(best + part[:, None] * TOP + rank[None, :], mask=left, other=0, cache_modifier=".cg")
    packed = tl.where(left, packed, nothing)
    bound = tl.full([], 0x7FFFFFFFFFFFFFFF, tl.int64)
    for number in range(asked):
        bound = tl.max(tl.where(packed < bound, packed, nothing))
        found = 0x7FFFFFFF - (bound & 0xFFFFFFFF)
        real = found < V
        tl.store(ids + number, found.to(tl.int32), mask=real)
        value = tl.load(row + found, mask=real, other=0.0).to(tl.float64)
        tl.store(values + number, (value - whole).to(tl.float32), mask=real)


@triton.jit(do_not_specialize=["W"])
def tell_rows(
    logits: tl.tensor, words: tl.tensor, state_rows: tl.tensor, emitted: tl.tensor, tokens: tl.tensor,
    frames: tl.tensor, counter: tl.tensor, tops: tl.tensor, masses: tl.tensor, best: tl.tensor, arrived: tl.tensor,
    W: tl.tensor, FRAME: tl.constexpr, CHOSEN: tl.constexpr, IDS: tl.constexpr, VALUES: tl.constexpr,
    V: tl.constexpr, SCORED: tl.constexpr, PART: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
    SPAN: tl.constexpr,
) -> None:  # fmt: skip
    """The token's log probability and the best ones, best first, into frame `counter & 1`. Offsets are in bytes.

    One part of a row a program; whoever arrives last joins the parts. `arrived` int32 is zero before and after.
    Rows of a `SCORED` chunk lie one behind the other, whichever slot it has.
    """
    program, part = tl.program_id(0), tl.program_id(1)
    lane, index = program // W, program % W
    slot = tl.load(state_rows + lane)
    asked = tl.load(words + slot * S_WORDS + ASKED)
    if (asked >= 0) & (index < tl.load(emitted + lane)):
        asked = tl.minimum(asked, TOP)
        row, first = logits + program.to(tl.int64) * V, program * PARTS
        here = first + part
        _leave_part(row, tops + here, masses + here, best + here * TOP, asked, part * PART, V, PART)
        tl.debug_barrier()
        before = tl.atomic_add(arrived + program, 1, sem="acq_rel", scope="gpu")
        tl.debug_barrier()
        if before == PARTS - 1:
            tl.store(arrived + program, 0)
            out = (frames + (tl.load(counter) & 1) * FRAME).to(tl.pointer_type(tl.float32))
            ids = out.to(tl.pointer_type(tl.int32)) + IDS // 4
            place = index if SCORED else slot * ROWS + index
            _tell_row(
                row, tops + first, masses + first, best + first * TOP, asked, tl.load(tokens + program),
                out + CHOSEN // 4 + place, ids + place * TOP, out + VALUES // 4 + place * TOP, V, PARTS, BLOCK,
                SPAN,
            )  # fmt: skip
