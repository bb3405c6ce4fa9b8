"""Triton kernel of the target law: one program a row, from raw logits to the token that the row says.

`target_law.py` is the law and `device_law.py` the reference; what its filters need is in `border_kernels.py`.
"""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from recipes.components.device_state import FLOATS, WORDS, Word
from recipes.components.gpu.border_kernels import (
    INFINITE,
    NO_KEY,
    border_of_columns,
    border_of_mass,
    border_of_rank,
    draw_all,
    draw_few,
    draw_fewest,
    gather,
    key_of,
    mass_below,
    weight_of,
)
from shared.frames import MAXIMUM_BIAS, MAXIMUM_END_IDS, InitFloat


def _constant(value: int) -> tl.constexpr:
    return tl.constexpr(int(value))


WORDS_HERE, FLOATS_HERE = _constant(WORDS), _constant(FLOATS)
ENDS, BIASES, BIASES_PADDED = _constant(MAXIMUM_END_IDS), _constant(MAXIMUM_BIAS), _constant(512)
GENERATED, TOP_K, MIN_TOKENS = _constant(Word.GENERATED), _constant(Word.TOP_K), _constant(Word.MIN_TOKENS)
BIAS_COUNT, PENALISED, ORDINARY_KEY = (
    _constant(Word.BIAS_COUNT),
    _constant(Word.PENALISED),
    _constant(Word.ORDINARY_KEY),
)
TEMPERATURE, TOP_P, MIN_P = _constant(InitFloat.TEMPERATURE), _constant(InitFloat.TOP_P), _constant(InitFloat.MIN_P)
REPETITION = _constant(InitFloat.REPETITION)
FREQUENCY, PRESENCE = _constant(InitFloat.FREQUENCY), _constant(InitFloat.PRESENCE)


@triton.jit
def uniform(key: tl.tensor, offset: tl.tensor) -> tl.tensor:
    """The draw at `offset` of the stream of `key`, both int64: float32 in (0, 1]."""
    counter = offset >> 2
    zero = (counter * 0).to(tl.uint32)
    w0, w1, w2, w3 = tl.philox(key, counter.to(tl.uint32), (counter >> 32).to(tl.uint32), zero, zero)
    word = offset & 3
    chosen = tl.where(word < 2, tl.where(word == 0, w0, w1), tl.where(word == 2, w2, w3))
    return chosen.to(tl.uint32, bitcast=True).to(tl.float32) * 2.3283064365386963e-10 + 1.1641532182693481e-10


@triton.jit
def _adjust(
    logits: tl.tensor, row: tl.tensor, mine: tl.tensor, floats: tl.tensor, seen: tl.tensor, counts: tl.tensor,
    drafts: tl.tensor, before: tl.tensor, V: tl.constexpr, BLOCK: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:  # fmt: skip
    """Writes a row's logits to `row` float32 [V], after penalties where the request has any; and surveys them."""
    at = tl.arange(0, BLOCK)
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    broken = tl.zeros([BLOCK], tl.int32)
    penalised = tl.load(mine + PENALISED) != 0
    repetition = tl.load(floats + REPETITION)
    lessening = (1.0 / repetition.to(tl.float64)).to(tl.float32)
    frequency, presence = tl.load(floats + FREQUENCY), tl.load(floats + PRESENCE)
    for start in range(0, V, BLOCK):
        token = start + at
        here = token < V
        value = tl.load(logits + token, mask=here, other=0.0)
        if penalised:
            count = tl.load(counts + token, mask=here, other=0)
            met = tl.load(seen + token, mask=here, other=0) != 0
            for index in range(before):
                same = token == tl.load(drafts + index)
                count += same.to(tl.int32)
                met = met | same
            factor = tl.where(value > 0, lessening, repetition)
            value = tl.where(met, value * factor, value)
            value = value - (frequency * count.to(tl.float32) + presence * (count > 0).to(tl.float32))
        tl.store(row + token, value, mask=here)
        broken += ((value != value) & here).to(tl.int32)
        best = tl.maximum(best, tl.where(here, value, float("-inf")))
    return tl.max(best), tl.sum(broken)


@triton.jit
def _survey(row: tl.tensor, V: tl.constexpr, BLOCK: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """The largest logit of a row that holds no NaN, and how many NaN it holds."""
    at = tl.arange(0, BLOCK)
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    broken = tl.zeros([BLOCK], tl.int32)
    for start in range(0, V, BLOCK):
        value = tl.load(row + start + at, mask=start + at < V, other=float("-inf"))
        broken += (value != value).to(tl.int32)
        best = tl.maximum(best, value)
    return tl.max(best), tl.sum(broken)


@triton.jit
def _bias(
    row: tl.tensor, mine: tl.tensor, ends: tl.tensor, bias_ids: tl.tensor, bias_values: tl.tensor, emitted: tl.tensor,
    V: tl.constexpr,
) -> None:  # fmt: skip
    """Logit bias, then minimum length, on `row`. Both touch a handful of tokens; a biased token is named once."""
    tl.debug_barrier()
    at = tl.arange(0, BIASES_PADDED)
    biased = at < tl.load(mine + BIAS_COUNT)
    token = tl.load(bias_ids + at, mask=biased & (at < BIASES), other=V)
    value = tl.load(bias_values + at, mask=biased & (at < BIASES), other=0.0)
    known = (token >= 0) & (token < V)
    value += tl.load(row + token, mask=known, other=0.0)
    tl.store(row + token, value, mask=known)
    tl.debug_barrier()
    end = tl.load(ends + tl.arange(0, ENDS))
    early = emitted < tl.load(mine + MIN_TOKENS)
    tl.store(row + end, float("-inf"), mask=early & (end >= 0) & (end < V))
    tl.debug_barrier()


@triton.jit
def _lowest(row: tl.tensor, top: tl.tensor, V: tl.constexpr, BLOCK: tl.constexpr) -> tl.tensor:
    """The lowest id among the largest logits."""
    at = tl.arange(0, BLOCK)
    lowest = tl.full([BLOCK], V, tl.int32)
    for start in range(0, V, BLOCK):
        value = tl.load(row + start + at, mask=start + at < V, other=float("-inf"))
        lowest = tl.minimum(lowest, tl.where((value == top) & (start + at < V), start + at, V))
    return tl.min(lowest).to(tl.int64)


@triton.jit
def _scale(
    row: tl.tensor, top: tl.tensor, temperature: tl.tensor, weighed: tl.tensor, V: tl.constexpr, BLOCK: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """Puts distances from the largest logit, over the temperature, in the place of logits.

    Also the nearest key of each column, and if `weighed` the weight of the row.
    """
    at = tl.arange(0, BLOCK)
    nearest = tl.full([BLOCK], NO_KEY, tl.int32)
    whole = tl.zeros([], tl.float64)
    for start in range(0, V, BLOCK):
        here = start + at < V
        value = tl.load(row + start + at, mask=here, other=float("-inf"))
        scaled = tl.div_rn(value - top, temperature)
        key = key_of(scaled)
        tl.store(row + start + at, scaled, mask=here)
        nearest = tl.minimum(nearest, tl.where(here, key, NO_KEY))
        if weighed:
            whole += tl.sum(tl.where(key < INFINITE, weight_of(key), 0.0))
    tl.debug_barrier()
    return nearest, whole


@triton.jit
def _sample(
    row: tl.tensor, mine: tl.tensor, own: tl.tensor, top: tl.tensor, temperature: tl.tensor, position: tl.tensor,
    few: tl.tensor, counter: tl.tensor, V: tl.constexpr, BLOCK: tl.constexpr, COLUMNS: tl.constexpr,
    FEWEST: tl.constexpr, CAPACITY: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """A draw at absolute `position` from a finite row, under the request's filters."""
    top_k, top_p = tl.load(mine + TOP_K), tl.load(own + TOP_P)
    ratio = tl.load(own + MIN_P).to(tl.float64)
    limited = (top_k > 0) & (top_k < V)
    weighed = (limited == 0) & (top_p < 1.0)
    nearest, whole = _scale(row, top, temperature, weighed, V, BLOCK)
    rank = tl.where(limited, top_k, 0).to(tl.int32)
    mass = tl.where(top_p < 1.0, top_p.to(tl.float64), 2.0)
    draw = uniform(tl.load(mine + ORDINARY_KEY), position)
    border = tl.zeros([], tl.int32)
    if limited & (top_k <= BLOCK):
        # The k-th smallest key of the columns bounds the k-th smallest of all.
        border = border_of_columns(nearest, rank, BLOCK, COLUMNS)
    if weighed:
        # Whatever is less likely than (1 - top_p) / V weighs less than 1 - top_p with all its like.
        least = (1.0 - mass) / V * whole
        border = key_of((tl.log(least) * 1.000001 - 1e-6).to(tl.float32))
    found = tl.full([], CAPACITY + 1, tl.int32)
    if (limited & (top_k <= BLOCK)) | weighed:
        found = gather(row, border, few, counter, V, BLOCK, CAPACITY)
    token = tl.zeros([], tl.int64)
    if found <= FEWEST:
        token = draw_fewest(few, found, rank, mass, whole, ratio, draw, FEWEST)
    elif found <= CAPACITY:
        token = draw_few(few, found, rank, mass, whole, ratio, draw, CAPACITY)
    else:
        bound = tl.full([], NO_KEY, tl.int32)
        if limited:
            bound = border_of_rank(row, rank, V, BLOCK) + 1
        if top_p < 1.0:
            heap = mass * mass_below(row, bound, V, BLOCK)
            bound = tl.minimum(bound, border_of_mass(row, bound, heap, V, BLOCK) + 1)
        token = draw_all(row, bound - 1, ratio, draw, V, BLOCK)
    return token


@triton.jit(do_not_specialize=["W"])
def draw_rows(
    logits: tl.tensor, words: tl.tensor, floats: tl.tensor, end_ids: tl.tensor, bias_ids: tl.tensor,
    bias_values: tl.tensor, seen: tl.tensor, counts: tl.tensor, state_rows: tl.tensor, live: tl.tensor,
    first: tl.tensor, offered: tl.tensor, drafts: tl.tensor, adjusted: tl.tensor, gathered: tl.tensor,
    counters: tl.tensor, tokens: tl.tensor, finite: tl.tensor, W: tl.tensor, V: tl.constexpr, BLOCK: tl.constexpr,
    COLUMNS: tl.constexpr, FEWEST: tl.constexpr, CAPACITY: tl.constexpr,
) -> None:  # fmt: skip
    """Row `index` of a lane: its token int64 and whether its logits were finite. Masked rows say 0."""
    program = tl.program_id(0)
    lane, index = program // W, program % W
    if (tl.load(live + lane) == 0) | (index > tl.load(offered + lane)):
        tl.store(tokens + program, 0)
        tl.store(finite + program, 1)
    else:
        slot = tl.load(state_rows + lane)
        mine, own = words + slot * WORDS_HERE, floats + slot * FLOATS_HERE
        row = adjusted + program.to(tl.int64) * V
        raw = logits + program.to(tl.int64) * V
        top, broken = _adjust(
            raw, row, mine, own, seen + slot * V, counts + slot * V, drafts + lane * (W - 1), index, V, BLOCK
        )
        emitted = tl.load(mine + GENERATED) + index
        if (tl.load(mine + BIAS_COUNT) > 0) | (emitted < tl.load(mine + MIN_TOKENS)):
            _bias(row, mine, end_ids + slot * ENDS, bias_ids + slot * BIASES, bias_values + slot * BIASES, emitted, V)
            top, broken = _survey(row, V, BLOCK)
        tl.debug_barrier()
        sound = (broken == 0) & (top > float("-inf")) & (top < float("inf"))
        temperature = tl.load(own + TEMPERATURE)
        token = tl.zeros([], tl.int64)
        if sound & (temperature == 0.0):
            token = _lowest(row, top, V, BLOCK)
        elif sound:
            few, counter = gathered + program * CAPACITY, counters + program
            position = tl.load(first + lane) + index
            token = _sample(
                row, mine, own, top, temperature, position, few, counter, V, BLOCK, COLUMNS, FEWEST, CAPACITY
            )
        tl.store(tokens + program, token)
        tl.store(finite + program, sound.to(tl.int8))
