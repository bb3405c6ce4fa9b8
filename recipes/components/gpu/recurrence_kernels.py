"""Triton kernels of recurrent state: short convolutions, the gated delta rule, and what commit makes of their records.

A round reads committed rows of the pools and leaves them as they are; only the kernels named `advance` and `recover`
write pools, for lanes that have a slot. Prompt chunks go through the same recurrence, row after row.
"""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def convolve(
    pool: tl.tensor, inputs: tl.tensor, weight: tl.tensor, slots: tl.tensor, counts: tl.tensor, out: tl.tensor,
    W: tl.constexpr, C: tl.constexpr, LENGTH: tl.constexpr, TAPS: tl.constexpr, DILATION: tl.constexpr,
    BW: tl.constexpr, BC: tl.constexpr,
) -> None:  # fmt: skip
    """`out` [B * W, C] = silu(causal depthwise convolution) of `inputs` behind `pool` [rows, LENGTH, C]."""
    lane = tl.program_id(0)
    slot, count = tl.load(slots + lane), tl.load(counts + lane)
    row = tl.program_id(1) * BW + tl.arange(0, BW)
    channel = tl.program_id(2) * BC + tl.arange(0, BC)
    here = (row < W)[:, None] & (channel < C)[None, :]
    live = here & (slot >= 0) & (row < count)[:, None]
    found = tl.zeros([BW, BC], tl.float32)
    for tap in tl.static_range(TAPS):
        place = row + tap * DILATION
        past = (tl.maximum(slot, 0) * LENGTH + place)[:, None] * C + channel[None, :]
        fresh = (lane * W + place - LENGTH).to(tl.int64)[:, None] * C + channel[None, :]
        old = (place < LENGTH)[:, None]
        value = tl.load(pool + past, mask=live & old, other=0).to(tl.float32)
        value += tl.load(inputs + fresh, mask=live & (old == 0), other=0).to(tl.float32)
        factor = tl.load(weight + channel * TAPS + tap, mask=channel < C, other=0).to(tl.float32)
        found += value * factor[None, :]
    at = (lane * W + row).to(tl.int64)[:, None] * C + channel[None, :]
    tl.store(out + at, (found * tl.sigmoid(found)).to(out.dtype.element_ty), mask=here)


@triton.jit
def advance(
    pool: tl.tensor, inputs: tl.tensor, slots: tl.tensor, kept: tl.tensor, targets: tl.tensor, W: tl.constexpr,
    C: tl.constexpr, LENGTH: tl.constexpr, BL: tl.constexpr, BC: tl.constexpr,
) -> None:  # fmt: skip
    """`pool`[target] = the last LENGTH of `pool`[slot] and its lane's first `kept` inputs, read before written."""
    lane = tl.program_id(0)
    slot, target, count = tl.load(slots + lane), tl.load(targets + lane), tl.load(kept + lane)
    index = tl.arange(0, BL)
    channel = tl.program_id(1) * BC + tl.arange(0, BC)
    here = (index < LENGTH)[:, None] & (channel < C)[None, :] & (slot >= 0) & (target >= 0)
    place = index + count
    past = (tl.maximum(slot, 0) * LENGTH + place)[:, None] * C + channel[None, :]
    fresh = (lane * W + place - LENGTH).to(tl.int64)[:, None] * C + channel[None, :]
    old = (place < LENGTH)[:, None]
    value = tl.load(pool + past, mask=here & old, other=0)
    value += tl.load(inputs + fresh, mask=here & (old == 0), other=0).to(pool.dtype.element_ty)
    tl.debug_barrier()
    at = (tl.maximum(target, 0) * LENGTH + index)[:, None] * C + channel[None, :]
    tl.store(pool + at, value, mask=here)


@triton.jit
def _unit(x: tl.tensor) -> tl.tensor:
    return x * tl.rsqrt(tl.sum(x * x, 0) + 1e-6)


@triton.jit
def delta(
    states: tl.tensor, mixed: tl.tensor, rates: tl.tensor, strengths: tl.tensor, decay_log: tl.tensor,
    decay_bias: tl.tensor, slots: tl.tensor, counts: tl.tensor, out: tl.tensor, keys: tl.tensor, values: tl.tensor,
    decays: tl.tensor, final: tl.tensor, W: tl.constexpr, HK: tl.constexpr, HV: tl.constexpr, K: tl.constexpr,
    V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, FINAL: tl.constexpr,
) -> None:  # fmt: skip
    """The gated delta rule over a lane's rows, one value head and `BV` of its columns a program.

    `states` float32 [rows, HV, K, V]; `mixed` [B * W, 2 * HK * K + HV * V]; `rates`, `strengths` [B * W, HV], raw.
    Records: `keys` [B * W, HK, K], normalised; `values` [B * W, HV, V], the corrections; `decays` [B * W, HV].
    """
    lane, head = tl.program_id(0) // HV, tl.program_id(0) % HV
    slot, count = tl.load(slots + lane), tl.load(counts + lane)
    count = tl.where(slot >= 0, count, 0)
    k = tl.arange(0, BK)
    v = tl.program_id(1) * BV + tl.arange(0, BV)
    inside = (k < K)[:, None] & (v < V)[None, :]
    tile = (head * K + k)[:, None] * V + v[None, :]
    state = tl.load(states + tl.maximum(slot, 0).to(tl.int64) * (HV * K * V) + tile, mask=inside & (slot >= 0), other=0)
    rate, bias = tl.exp(tl.load(decay_log + head).to(tl.float32)), tl.load(decay_bias + head).to(tl.float32)
    key_head = head // (HV // HK)
    width: tl.constexpr = 2 * HK * K + HV * V
    for index in range(0, W):
        live = index < count
        row = (lane * W + index).to(tl.int64)
        line = mixed + row * width
        query = _unit(tl.load(line + key_head * K + k, mask=(k < K) & live, other=0).to(tl.float32)) * (K**-0.5)
        key = _unit(tl.load(line + (HK + key_head) * K + k, mask=(k < K) & live, other=0).to(tl.float32))
        value = tl.load(line + 2 * HK * K + head * V + v, mask=(v < V) & live, other=0).to(tl.float32)
        raw = tl.load(rates + row * HV + head, mask=live, other=0).to(tl.float32) + bias
        softplus = tl.where(raw > 20.0, raw, tl.log(1.0 + tl.exp(tl.minimum(raw, 20.0))))
        decay = tl.where(live, tl.exp(-rate * softplus), 1.0)
        beta = tl.sigmoid(tl.load(strengths + row * HV + head, mask=live, other=0).to(tl.float32))
        state = state * decay
        correction = beta * (value - tl.sum(state * key[:, None], 0))
        state = state + key[:, None] * correction[None, :]
        output = tl.sum(state * query[:, None], 0)
        tl.store(out + (row * HV + head) * V + v, output.to(out.dtype.element_ty), mask=v < V)
        tl.store(values + (row * HV + head) * V + v, correction, mask=(v < V) & live)
        first = live & (tl.program_id(1) == 0)
        tl.store(decays + row * HV + head, decay, mask=first)
        tl.store(keys + (row * HK + key_head) * K + k, key, mask=(k < K) & first & (head % (HV // HK) == 0))
    if FINAL:
        tl.store(final + lane.to(tl.int64) * (HV * K * V) + tile, state, mask=inside)


@triton.jit
def recover(
    states: tl.tensor, keys: tl.tensor, values: tl.tensor, decays: tl.tensor, final: tl.tensor, slots: tl.tensor,
    kept: tl.tensor, targets: tl.tensor, W: tl.constexpr, HK: tl.constexpr, HV: tl.constexpr, K: tl.constexpr,
    V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, FINAL: tl.constexpr,
) -> None:  # fmt: skip
    """`states`[target] = `states`[slot] after its lane's first `kept` rows, replayed from their records.

    With `FINAL` the lane was kept as a whole and its end is in `final` [B, HV, K, V].
    """
    lane, head = tl.program_id(0) // HV, tl.program_id(0) % HV
    slot, target, count = tl.load(slots + lane), tl.load(targets + lane), tl.load(kept + lane)
    if (slot >= 0) & (target >= 0) & ((count > 0) | (slot != target)):
        k = tl.arange(0, BK)
        v = tl.program_id(1) * BV + tl.arange(0, BV)
        inside = (k < K)[:, None] & (v < V)[None, :]
        tile = (head * K + k)[:, None] * V + v[None, :]
        state = tl.load(states + slot.to(tl.int64) * (HV * K * V) + tile, mask=inside, other=0)
        if FINAL:
            end = tl.load(final + lane.to(tl.int64) * (HV * K * V) + tile, mask=inside & (count > 0), other=0)
            state = tl.where(count > 0, end, state)
        else:
            key_head = head // (HV // HK)
            for index in range(0, W):
                live = index < count
                row = (lane * W + index).to(tl.int64)
                decay = tl.load(decays + row * HV + head, mask=live, other=1.0)
                key = tl.load(keys + (row * HK + key_head) * K + k, mask=(k < K) & live, other=0)
                correction = tl.load(values + (row * HV + head) * V + v, mask=(v < V) & live, other=0)
                state = state * decay
                state = state + key[:, None] * correction[None, :]
        tl.store(states + target.to(tl.int64) * (HV * K * V) + tile, state, mask=inside)


@triton.jit
def finish(
    outputs: tl.tensor, gates: tl.tensor, norm: tl.tensor, out: tl.tensor, epsilon: tl.constexpr, HV: tl.constexpr,
    V: tl.constexpr, BV: tl.constexpr,
) -> None:  # fmt: skip
    """One row and head a program: norm over the head, times the sigmoid of its gate."""
    at = (tl.program_id(0).to(tl.int64) * HV + tl.program_id(1)) * V + tl.arange(0, BV)
    here = tl.arange(0, BV) < V
    value = tl.load(outputs + at, mask=here, other=0).to(tl.float32)
    gate = tl.sigmoid(tl.load(gates + at, mask=here, other=0).to(tl.float32))
    weight = tl.load(norm + tl.arange(0, BV), mask=here, other=0).to(tl.float32)
    value *= tl.rsqrt(tl.sum(value * value, 0) / V + epsilon) * weight * gate
    tl.store(out + at, value.to(out.dtype.element_ty), mask=here)
