"""The lanes of a captured round: which of the plan's are live, what they draft, and the rows that come of it.

Identity and faults first, then copied drafts where the device agrees with the plan's continuation, then learned ones;
the rules are those of the CPU's programs. All tensors; B lanes of W rows whatever the plan holds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from recipes.components.device_acceptance import Candidates
from recipes.components.device_drafter import DeviceDrafter, DeviceTask
from recipes.components.device_model import DeviceRows
from recipes.components.device_philox import uniforms_at
from recipes.components.device_state import DeviceState, Word
from recipes.components.philox import CHAIN_STRIDE
from services.worker.devices.plan import PlanTensors
from shared.frames import COPY_TOKENS, Fault, Source, Status


@dataclass(frozen=True, slots=True)
class Lanes:
    """B lanes as the plan names them and the device finds them. `named`: its slot exists, so it has a record."""

    named: Tensor
    live: Tensor
    slots: Tensor
    """int64 [B]: -1 unless live."""
    rows: Tensor
    """int64 [B]: the state row of every named lane, else the scratch row."""
    faults: Tensor
    words: Tensor
    """int64 [B, WORDS]: the state rows as they were when the round began."""


@dataclass(frozen=True, slots=True)
class Drafted:
    """The drafts of all lanes, and where they came from."""

    candidates: Candidates
    sources: Tensor


def identity_faults(state: DeviceState, slots: Tensor, epochs: Tensor, requests: Tensor) -> tuple[Tensor, Tensor]:
    """Whether each slot exists, bool [n], and the fault of naming another request, int64 [n]."""
    named = (slots >= 0) & (slots < state.slots)
    mine = state.words[state.safe(slots)]
    same = (mine[:, Word.EPOCH] == epochs) & (mine[:, Word.REQUEST] == requests)
    return named, torch.where(named & ~same, int(Fault.STALE_EPOCH), 0)


def open_lanes(plan: PlanTensors, state: DeviceState, good: Tensor, batch: int) -> Lanes:
    """The first `batch` lanes of the plan, if it is `good` bool [1]."""
    slots = plan.slot[:batch]
    listed = good & (torch.arange(batch, device=slots.device) < plan.lanes)
    named, faults = identity_faults(state, slots, plan.epoch[:batch], plan.request[:batch])
    named = named & listed
    rows = torch.where(named, slots, state.scratch)
    words = state.words[rows]
    running = words[:, Word.STATUS] == int(Status.RUNNING)
    early = (faults == 0) & running & (words[:, Word.PENDING] < 0)
    faults = torch.where(early, int(Fault.UNEXPECTED_PLAN), faults)
    live = named & (faults == 0) & running
    return Lanes(named, live, torch.where(live, slots, -1), rows, faults, words)


def take_faults(faults: Tensor, rows: Tensor) -> Tensor:
    """int64 [n]: the bits of `faults` int32 [slots + 1] at state `rows`, which are told once."""
    found = faults[rows].long()
    faults.index_fill_(0, rows, 0)
    return found


def without_broken(lanes: Lanes, faults: Tensor) -> Lanes:
    """The lanes behind a forward: those whose rows could not be computed live no more, and have the reason."""
    lost = take_faults(faults, lanes.rows)
    fine = lost == 0
    return replace(lanes, live=lanes.live & fine, faults=torch.where(fine, lanes.faults, lost))


def draft(plan: PlanTensors, state: DeviceState, lanes: Lanes, width: int, drafter: DeviceDrafter | None) -> Drafted:
    """Copied drafts first; learned ones where no copy stands, if they agree with it so far."""
    batch, words = len(lanes.rows), lanes.words
    consumed, pending = words[:, Word.CONSUMED], words[:, Word.PENDING]
    room = words[:, Word.BUDGET] - words[:, Word.GENERATED]
    limit = torch.minimum(plan.ceiling[:batch], room).clamp(max=width) - 1
    limit = torch.where(lanes.live, limit, 0)
    steps = torch.arange(width - 1, device=consumed.device)
    drafts, copied = _copies(plan, words, limit, steps)
    sources = torch.where(copied > 0, plan.copy_source[:batch], int(Source.NONE))
    learned, law, offered = torch.zeros_like(drafts, dtype=torch.bool), None, copied
    if drafter is not None and width > 1:
        asked = torch.where(limit > copied, limit, 0)
        draws = uniforms_at(words[:, Word.DRAFT_KEY, None], consumed[:, None] * CHAIN_STRIDE + steps)
        tables = plan.page_table[:batch]
        task = DeviceTask(lanes.slots, lanes.rows, consumed, pending, asked, tables, draws, state)
        proposal = drafter.propose(task)
        counts = torch.where(asked > 0, torch.minimum(proposal.counts, asked), 0)
        differs = (steps < copied[:, None]) & (proposal.tokens != drafts)
        taken = (counts > copied) & ~differs.any(1)
        offered = torch.where(taken, counts, copied)
        drafts = torch.where(taken[:, None], proposal.tokens, drafts)
        learned = taken[:, None] & (steps >= copied[:, None]) & (steps < offered[:, None])
        sources = torch.where(taken, sources | int(Source.LEARNED), sources)
        law = proposal.law
    drafts = torch.where(steps < offered[:, None], drafts, -1)
    found = Candidates(lanes.rows, lanes.live, consumed, room, offered, drafts, learned, law)
    return Drafted(found, sources)


def _copies(plan: PlanTensors, words: Tensor, limit: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens int64 [B, W - 1] after the pending one, and how many of them stand: `copies.continuation_slice`."""
    batch = len(words)
    at = words[:, Word.CONSUMED] - plan.copy_anchor[:batch]
    length = plan.copy_length[:batch].clamp(0, COPY_TOKENS)
    covered = (at >= 1) & (at < length)
    text = plan.copy_tokens[:batch].long()
    place = torch.where(covered, at, 1)[:, None]
    mine = torch.stack([words[:, Word.PREVIOUS], words[:, Word.PENDING]], 1)
    known = text.gather(1, torch.cat([place - 1, place], 1)) == mine
    count = torch.minimum(limit, length - at - 1).clamp(min=0)
    count = torch.where(covered & known.all(1), count, 0)
    return text.gather(1, (place + 1 + steps).clamp(max=COPY_TOKENS - 1)), count


def lane_rows(plan: PlanTensors, lanes: Lanes, drafted: Drafted) -> DeviceRows:
    """The rows of a round: each live lane's pending token and its drafts."""
    found = drafted.candidates
    batch, width = len(lanes.rows), found.drafts.shape[1] + 1
    counts = torch.where(lanes.live, found.offered + 1, 0)
    tokens = torch.cat([lanes.words[:, Word.PENDING, None], found.drafts], 1)
    valid = torch.arange(width, device=tokens.device) < counts[:, None]
    tokens = torch.where(valid, tokens, 0).flatten()
    first = torch.where(lanes.live, found.first, 0)
    return DeviceRows(tokens, lanes.slots, first, counts, plan.page_table[:batch], width)
