"""Triton kernels of recurrent state: short convolutions, the gated delta rule, and what commit makes of their records.

A round reads committed rows of the pools and leaves them as they are; only the kernels named `advance` and `recover`
write pools, for lanes that have a slot. Prompt chunks go through the same recurrence, row after row.
"""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def convolve(
    pool: tl.tensor, inputs: tl.tensor, weight: tl.tensor, slots: tl.tensor, counts: tl.tensor, out: tl.tensor,
    W: tl.tensor, C: tl.constexpr, LENGTH: tl.constexpr, TAPS: tl.constexpr, DILATION: tl.constexpr,
    BW: tl.constexpr, BC: tl.constexpr, ADD: tl.constexpr, CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """`out` [B * W, C] = silu(causal depthwise convolution) of `inputs` behind `pool` [rows, LENGTH, C], or += that."""
    if CHAINED:
        gdc_wait()
        gdc_launch_dependents()
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
    found *= tl.sigmoid(found)
    if ADD:
        found += tl.load(out + at, mask=here, other=0).to(tl.float32)
    tl.store(out + at, found.to(out.dtype.element_ty), mask=here)


@triton.jit
def advance(
    pool: tl.tensor, inputs: tl.tensor, slots: tl.tensor, kept: tl.tensor, targets: tl.tensor, LAYER: tl.tensor,
    INPUTS: tl.tensor, LINE: tl.tensor, W: tl.tensor, C: tl.constexpr, LENGTH: tl.constexpr, BL: tl.constexpr,
    BC: tl.constexpr, CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """`pool`[target] = the last LENGTH of `pool`[slot] and its lane's first `kept` inputs, read before written.

    Layers of the pool lie LAYER elements apart, those of the inputs INPUTS, whose rows are LINE apart.
    """
    if CHAINED:
        gdc_wait()
        gdc_launch_dependents()
    lane, layer = tl.program_id(0), tl.program_id(2).to(tl.int64)
    pool += layer * LAYER
    inputs += layer * INPUTS
    slot, target, count = tl.load(slots + lane), tl.load(targets + lane), tl.load(kept + lane)
    index = tl.arange(0, BL)
    channel = tl.program_id(1) * BC + tl.arange(0, BC)
    here = (index < LENGTH)[:, None] & (channel < C)[None, :] & (slot >= 0) & (target >= 0)
    place = index + count
    past = (tl.maximum(slot, 0) * LENGTH + place)[:, None] * C + channel[None, :]
    fresh = (lane * W + place - LENGTH).to(tl.int64)[:, None] * LINE + channel[None, :]
    old = (place < LENGTH)[:, None]
    value = tl.load(pool + past, mask=here & old, other=0)
    value += tl.load(inputs + fresh, mask=here & (old == 0), other=0).to(pool.dtype.element_ty)
    tl.debug_barrier()
    at = (tl.maximum(target, 0) * LENGTH + index)[:, None] * C + channel[None, :]
    tl.store(pool + at, value, mask=here)


@triton.jit
def recover(
    states: tl.tensor, keys: tl.tensor, values: tl.tensor, decays: tl.tensor, final: tl.tensor, slots: tl.tensor,
    kept: tl.tensor, targets: tl.tensor, LAYER: tl.tensor, R: tl.tensor, W: tl.tensor, HK: tl.constexpr,
    HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, FINAL: tl.constexpr,
    CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """`states`[target] = `states`[slot] after its lane's first `kept` rows, replayed from their records.

    Layers lie LAYER elements apart in the states and R rows in the records. With `FINAL` the lane was kept as a whole
    and its end is in `final` [B, HV, K, V].
    """
    if CHAINED:
        gdc_wait()
        gdc_launch_dependents()
    lane, head, layer = tl.program_id(0) // HV, tl.program_id(0) % HV, tl.program_id(2).to(tl.int64)
    states += layer * LAYER
    keys += layer * R * (HK * K)
    values += layer * R * (HV * V)
    decays += layer * R * HV
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
