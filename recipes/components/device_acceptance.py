"""Acceptance of all lanes of a round at once, as tensors, captured into rounds. `acceptance.py` says by which rules.

Every row's answer is found first, each at its own conditional prefix; the walk then takes rows in order and stops where
the rules stop.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from recipes.components.device_law import RowLaws, inverse
from recipes.components.device_philox import uniforms_at
from recipes.components.device_state import DeviceState, Word
from recipes.components.philox import CHAIN_STRIDE


@dataclass(frozen=True, slots=True)
class Candidates:
    """B lanes of at most W rows. Row i verifies draft i; row `offered` is the bonus."""

    rows: Tensor
    """int64 [B]: rows of the state to read, the scratch row for padding lanes."""
    live: Tensor
    """bool [B]."""
    first: Tensor
    """int64 [B]: absolute position of row 0."""
    room: Tensor
    """int64 [B]: tokens that the lane may still emit."""
    offered: Tensor
    """int64 [B]: drafts, 0 .. W - 1."""
    drafts: Tensor
    """int64 [B, W - 1], -1 beyond `offered`."""
    learned: Tensor
    """bool [B, W - 1]."""
    law: Tensor | None
    """float32 [B, W - 1, V]: q of each learned draft; None without a drafter."""


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What the lanes emit. A lane of a row that is not finite is `void`: it emits nothing."""

    tokens: Tensor
    """int64 [B, W]."""
    emitted: Tensor
    """int64 [B]; so many inputs are committed too."""
    accepted: Tensor
    copied: Tensor
    ended: Tensor
    """bool [B]."""
    void: Tensor
    """bool [B]."""


def row_tokens(found: Candidates, laws: RowLaws, state: DeviceState) -> Tensor:
    """int64 [B, W]: what each row says if it is reached; `laws` hold B * W rows."""
    lanes, width = len(found.rows), found.drafts.shape[1] + 1
    steps = torch.arange(width, device=found.rows.device)
    keys = state.words[found.rows]
    uniforms = uniforms_at(keys[:, Word.ORDINARY_KEY, None], found.first[:, None] + steps)
    if found.law is None:
        return laws.draw(uniforms.flatten()).view(lanes, width)
    base, key = found.first[:, None] * CHAIN_STRIDE, keys[:, Word.ACCEPTANCE_KEY, None]
    tests = uniforms_at(key, base + steps)
    correction = uniforms_at(key, base + found.offered[:, None] + 1)
    chained = found.learned.any(1, keepdim=True)
    bonus = chained & (steps == found.offered[:, None])
    tokens = laws.draw(torch.where(bonus, tests, uniforms).flatten()).view(lanes, width)
    if width == 1:
        return tokens
    drafts = found.drafts.clamp(min=0)
    proposed = found.law.gather(2, drafts[..., None]).squeeze(2)
    weights = laws.weights.view(lanes, width, -1)[:, :-1]
    target = weights.gather(2, drafts[..., None]).squeeze(2)
    passed = tests[:, :-1].double() * proposed.double() < target
    left = (weights - found.law.double()).clamp_(min=0.0)
    corrected = inverse(left.flatten(0, 1), correction.expand(-1, width - 1).flatten()).view(lanes, width - 1)
    corrected = torch.where(left.sum(2) > 0, corrected, found.drafts)
    said = torch.where(passed, found.drafts, corrected)
    point = laws.point.view(lanes, width)[:, :-1]
    replaced = torch.where(found.learned & ~point, said, tokens[:, :-1])
    return torch.cat([replaced, tokens[:, -1:]], 1)


def walk(found: Candidates, tokens: Tensor, finite: Tensor, state: DeviceState) -> Verdicts:
    """Rows in order, to the first rejection, end token or spent budget. `tokens` int64, `finite` bool [B, W]."""
    lanes, width = tokens.shape
    ends = state.end_ids[found.rows].long()
    zero = torch.zeros(lanes, dtype=torch.int64, device=tokens.device)
    emitted, accepted, copied = zero, zero, zero
    running, ended, void = found.live, torch.zeros_like(found.live), torch.zeros_like(found.live)
    for row in range(width):
        token = tokens[:, row]
        void = void | (running & ~finite[:, row])
        running = running & ~void
        emitted = emitted + running
        last = (ends == token[:, None]).any(1)
        ended = ended | (running & last)
        if row + 1 == width:
            break
        survived = running & (row < found.offered) & (token == found.drafts[:, row])
        accepted = accepted + survived
        copied = copied + (survived & ~found.learned[:, row])
        running = survived & ~last & (emitted != found.room)
    nothing = void
    return Verdicts(
        tokens,
        torch.where(nothing, 0, emitted),
        torch.where(nothing, 0, accepted),
        torch.where(nothing, 0, copied),
        ended & ~nothing,
        void,
    )
