"""Triton kernel of raw log probabilities: one program a row, for rows that were emitted and whose request asked.

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


@triton.jit(do_not_specialize=["W"])
def tell_rows(
    logits: tl.tensor, words: tl.tensor, state_rows: tl.tensor, emitted: tl.tensor, tokens: tl.tensor,
    frames: tl.tensor, counter: tl.tensor, W: tl.tensor, FRAME: tl.constexpr, CHOSEN: tl.constexpr, IDS: tl.constexpr,
    VALUES: tl.constexpr, V: tl.constexpr, SCORED: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """The token's log probability and the best ones, best first, into frame `counter & 1`. Offsets are in bytes.

    Rows of a `SCORED` chunk lie one behind the other, whichever slot it has.
    """
    program = tl.program_id(0)
    lane, index = program // W, program % W
    slot = tl.load(state_rows + lane)
    asked = tl.load(words + slot * S_WORDS + ASKED)
    if (asked >= 0) & (index < tl.load(emitted + lane)):
        row = logits + program.to(tl.int64) * V
        out = (frames + (tl.load(counter) & 1) * FRAME).to(tl.pointer_type(tl.float32))
        chosen, top_values = out + CHOSEN // 4, out + VALUES // 4
        top_ids = out.to(tl.pointer_type(tl.int32)) + IDS // 4
        at = tl.arange(0, BLOCK)
        best = tl.full([BLOCK], float("-inf"), tl.float32)
        for start in range(0, V, BLOCK):
            best = tl.maximum(best, tl.load(row + start + at, mask=start + at < V, other=float("-inf")))
        top = tl.max(best).to(tl.float64)
        mass = tl.zeros([BLOCK], tl.float64)
        for start in range(0, V, BLOCK):
            value = tl.load(row + start + at, mask=start + at < V, other=float("-inf")).to(tl.float64)
            mass += tl.where(value > float("-inf"), tl.exp(value - top), 0.0)
        whole = top + tl.log(tl.sum(mass))
        place = index if SCORED else slot * ROWS + index
        said = tl.load(row + tl.load(tokens + program)).to(tl.float64)
        tl.store(chosen + place, (said - whole).to(tl.float32))
        bound = tl.full([], 0x7FFFFFFFFFFFFFFF, tl.int64)
        for rank in range(tl.minimum(asked, TOP)):
            # The next one: the largest below `bound`, the lower id first among equals.
            nearest = tl.full([BLOCK], -0x7FFFFFFFFFFFFFFF, tl.int64)
            for start in range(0, V, BLOCK):
                value = tl.load(row + start + at, mask=start + at < V, other=float("-inf"))
                bits = value.to(tl.int32, bitcast=True)
                ordered = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)
                packed = (ordered << 32) | (0x7FFFFFFF - start - at).to(tl.int64)
                nearest = tl.maximum(nearest, tl.where((packed < bound) & (start + at < V), packed, nearest))
            bound = tl.max(nearest)
            token = 0x7FFFFFFF - (bound & 0xFFFFFFFF)
            tl.store(top_ids + place * TOP + rank, token.to(tl.int32))
            highest = tl.load(row + token).to(tl.float64)
            tl.store(top_values + place * TOP + rank, (highest - whole).to(tl.float32))
