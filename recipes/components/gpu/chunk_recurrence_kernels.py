"""Triton kernels around the gated delta rule of prompt chunks: its convolution, and what follows its outputs.

Both read columns of one wide projection where they lie. Called by chunk_recurrence.py.
"""

# mypy: disable-error-code="untyped-decorator,assignment"
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def convolve_runs(
    pool: tl.tensor, inputs: tl.tensor, weight: tl.tensor, slots: tl.tensor, counts: tl.tensor, out: tl.tensor,
    tails: tl.tensor, W: tl.tensor, LINE: tl.tensor, C: tl.constexpr, TAPS: tl.constexpr, RUN: tl.constexpr,
    BC: tl.constexpr,
) -> None:  # fmt: skip
    """One lane, `RUN` of its rows and `BC` channels a program, which reads each row once.

    `inputs` [B * W, C], LINE apart, behind `pool` [rows, TAPS - 1, C]; `out` [B * W, C], zero where masked; `tails`
    [B, TAPS - 1, C]: the newest of what each lane has seen.
    """
    lane, start = tl.program_id(0), tl.program_id(1) * RUN
    slot, count = tl.load(slots + lane), tl.load(counts + lane)
    count = tl.where(slot >= 0, tl.minimum(count, W), 0)
    channel = tl.program_id(2) * BC + tl.arange(0, BC)
    inside = channel < C
    history = pool + tl.maximum(slot, 0).to(tl.int64) * ((TAPS - 1) * C) + channel
    fresh = inputs + (lane * W).to(tl.int64) * LINE + channel
    target = out + (lane * W + start).to(tl.int64) * C + channel
    if start < count:
        # All rows are asked for before any is used: what is stored between keeps loads from being moved up.
        window, factors = (), ()
        for tap in tl.static_range(TAPS - 1):
            before = start + tap - (TAPS - 1)
            past = tl.load(history + tap * C, mask=inside & (start == 0), other=0).to(tl.float32)
            known = inside & (start > 0) & (before < count)
            window += (past + tl.load(fresh + before.to(tl.int64) * LINE, mask=known, other=0).to(tl.float32),)
        for row in tl.static_range(RUN):
            live = inside & (start + row < count)
            window += (tl.load(fresh + (start + row).to(tl.int64) * LINE, mask=live, other=0),)
        for tap in tl.static_range(TAPS):
            factors += (tl.load(weight + channel * TAPS + tap, mask=inside, other=0).to(tl.float32),)
        for row in tl.static_range(RUN):
            found = tl.zeros([BC], tl.float32)
            for tap in tl.static_range(TAPS):
                found += window[row + tap].to(tl.float32) * factors[tap]
            found = tl.where(inside & (start + row < count), found * tl.sigmoid(found), 0.0)
            tl.store(target + row * C, found.to(out.dtype.element_ty), mask=inside & (start + row < W))
    else:
        for row in tl.static_range(RUN):
            tl.store(target + row * C, tl.zeros([BC], out.dtype.element_ty), mask=inside & (start + row < W))
    if start == 0:
        for tap in tl.static_range(TAPS - 1):
            index = count - (TAPS - 1) + tap
            old = tl.load(history + (count + tap) * C, mask=inside & (index < 0) & (slot >= 0), other=0)
            new = tl.load(fresh + index.to(tl.int64) * LINE, mask=inside & (index >= 0), other=0)
            kept = tails + (lane * (TAPS - 1) + tap).to(tl.int64) * C + channel
            tl.store(kept, tl.where(index < 0, old, new.to(old.dtype)), mask=inside)


@triton.jit
def finish(
    outputs: tl.tensor, gates: tl.tensor, norm: tl.tensor, out: tl.tensor, N: tl.tensor, LINE: tl.tensor,
    epsilon: tl.constexpr, HV: tl.constexpr, V: tl.constexpr, BV: tl.constexpr, BR: tl.constexpr,
) -> None:  # fmt: skip
    """`BR` of N (row, head) pairs a program: norm over the head, times the sigmoid of the gate; LINE of gates a row."""
    item, at = tl.program_id(0) * BR + tl.arange(0, BR), tl.arange(0, BV)
    here = (item < N)[:, None] & (at < V)[None, :]
    place = item.to(tl.int64)[:, None] * V + at[None, :]
    beside = (item // HV).to(tl.int64) * LINE + item % HV * V
    value = tl.load(outputs + place, mask=here, other=0).to(tl.float32)
    gate = tl.sigmoid(tl.load(gates + beside[:, None] + at[None, :], mask=here, other=0).to(tl.float32))
    weight = tl.load(norm + at, mask=at < V, other=0).to(tl.float32)
    value *= tl.rsqrt(tl.sum(value * value, 1) / V + epsilon)[:, None] * weight[None, :] * gate
    tl.store(out + place, value.to(out.dtype.element_ty), mask=here)
