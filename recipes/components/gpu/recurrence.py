"""Recurrent state of lanes on a device: short convolutions and the gated delta rule, with commit and boundary export.

Runs in the worker. Pools have a row for each slot and each snapshot; a round reads the rows of its slots and writes
none. `advance` and `recover` make rows of what was accepted: in place (targets are the slots) or elsewhere (snapshot
rows), and nothing where slot or target is -1. References: short_convolution.py, gated_delta.py, gdn_recovery.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

from recipes.components.device_model import DeviceRows
from recipes.components.gpu.launch import chained, power_above, runs_triton

_CHANNELS = 256
_ROWS = 16
_FINISHED = 16
_TINY = 1e-6
VERIFIED_ROWS = 8
"""Lanes of at most so many rows leave records to choose from; longer ones are kept as a whole."""


@dataclass(frozen=True, slots=True)
class DeltaShape:
    """Heads and sizes: `key_heads` of `key`, `value_heads` of `value` elements; value heads share key heads."""

    key_heads: int
    value_heads: int
    key: int
    value: int


@dataclass(frozen=True, slots=True)
class DeltaGates:
    """The layer's own decay: `log` and `bias` float32 [value heads]."""

    log: Tensor
    bias: Tensor


@dataclass(frozen=True, slots=True)
class Records:
    """What a round leaves for commit, float32: `keys` [R, HK, K], `values` [R, HV, V], `decays` [R, HV].

    `final` [B, HV, K, V] of lanes that are kept as a whole; else empty.
    """

    keys: Tensor
    values: Tensor
    decays: Tensor
    final: Tensor

    def layer(self, number: int) -> Records:
        """Those of one layer, of the records of many."""
        return Records(self.keys[number], self.values[number], self.decays[number], self.final)


def convolve(
    pool: Tensor, inputs: Tensor, weight: Tensor, rows: DeviceRows, dilation: int = 1, into: Tensor | None = None
) -> Tensor:
    """silu(convolution) [R, C] of `inputs` [R, C] behind `pool` [rows, L, C]; `weight` [C, taps]; zero where masked.

    With `into` float32 [R, C] it is added to that, and that is returned.
    """
    if not runs_triton(inputs):
        found = _convolve(pool, inputs, weight, rows, dilation)
        return found if into is None else into.add_(found.float())
    from recipes.components.gpu.recurrence_kernels import convolve as kernel

    lanes, channels, block = len(rows.slots), inputs.shape[1], min(_CHANNELS, power_above(inputs.shape[1]))
    out, tall = torch.empty_like(inputs) if into is None else into, min(_ROWS, power_above(rows.width))
    early = chained(inputs)
    kernel[(lanes, -(-rows.width // tall), -(-channels // block))](
        pool, inputs, weight, rows.slots, rows.counts, out, rows.width, channels, pool.shape[1], weight.shape[1],
        dilation, tall, block, into is not None, early, **_launch(early),
    )  # fmt: skip
    return out


def _convolve(pool: Tensor, inputs: Tensor, weight: Tensor, rows: DeviceRows, dilation: int) -> Tensor:
    width = rows.width
    live = ((rows.slots >= 0)[:, None] & (torch.arange(width, device=inputs.device) < rows.counts[:, None]))[..., None]
    fresh = torch.where(live, inputs.view(-1, width, inputs.shape[1]).float(), 0.0)
    series = torch.cat([pool[rows.slots.clamp_min(0)].float(), fresh], dim=1)
    found = torch.zeros_like(fresh)
    for tap in range(weight.shape[1]):
        found += series[:, tap * dilation : tap * dilation + width] * weight[:, tap].float()
    return torch.where(live, silu(found), 0.0).flatten(0, 1).to(inputs.dtype)


def advance(pool: Tensor, inputs: Tensor, rows: DeviceRows, kept: Tensor, targets: Tensor) -> None:
    """`pool`[target] = the last L of `pool`[slot] and the lane's first `kept` of `inputs` [R, C] (tokens: C = 1).

    `pool` [rows, L, C]; or of many layers at once [layers, rows, L, C], with inputs [layers, R, at least C].
    """
    if pool.dim() == 3:
        pool, inputs = pool[None], inputs[None]
    if not runs_triton(pool):
        for own, fresh in zip(pool, inputs, strict=True):
            _advance(own, fresh[:, : own.shape[2]], rows, kept, targets)
        return
    from recipes.components.gpu.recurrence_kernels import advance as kernel

    layers, _, length, channels = pool.shape
    block, early = min(_CHANNELS, power_above(channels)), chained(pool)
    kernel[(len(rows.slots), -(-channels // block), layers)](
        pool, inputs, rows.slots, kept, targets, pool.stride(0), inputs.stride(0), inputs.stride(1), rows.width,
        channels, length, power_above(length), block, early, **_launch(early),
    )  # fmt: skip


def _advance(pool: Tensor, inputs: Tensor, rows: DeviceRows, kept: Tensor, targets: Tensor) -> None:
    length = pool.shape[1]
    series = torch.cat([pool[rows.slots.clamp_min(0)], inputs.view(-1, rows.width, pool.shape[2]).to(pool.dtype)], 1)
    places = kept[:, None] + torch.arange(length, device=pool.device)
    found = series.gather(1, places[..., None].expand(-1, -1, pool.shape[2]))
    _put(pool, found, rows.slots, targets)


def _put(pool: Tensor, found: Tensor, slots: Tensor, targets: Tensor) -> None:
    """Writes lanes that have a slot and a target. The reference may wait for the host, kernels do not."""
    valid = (slots >= 0) & (targets >= 0)
    pool[targets[valid]] = found[valid]


def delta(
    states: Tensor,
    mixed: Tensor,
    rates: Tensor,
    strengths: Tensor,
    gates: DeltaGates,
    rows: DeviceRows,
    shape: DeltaShape,
) -> tuple[Tensor, Records]:
    """Outputs [R, HV, V] in `mixed`'s type, zero where masked, and records, of lanes behind `states` [rows, HV, K, V].

    `mixed` [R, 2 * HK * K + HV * V]: convolved queries, keys, values; `rates`, `strengths` [R, HV]: raw decay and beta.
    For prompt chunks; over a round's few rows it is the reference of verified_delta.py, and no kernel.
    """
    if not runs_triton(mixed) or rows.width <= VERIFIED_ROWS:
        return _delta(states, mixed, rates, strengths, gates, rows, shape)
    from recipes.components.gpu.delta_prefill import delta_prefill

    out, final = delta_prefill(states, mixed, rates, strengths, gates, rows, shape)
    nothing = final.new_empty(0)
    return out, Records(nothing, nothing, nothing, final)


def _delta(
    states: Tensor, mixed: Tensor, rates: Tensor, strengths: Tensor, gates: DeltaGates, rows: DeviceRows, s: DeltaShape
) -> tuple[Tensor, Records]:
    lanes, share = len(rows.slots), s.value_heads // s.key_heads
    width = s.key_heads * s.key
    split = torch.tensor_split(mixed.float(), (width, 2 * width), dim=1)
    queries, keys = (_unit(part.view(len(mixed), s.key_heads, s.key)) for part in split[:2])
    live = (rows.slots >= 0)[:, None] & (torch.arange(rows.width, device=mixed.device) < rows.counts[:, None])
    decays = torch.exp(-gates.log.exp() * softplus(rates.float() + gates.bias)).view(lanes, rows.width, -1)
    decays = torch.where(live[..., None], decays, 1.0)
    betas = torch.where(live[..., None], strengths.float().sigmoid().view(lanes, rows.width, -1), 0.0)
    wide_q = queries.repeat_interleave(share, 1).view(lanes, rows.width, s.value_heads, s.key) * s.key**-0.5
    wide_k = keys.repeat_interleave(share, 1).view(lanes, rows.width, s.value_heads, s.key)
    wide_k = torch.where(live[..., None, None], wide_k, 0.0)
    values = split[2].view(lanes, rows.width, s.value_heads, s.value)
    values = torch.where(live[..., None, None], values, 0.0)
    state = torch.where((rows.slots >= 0)[:, None, None, None], states[rows.slots.clamp_min(0)], 0.0)
    outputs, corrections = [], []
    for row in range(rows.width):
        key = wide_k[:, row, :, :, None]
        state = state * decays[:, row, :, None, None]
        corrections.append(betas[:, row, :, None] * (values[:, row] - (state * key).sum(2)))
        state = state + key * corrections[-1][:, :, None]
        outputs.append((state * wide_q[:, row, :, :, None]).sum(2))
    out = torch.where(live[..., None, None], torch.stack(outputs, 1), 0.0).flatten(0, 1)
    final = state if rows.width > VERIFIED_ROWS else state[:0]
    return out.to(mixed.dtype), Records(keys, torch.stack(corrections, 1).flatten(0, 1), decays.flatten(0, 1), final)


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + _TINY)


def recover(
    states: Tensor, records: Records, rows: DeviceRows, kept: Tensor, targets: Tensor, shape: DeltaShape
) -> None:
    """`states`[target] = `states`[slot] after its lane's first `kept` rows, which `records` tell.

    `states` [rows, HV, K, V]; or of many layers at once [layers, ...], with records of all of them.
    """
    whole = rows.width > VERIFIED_ROWS
    if states.dim() == 4:
        states = states[None]
        if not whole:
            records = Records(records.keys[None], records.values[None], records.decays[None], records.final)
    if not runs_triton(states):
        for layer, own in enumerate(states):
            _recover(own, records if whole else records.layer(layer), rows, kept, targets, shape)
        return
    from recipes.components.gpu.recurrence_kernels import recover as kernel

    wide, early = min(32, power_above(shape.value)), chained(states)
    kernel[(len(rows.slots) * shape.value_heads, -(-shape.value // wide), len(states))](
        states, records.keys, records.values, records.decays, records.final, rows.slots, kept, targets,
        states.stride(0), len(rows.slots) * rows.width, rows.width, shape.key_heads, shape.value_heads, shape.key,
        shape.value, power_above(shape.key), wide, whole, early, **_launch(early),
    )  # fmt: skip


def _launch(early: bool) -> dict[str, bool]:
    return {"launch_pdl": True} if early else {}


def _recover(states: Tensor, records: Records, rows: DeviceRows, kept: Tensor, targets: Tensor, s: DeltaShape) -> None:
    state = states[rows.slots.clamp_min(0)]
    if rows.width > VERIFIED_ROWS:
        _put(states, torch.where((kept > 0)[:, None, None, None], records.final, state), rows.slots, targets)
        return
    keys = records.keys.repeat_interleave(s.value_heads // s.key_heads, 1)
    for row in range(rows.width):
        at = torch.arange(len(rows.slots), device=states.device) * rows.width + row
        added = keys[at][..., None] * records.values[at][:, :, None]
        further = state * records.decays[at][..., None, None] + added
        state = torch.where((row < kept)[:, None, None, None], further, state)
    _put(states, state, rows.slots, targets)


def finish(outputs: Tensor, gates: Tensor, norm: Tensor, epsilon: float) -> Tensor:
    """norm(outputs) * sigmoid(gates), [R, HV * V] of `outputs` [R, HV, V]; the norm is over a head, `norm` [V].

    Rows of `gates` [R, HV * V] may lie apart.
    """
    count, heads, size = outputs.shape
    if not runs_triton(outputs):
        wide = outputs.float()
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon) * norm.float()
        return (normed.flatten(1) * gates.float().sigmoid()).to(outputs.dtype)
    from recipes.components.gpu.chunk_recurrence_kernels import finish as kernel

    out = torch.empty(count, heads * size, dtype=outputs.dtype, device=outputs.device)
    kernel[(-(-count * heads // _FINISHED),)](
        outputs, gates, norm, out, count * heads, gates.stride(0), epsilon, heads, size, power_above(size), _FINISHED
    )
    return out
