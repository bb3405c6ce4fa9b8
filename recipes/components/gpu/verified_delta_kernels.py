"""Triton kernel of a gated delta net over the few rows of a verified round, from its projections to gated outputs.

A program holds a whole value head's state in registers, and the rows of its lane go through it one after another. A
warp has all keys of sixteen columns, so what a key finds in the state is a sum over a thread's own elements and two
shuffles; warps meet only where a row's key and query go to all of them and for norms. What is older than the kernel
before (the state, the convolution's history, weights) is loaded before the wait (launch.py has the rule), and nothing
is computed of it there: whatever needs a value would also hold back the loads behind it.
"""

# mypy: disable-error-code="untyped-decorator,assignment,no-any-return"
from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

ROWS = tl.constexpr(8)
"""Rows of a lane at most."""
KEYS = tl.constexpr(4)
"""Threads that share a column's keys, four in a row each."""
COLUMNS = tl.constexpr(8)
"""Threads side by side in a warp's columns, two each.

Tiles of the state have six dimensions [COLUMNS, KEYS, warps, 4, keys / 16, 2], since Triton deals the dimensions of a
load to threads in this order: the contiguous one, then the first, the second, the third.
"""


@triton.jit
def _key_tile(BK: tl.constexpr) -> tl.tensor:
    """Keys' indices [1, KEYS, 1, 4, BK / 16, 1]."""
    thread, four = tl.arange(0, KEYS)[None, :, None, None, None, None], tl.arange(0, 4)[None, None, None, :, None, None]
    return tl.arange(0, BK // (4 * KEYS))[None, None, None, None, :, None] * (4 * KEYS) + thread * 4 + four


@triton.jit
def _value_tile(BV: tl.constexpr) -> tl.tensor:
    """Columns' indices [COLUMNS, 1, BV / 16, 1, 1, 2]."""
    thread = tl.arange(0, COLUMNS)[:, None, None, None, None, None]
    two, warp = tl.arange(0, 2)[None, None, None, None, None, :], tl.arange(0, BV // (2 * COLUMNS))
    return warp[None, None, :, None, None, None] * (2 * COLUMNS) + thread * 2 + two


@triton.jit
def _over_keys(x: tl.tensor) -> tl.tensor:
    """Sums of a tile over its keys: a thread's own first."""
    return tl.sum(tl.sum(tl.sum(x, 4, keep_dims=True), 3, keep_dims=True), 1, keep_dims=True)


@triton.jit
def _spread(x: tl.tensor, BK: tl.constexpr) -> tl.tensor:
    """`x` [BK] as a tile of keys."""
    return tl.permute(tl.reshape(x, [BK // (4 * KEYS), KEYS, 4]), [1, 2, 0])[None, :, None, :, :, None]


@triton.jit
def _gated(output: tl.tensor, gain: tl.tensor, opened: tl.tensor, epsilon: tl.constexpr, V: tl.constexpr) -> tl.tensor:
    """norm(output) * gain * opened of a row's columns, each of which KEYS threads have."""
    square = tl.sum(tl.sum(tl.sum(output * output, 5, keep_dims=True), 0, keep_dims=True), 1, keep_dims=True)
    square = tl.sum(square, 2, keep_dims=True)
    return output * (tl.rsqrt(square / (KEYS * V) + epsilon) * gain * opened)


@triton.jit
def _state(
    states: tl.tensor, slot: tl.tensor, head: tl.tensor, HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    BK: tl.constexpr, BV: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The head's matrix in the slot's row of `states` [rows, HV, K, V]; zero without a slot."""
    k, v = _key_tile(BK), _value_tile(BV)
    place = tl.maximum(slot, 0).to(tl.int64) * (HV * K * V) + (head * K + k) * V + v
    return tl.load(states + place, mask=(k < K) & (v < V) & (slot >= 0), other=0)


@triton.jit
def _rates(
    line: tl.tensor, decay_log: tl.tensor, decay_bias: tl.tensor, head: tl.tensor, live: tl.tensor, HV: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:  # fmt: skip
    """(decay, beta) of rows whose raw ones are at `line`: decays of all heads, then betas."""
    raw = tl.load(line + head, mask=live, other=0).to(tl.float32) + decay_bias
    beta = tl.sigmoid(tl.load(line + HV + head, mask=live, other=0).to(tl.float32))
    softplus = tl.where(raw > 20.0, raw, tl.log(1.0 + tl.exp(tl.minimum(raw, 20.0))))
    return tl.exp(-tl.exp(decay_log) * softplus), beta


@triton.jit
def _taps(
    convolution: tl.tensor, channel: tl.tensor, inside: tl.tensor, LENGTH: tl.constexpr
) -> tuple[tl.tensor, ...]:  # fmt: skip
    """Weights of some channels' taps, oldest first."""
    found = ()
    for tap in tl.static_range(LENGTH + 1):
        weight = tl.load(convolution + channel * (LENGTH + 1) + tap, mask=inside, other=0)
        found = found + (weight.to(tl.float32),)  # noqa: RUF005
    return found


@triton.jit
def _past(
    history: tl.tensor, slot: tl.tensor, channel: tl.tensor, inside: tl.tensor, C: tl.constexpr, LENGTH: tl.constexpr
) -> tuple[tl.tensor, ...]:  # fmt: skip
    """Some channels' inputs in the slot's row of `history` [rows, LENGTH, C], oldest first."""
    found = ()
    for tap in tl.static_range(LENGTH):
        place = (tl.maximum(slot, 0) * LENGTH + tap) * C + channel
        found = found + (tl.load(history + place, mask=inside & (slot >= 0), other=0).to(tl.float32),)  # noqa: RUF005
    return found


@triton.jit
def _later(past: tl.tensor, fresh: tl.tensor, LENGTH: tl.constexpr) -> tuple[tl.tensor, ...]:
    """The `past` of the row after."""
    found = ()
    for tap in tl.static_range(1, LENGTH):
        found = found + (past[tap],)  # noqa: RUF005
    return found + (fresh,)  # noqa: RUF005


@triton.jit
def _convolved(past: tl.tensor, fresh: tl.tensor, taps: tl.tensor, LENGTH: tl.constexpr) -> tl.tensor:
    """silu of the convolution of a row's own input and those before it."""
    found = fresh * taps[LENGTH]
    for tap in tl.static_range(LENGTH):
        found += past[tap] * taps[tap]
    return found * tl.sigmoid(found)


@triton.jit
def _three_sums(
    a: tl.tensor, b: tl.tensor, c: tl.tensor, d: tl.tensor, e: tl.tensor, f: tl.tensor
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:  # fmt: skip
    return a + d, b + e, c + f


@triton.jit
def _one(vector: tl.tensor, index: tl.tensor) -> tl.tensor:
    """An element of a vector of ROWS."""
    return tl.sum(tl.where(tl.arange(0, ROWS) == index, vector, 0.0), 0)


@triton.jit
def _inputs(
    line: tl.tensor, query_at: tl.tensor, key_at: tl.tensor, value_at: tl.tensor, GATES: tl.constexpr,
    of_keys: tl.tensor, of_values: tl.tensor, live: tl.tensor,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:  # fmt: skip
    """A row's query, key, value and gate, GATES behind its value."""
    query = tl.load(line + query_at, mask=of_keys & live, other=0).to(tl.float32)
    key = tl.load(line + key_at, mask=of_keys & live, other=0).to(tl.float32)
    value = tl.load(line + value_at, mask=of_values & live, other=0).to(tl.float32)
    return query, key, value, tl.load(line + GATES + value_at, mask=of_values & live, other=0).to(tl.float32)


@triton.jit
def _through(
    state: tl.tensor, query: tl.tensor, key: tl.tensor, value: tl.tensor, decay: tl.tensor, beta: tl.tensor,
    K: tl.constexpr, BK: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:  # fmt: skip
    """(output, correction, what normalises the key) of a row; norms and state are multiplied in any order."""
    wide_query, wide_key = _spread(query, BK), _spread(key, BK)
    of_query, of_key, met = tl.reduce((query * query, key * key, query * key), 0, _three_sums)
    of_query, of_key = tl.rsqrt(of_query + 1e-6) * K**-0.5, tl.rsqrt(of_key + 1e-6)
    correction = beta * (value - decay * of_key * _over_keys(state * wide_key))
    return of_query * (decay * _over_keys(state * wide_query) + met * of_key * correction), correction, of_key


@triton.jit
def verified_delta(
    states: tl.tensor, history: tl.tensor, projected: tl.tensor, convolution: tl.tensor, decay_log: tl.tensor,
    decay_bias: tl.tensor, norm: tl.tensor, slots: tl.tensor, counts: tl.tensor, out: tl.tensor, keys: tl.tensor,
    values: tl.tensor, decays: tl.tensor, epsilon: tl.constexpr, W: tl.tensor, HK: tl.constexpr, HV: tl.constexpr,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, LENGTH: tl.constexpr,
    CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """One lane and value head a program.

    `projected` [B * W, LINE]: queries, keys and values before their convolution, gates, decays, betas. `states`
    float32 [rows, HV, K, V]; `out` [B * W, HV * V]; records as in recurrence.py.
    """
    C: tl.constexpr = 2 * HK * K + HV * V
    LINE: tl.constexpr = C + HV * V + 2 * HV
    lane, head = tl.program_id(0) // HV, tl.program_id(0) % HV
    key_head, slot, count = head // (HV // HK), tl.load(slots + lane).to(tl.int32), tl.load(counts + lane).to(tl.int32)
    count = tl.where(slot >= 0, count, 0)
    row, k, thread = tl.arange(0, ROWS), tl.arange(0, BK), tl.arange(0, KEYS)[None, :, None, None, None, None]
    v = _value_tile(BV) + 0 * thread
    of_keys, of_values = k < K, v < V
    query_at, key_at, value_at = key_head * K + k, (HK + key_head) * K + k, 2 * HK * K + head * V + v
    taps_q, taps_k = _taps(convolution, query_at, of_keys, LENGTH), _taps(convolution, key_at, of_keys, LENGTH)
    taps_v = _taps(convolution, value_at, of_values, LENGTH)
    gain = tl.load(norm + v, mask=of_values, other=0).to(tl.float32)
    log, bias = tl.load(decay_log + head).to(tl.float32), tl.load(decay_bias + head).to(tl.float32)
    state = _state(states, slot, head, HV, K, V, BK, BV)
    past_q = _past(history, slot, query_at, of_keys, C, LENGTH)
    past_k = _past(history, slot, key_at, of_keys, C, LENGTH)
    past_v = _past(history, slot, value_at, of_values, C, LENGTH)
    if CHAINED:
        gdc_wait()
        gdc_launch_dependents()
    line = projected + lane * W * LINE
    query, key, value, gate = _inputs(line, query_at, key_at, value_at, HV * V, of_keys, of_values, count > 0)
    found, strengths = _rates(line + row * LINE + C + HV * V, log, bias, head, row < count, HV)
    tl.store(decays + (lane * W + row) * HV + head, found, mask=row < count)
    for index in range(0, W):
        mixed_q, mixed_k = _convolved(past_q, query, taps_q, LENGTH), _convolved(past_k, key, taps_k, LENGTH)
        mixed_v, opened = _convolved(past_v, value, taps_v, LENGTH), tl.sigmoid(gate)
        past_q, past_k = _later(past_q, query, LENGTH), _later(past_k, key, LENGTH)
        past_v = _later(past_v, value, LENGTH)
        line += LINE
        more = index + 1 < count
        query, key, value, gate = _inputs(line, query_at, key_at, value_at, HV * V, of_keys, of_values, more)
        decay, beta = _one(found, index), _one(strengths, index)
        output, correction, of_key = _through(state, mixed_q, mixed_k, mixed_v, decay, beta, K, BK)
        if index + 1 < W:
            state = state * decay + _spread(mixed_k, BK) * (of_key * correction)
        output = _gated(output, gain, opened, epsilon, V)
        place = (lane * W + index).to(tl.int64)
        at, mine = (place * HV + head) * V + v, of_values & (thread == 0)
        tl.store(out + at, tl.where(index < count, output, 0.0).to(out.dtype.element_ty), mask=mine)
        tl.store(values + at, correction, mask=mine & (index < count))
        first = of_keys & (index < count) & (head % (HV // HK) == 0)
        tl.store(keys + (place * HK + key_head) * K + k, mixed_k * of_key, mask=first)
