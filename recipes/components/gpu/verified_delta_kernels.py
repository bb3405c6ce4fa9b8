"""Triton kernels of a gated delta net over the few rows of a verified round, from its projections to gated outputs.

A program holds a whole value head's state. The rows of a lane go through it at once: what each adds to the others is a
triangle of eight by eight, so the state is multiplied once with all their keys and queries. Rounds of one row a lane,
where all of that is idle, have a kernel of their own. What is older than the kernel before (the state, the
convolution's history, weights) is loaded before the wait (launch.py has the rule).
"""

# mypy: disable-error-code="untyped-decorator,assignment,no-any-return"
from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

ROWS = tl.constexpr(8)
"""Rows of a lane that a program computes, whatever the round's width."""


@triton.jit
def _convolved(
    past: tl.tensor, projected: tl.tensor, taps: tl.tensor, channel: tl.tensor, inside: tl.tensor, index: tl.tensor,
    lane: tl.tensor, W: tl.tensor, LINE: tl.constexpr, LENGTH: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """silu of `past` and what the lane's own rows add; rows that are `inside` follow one another from row 0 on."""
    found = past
    for tap in tl.static_range(LENGTH + 1):
        place = index + tap - LENGTH
        value = tl.load(projected + (lane * W + place) * LINE + channel, mask=inside & (place >= 0), other=0)
        found += value.to(tl.float32) * taps[tap]
    return found * tl.sigmoid(found)


@triton.jit
def _taps_and_past(
    convolution: tl.tensor, history: tl.tensor, slot: tl.tensor, channel: tl.tensor, known: tl.tensor,
    inside: tl.tensor, index: tl.tensor, C: tl.constexpr, LENGTH: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:  # fmt: skip
    """(weights of taps of `known` channels, oldest first; what `history` [rows, LENGTH, C] adds to rows `index`)."""
    taps, found = (), tl.zeros(inside.shape, tl.float32)
    for tap in tl.static_range(LENGTH + 1):
        weight = tl.load(convolution + channel * (LENGTH + 1) + tap, mask=known, other=0).to(tl.float32)
        taps = taps + (weight,)  # noqa: RUF005
        old = inside & (index + tap < LENGTH) & (slot >= 0)
        place = (tl.maximum(slot, 0) * LENGTH + index + tap) * C + channel
        found += tl.load(history + place, mask=old, other=0).to(tl.float32) * weight
    return taps, found


@triton.jit
def _rates(
    line: tl.tensor, decay_log: tl.tensor, decay_bias: tl.tensor, head: tl.tensor, live: tl.tensor, HV: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:  # fmt: skip
    """(logarithm of the decay, beta) of rows whose raw ones are at `line`: decays of all heads, then betas."""
    raw = tl.load(line + head, mask=live, other=0).to(tl.float32) + tl.load(decay_bias + head).to(tl.float32)
    softplus = tl.where(raw > 20.0, raw, tl.log(1.0 + tl.exp(tl.minimum(raw, 20.0))))
    beta = tl.sigmoid(tl.load(line + HV + head, mask=live, other=0).to(tl.float32))
    return -tl.exp(tl.load(decay_log + head).to(tl.float32)) * softplus, beta


@triton.jit
def _inverse(power: tl.tensor, at: tl.tensor) -> tl.tensor:
    """That of one less `power` [16, 16], whose eighth power is zero, so that three products are exact."""
    unit = tl.where(at[None, :] == at[:, None], 1.0, 0.0)
    inverse = unit + power
    for _ in tl.static_range(2):
        power = tl.dot(power, power, input_precision="tf32x3")
        inverse = tl.dot(inverse, unit + power, input_precision="tf32x3")
    return inverse


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
    key_head = head // (HV // HK)
    slot, count = tl.load(slots + lane).to(tl.int32), tl.load(counts + lane).to(tl.int32)
    count = tl.where(slot >= 0, count, 0)
    k, v, both = tl.arange(0, BK), tl.arange(0, BV), tl.arange(0, 2 * ROWS)
    # Keys, values and what they add to the state in the first eight rows of a tile, queries and outputs in the last.
    first, row = both < ROWS, both % ROWS
    channel = tl.where(first, HK * K, 0)[:, None] + key_head * K + k[None, :]
    inside = (k < K)[None, :] & (row < count)[:, None]
    value_channel = 2 * HK * K + head * V + v[None, :]
    value_inside = (v < V)[None, :] & (first & (row < count))[:, None]
    index = row[:, None]
    taps, past = _taps_and_past(convolution, history, slot, channel, (k < K)[None, :], inside, index, C, LENGTH)
    known = (v < V)[None, :]
    taps_v, past_v = _taps_and_past(convolution, history, slot, value_channel, known, value_inside, index, C, LENGTH)
    tile = tl.maximum(slot, 0).to(tl.int64) * (HV * K * V) + (head * K + k)[:, None] * V + v[None, :]
    state = tl.load(states + tile, mask=(k < K)[:, None] & known & (slot >= 0), other=0)
    gain = tl.load(norm + v, mask=v < V, other=0).to(tl.float32)
    if CHAINED:
        gdc_wait()
        gdc_launch_dependents()
    mixed = _convolved(past, projected, taps, channel, inside, index, lane, W, LINE, LENGTH)
    mixed *= (tl.rsqrt(tl.sum(mixed * mixed, 1) + 1e-6) * tl.where(first, 1.0, K**-0.5))[:, None]
    value = _convolved(past_v, projected, taps_v, value_channel, value_inside, index, lane, W, LINE, LENGTH)
    line, live = projected + (lane * W + row) * LINE, row < count
    there = ((both >= ROWS) & (row < W))[:, None] & (v < V)[None, :]
    gate = tl.load(line[:, None] + C + head * V + v[None, :], mask=there & live[:, None], other=0).to(tl.float32)
    fade, beta = _rates(line + C + HV * V, decay_log, decay_bias, head, live, HV)
    fade, beta = tl.where(live, fade, 0.0), tl.where(live & first, beta, 0.0)[:, None]
    earlier = first[None, :] & (row[None, :] <= row[:, None])
    total = tl.sum(tl.where(earlier, fade[None, :], 0.0), 1)
    between = tl.where(earlier, tl.exp(total[:, None] - total[None, :]), 0.0)
    met = tl.dot(mixed, tl.trans(mixed), input_precision="tf32x3") * between
    inverse = _inverse(tl.where((both[None, :] < both[:, None]) & first[:, None], -met * beta, 0.0), both)
    faded = tl.exp(total)[:, None] * tl.dot(mixed, state, input_precision="tf32x3")
    correction = tl.dot(inverse, beta * (value - faded), input_precision="tf32x3")
    output = faded + tl.dot(met, correction, input_precision="tf32x3")
    output *= tl.rsqrt(tl.sum(output * output, 1) / V + epsilon)[:, None] * gain[None, :] * tl.sigmoid(gate)
    place = (lane * W + row).to(tl.int64) * HV + head
    at, output = place[:, None] * V + v[None, :], tl.where(live[:, None], output, 0.0)
    tl.store(out + at, output.to(out.dtype.element_ty), mask=there)
    tl.store(values + at, correction, mask=value_inside)
    tl.store(decays + place, tl.exp(fade), mask=live & first)
    at = ((lane * W + row).to(tl.int64)[:, None] * HK + key_head) * K + k[None, :]
    tl.store(keys + at, mixed, mask=inside & first[:, None] & (head % (HV // HK) == 0))


@triton.jit
def _history(
    history: tl.tensor, convolution: tl.tensor, slot: tl.tensor, channel: tl.tensor, inside: tl.tensor,
    C: tl.constexpr, LENGTH: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:  # fmt: skip
    """(what the history [rows, LENGTH, C] adds to a convolution's next output, the newest tap) of some channels."""
    found = tl.zeros(channel.shape, tl.float32)
    for tap in tl.static_range(LENGTH):
        past = tl.load(history + (tl.maximum(slot, 0) * LENGTH + tap) * C + channel, mask=inside & (slot >= 0), other=0)
        weight = tl.load(convolution + channel * (LENGTH + 1) + tap, mask=inside, other=0)
        found += past.to(tl.float32) * weight.to(tl.float32)
    newest = tl.load(convolution + channel * (LENGTH + 1) + LENGTH, mask=inside, other=0).to(tl.float32)
    return found, newest


@triton.jit
def _activated(
    line: tl.tensor, channel: tl.tensor, inside: tl.tensor, before: tl.tensor, newest: tl.tensor
) -> tl.tensor:  # fmt: skip
    """silu of `before` and the row's own input times the newest tap."""
    found = before + tl.load(line + channel, mask=inside, other=0).to(tl.float32) * newest
    return found * tl.sigmoid(found)


@triton.jit
def single_delta(
    states: tl.tensor, history: tl.tensor, projected: tl.tensor, convolution: tl.tensor, decay_log: tl.tensor,
    decay_bias: tl.tensor, norm: tl.tensor, slots: tl.tensor, counts: tl.tensor, out: tl.tensor, keys: tl.tensor,
    values: tl.tensor, decays: tl.tensor, epsilon: tl.constexpr, HK: tl.constexpr, HV: tl.constexpr,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, LENGTH: tl.constexpr,
    CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """One lane, of one row, and value head a program; all as in `verified_delta`."""
    C: tl.constexpr = 2 * HK * K + HV * V
    LINE: tl.constexpr = C + HV * V + 2 * HV
    lane, head = tl.program_id(0) // HV, tl.program_id(0) % HV
    key_head = head // (HV // HK)
    slot = tl.load(slots + lane).to(tl.int32)
    live = (slot >= 0) & (tl.load(counts + lane) > 0)
    k, v = tl.arange(0, BK), tl.arange(0, BV)
    in_key, in_value = k < K, v < V
    tile = (head * K + k)[:, None] * V + v[None, :]
    whole = in_key[:, None] & in_value[None, :] & live
    state = tl.load(states + tl.maximum(slot, 0).to(tl.int64) * (HV * K * V) + tile, mask=whole, other=0)
    # The query and the key are rows of one small tile: alone, each would be loaded by every thread that needs it.
    which, value_channel = tl.arange(0, 2)[:, None], 2 * HK * K + head * V + v
    channel, in_both = (which * HK + key_head) * K + k[None, :], (which >= 0) & in_key[None, :]
    before, newest = _history(history, convolution, slot, channel, in_both, C, LENGTH)
    value_before, value_tap = _history(history, convolution, slot, value_channel, in_value, C, LENGTH)
    gain = tl.load(norm + v, mask=in_value, other=0).to(tl.float32)
    if CHAINED:
        gdc_wait()
        gdc_launch_dependents()
    line = projected + lane * LINE
    both = _activated(line, channel, in_both, before, newest)
    value = _activated(line, value_channel, in_value, value_before, value_tap)
    gate = tl.load(line + C + head * V + v, mask=in_value, other=0).to(tl.float32)
    fade, beta = _rates(line + C + HV * V, decay_log, decay_bias, head, live, HV)
    decay = tl.exp(fade)
    both *= (tl.rsqrt(tl.sum(both * both, 1) + 1e-6) * tl.where(tl.arange(0, 2) == 0, K**-0.5, 1.0))[:, None]
    query, key = tl.sum(tl.where(which == 0, both, 0.0), 0), tl.sum(tl.where(which == 1, both, 0.0), 0)
    correction = beta * (value - decay * tl.sum(state * key[:, None], 0))
    output = decay * tl.sum(state * query[:, None], 0) + tl.sum(query * key, 0) * correction
    output *= tl.rsqrt(tl.sum(output * output, 0) / V + epsilon) * gain * tl.sigmoid(gate)
    at = (lane * HV + head) * V + v
    tl.store(out + at, tl.where(live, output, 0.0).to(out.dtype.element_ty), mask=in_value)
    tl.store(values + at, correction, mask=in_value & live)
    tl.store(decays + lane * HV + head, decay, mask=live)
    tl.store(keys + (lane * HK + key_head) * K + k, key, mask=in_key & live & (head % (HV // HK) == 0))
