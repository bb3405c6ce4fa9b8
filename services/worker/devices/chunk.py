"""The prompt chunk of a captured round, or the request that its `chunk_*` fields name: identity, faults, rows.

A chunk must continue exactly what its slot has consumed and hold tokens of the vocabulary; else nothing of it is fed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from recipes.components.device_model import DeviceRows
from recipes.components.device_state import DeviceState, Word
from services.worker.devices.lanes import identity_faults
from services.worker.devices.plan import PlanTensors
from shared.frames import Fault


@dataclass(frozen=True, slots=True)
class Chunk:
    """`slot` int64 [1] as the plan names it, `named` bool [1] if it exists, its `fault` int64 [1], and B = 1 rows,
    whose slot is -1 unless the chunk is taken."""

    slot: Tensor
    named: Tensor
    fault: Tensor
    rows: DeviceRows


def open_chunk(plan: PlanTensors, state: DeviceState, good: Tensor, bucket: int, scored: bool = False) -> Chunk:
    """The chunk of a plan that is `good`, of at most `bucket` tokens; behind a `scored` one a token must follow."""
    slot, start, length = plan.chunk_slot, plan.chunk_start, plan.chunk_length
    named, fault = identity_faults(state, slot, plan.chunk_epoch, plan.chunk_request)
    named = named & good
    consumed = state.words[state.safe(slot), Word.CONSUMED]
    unexpected = (consumed != start) | (length < 1) | (length > bucket)
    if scored:
        behind = plan.chunk_pending
        unexpected |= (plan.chunk_final == 1) | (behind < 0) | (behind >= state.vocab_size)
    tokens, valid, foreign = _tokens(plan, state, bucket)
    fault = _first(fault, torch.where(unexpected, int(Fault.UNEXPECTED_PLAN), foreign))
    fault = torch.where(named, fault, 0)
    taken = named & (fault == 0)
    rows = DeviceRows(
        torch.where(valid & taken, tokens, 0),
        torch.where(taken, slot, -1),
        torch.where(taken, start, 0),
        torch.where(taken, length, 0),
        plan.chunk_page_table[None],
        bucket,
    )
    return Chunk(slot, named, fault, rows)


@dataclass(frozen=True, slots=True)
class Restoration:
    """What a restore graph was asked for: `slot` int64 [1] as named, its `fault`, `target` the slot or -1, and tokens
    [n] of the prefix with their positions, to be noted where `mask`."""

    slot: Tensor
    fault: Tensor
    target: Tensor
    tokens: Tensor
    positions: Tensor
    mask: Tensor


def open_restoration(plan: PlanTensors, state: DeviceState, good: Tensor, held: Tensor) -> Restoration:
    """A restoration of row `plan.snapshot_row`, which holds `held` int64 [1] tokens, -1: nothing."""
    slot, row, start, count = plan.chunk_slot, plan.snapshot_row, plan.chunk_start, plan.chunk_length
    named, fault = identity_faults(state, slot, plan.chunk_epoch, plan.chunk_request)
    named = named & good
    consumed, length = state.words[state.safe(slot), Word.CONSUMED], plan.restore_length
    wrong = (torch.where(row >= 0, held, consumed) != length) | ((row >= 0) & (consumed != 0))
    room = len(plan.chunk_tokens)
    tokens, valid, foreign = _tokens(plan, state, room)
    outside = (start < 0) | (count < 0) | (count > room) | (start + count > length)
    found = torch.where(outside, int(Fault.UNEXPECTED_PLAN), foreign)
    found = torch.where(wrong, int(Fault.WRONG_PREFIX), found)
    fault = torch.where(named, _first(fault, found), 0)
    taken = named & (fault == 0)
    places = start + torch.arange(room, device=slot.device)
    return Restoration(slot, fault, torch.where(taken, slot, -1), tokens, places, valid & taken)


def named_slot(plan: PlanTensors, state: DeviceState, good: Tensor) -> tuple[Tensor, Tensor]:
    """The slot of the `chunk_*` fields, int64 [1], and its fault; the slot is -1 where it is not that request's."""
    named, fault = identity_faults(state, plan.chunk_slot, plan.chunk_epoch, plan.chunk_request)
    fault = torch.where(named & good, fault, 0)
    return torch.where(named & good & (fault == 0), plan.chunk_slot, -1), fault


def _tokens(plan: PlanTensors, state: DeviceState, room: int) -> tuple[Tensor, Tensor, Tensor]:
    """Chunk tokens int64 [room], which of them are meant bool [room], and the fault of one outside the vocabulary."""
    tokens = plan.chunk_tokens[:room].long()
    valid = torch.arange(room, device=tokens.device) < plan.chunk_length
    foreign = valid & ((tokens < 0) | (tokens >= state.vocab_size))
    return tokens, valid, foreign.any() * int(Fault.BAD_TOKEN)


def _first(fault: Tensor, other: Tensor) -> Tensor:
    return torch.where(fault != 0, fault, other)
