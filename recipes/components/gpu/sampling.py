"""What each row of a round says: target law, ordinary draw and test of its learned draft, in few kernels over all rows.

Runs in the worker. A row of the vocabulary is split over many programs. On a CPU it is the reference of `device_law.py`
and `device_acceptance.py`. Draws are laid out as `acceptance.py` says; no padded proposal is ever looked at.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from recipes.components.device_acceptance import Candidates, row_tokens
from recipes.components.device_law import adjusted_rows, row_laws
from recipes.components.device_state import DeviceState, KernelFields, Word
from recipes.components.gpu.launch import chained, power_above, runs_triton

_PART, _WIDE_PART = 2048, 4096
"""Tokens of a program; the second one from a vocabulary of `_WIDE` on."""
_WIDE = 1 << 17
_COLUMNS = 32
"""Columns of a part whose maxima bound a row's best tokens."""
_JOINED = 128
"""Columns of a row that are compared each with each."""
_FEWEST = 64
"""Gathered tokens that are compared each with each."""
_CAPACITY = 2048
"""Gathered tokens of a row; where more may pass its filters, one program searches the whole row."""
_BINS = 32
"""Bins of a histogram."""
_PROGRAMS = 264
"""Programs that the card holds at once: a row's parts are shared out among fewer where there are many rows."""
_WARPS = 4
"""Of a program with `_PART` tokens; twice as many with the wider part."""


class _Lanes(NamedTuple):
    """What kernels read of `Candidates`; `draws` float32 [B], `apart` from one another, are a drafter's own."""

    rows: Tensor
    live: Tensor
    first: Tensor
    offered: Tensor
    drafts: Tensor
    learned: Tensor
    law: Tensor
    draws: Tensor
    apart: int


class _Scratch(NamedTuple):
    """What the programs of a row leave for one another: R rows of P parts. Nothing in it outlives the call."""

    adjusted: Tensor
    tops: Tensor
    places: Tensor
    broken: Tensor
    columns: Tensor
    sums: Tensor
    below: Tensor
    kept: Tensor
    inside: Tensor
    lows: Tensor
    highs: Tensor
    coarse: Tensor
    fine: Tensor
    gathered: Tensor
    tallies: Tensor
    kinds: Tensor
    borders: Tensor
    totals: Tensor


class _Sizes(NamedTuple):
    """How `rows` rows of a vocabulary are split: into `real` parts, which `groups` programs share out."""

    part: int
    parts: int
    real: int
    groups: int

    @property
    def warps(self) -> int:
        """Warps of a program."""
        return 2 * _WARPS if self.part > _PART else _WARPS

    @property
    def chunk(self) -> int:
        """Tokens that are binned at once. With twice as many no thread would bin another's, but registers ran out."""
        return min(64 * self.warps, self.part)


def say_rows(found: Candidates, logits: Tensor, state: DeviceState) -> tuple[Tensor, Tensor]:
    """(tokens int64, finite bool) [B, W] of raw logits float32 [B * W, V]: what each row says if it is reached.

    Rows beyond a lane's `offered`, and all of a lane that is not live, say 0 and are finite.
    """
    if not runs_triton(logits):
        return _say_rows(found, logits, state)
    lanes, width = len(found.rows), found.drafts.shape[1] + 1
    law = found.law if found.law is not None else logits
    asked = _Lanes(
        found.rows, found.live.view(torch.uint8), found.first.contiguous(), found.offered.contiguous(),
        found.drafts.contiguous(), found.learned.contiguous().view(torch.uint8), law, logits, 1,
    )  # fmt: skip
    made = _Launch(logits, state.fields(), asked, width, adjusts=True, learned=found.law is not None, given=False)
    tokens, finite = made.draw()
    return tokens.view(lanes, width), finite.view(torch.bool).view(lanes, width)


def propose_rows(
    logits: Tensor, state: DeviceState, rows: Tensor, live: Tensor, draws: Tensor, laws: Tensor
) -> tuple[Tensor, Tensor]:
    """(tokens int64, finite bool) [B] of a drafter's logits float32 [B, V]; their laws go to `laws` float32 [B, V].

    The law is the request's own without penalties, bias and minimum length: temperature, top-k, top-p and min-p of
    state rows `rows` int64 [B]; `draws` float32 [B] in (0, 1]. `draws` and `laws` may be views whose rows lie apart.
    A lane that is not `live` bool [B] says token 0, as logits do that are not finite; neither has a law of any use.
    """
    if not runs_triton(logits):
        found = row_laws(logits, state, rows)
        laws.copy_(found.weights)
        return torch.where(found.finite & live, found.draw(draws), 0), found.finite | ~live
    nothing = torch.zeros_like(rows)
    asked = _Lanes(
        rows, live.view(torch.uint8), nothing, nothing, nothing, live.view(torch.uint8), logits, draws, draws.stride(0)
    )  # fmt: skip
    made = _Launch(logits, state.fields(), asked, 1, adjusts=False, learned=False, given=True)
    tokens, finite = made.draw()
    made.write(tokens, laws)
    return tokens, finite.view(torch.bool)


def _sizes(rows: int, vocab: int) -> _Sizes:
    part = min(_WIDE_PART if vocab >= _WIDE else _PART, power_above(vocab))
    real = -(-vocab // part)
    each = -(-real // max(1, _PROGRAMS // rows))
    return _Sizes(part, power_above(real), real, -(-real // each))


class _Launch:
    """The kernels of one call over R rows of logits float32 [R, V], in order."""

    def __init__(
        self, logits: Tensor, slots: KernelFields, lanes: _Lanes, width: int, adjusts: bool, learned: bool, given: bool
    ) -> None:
        self._logits, self._slots, self._lanes = logits, slots, lanes
        self._width, self._adjusts, self._learned, self._given = width, adjusts, learned, given
        self._sizes = _sizes(*logits.shape)
        early = chained(logits)
        self._options: dict[str, Any] = {"num_warps": self._sizes.warps, "CHAINED": early, "enable_fp_fusion": False}
        if early:
            self._options["launch_pdl"] = True
        self._scratch = self._fresh()
        count = len(logits)
        self._finite = torch.empty(count, dtype=torch.uint8, device=logits.device)

    def _fresh(self) -> _Scratch:
        (count, vocab), parts, device = self._logits.shape, self._sizes.parts, self._logits.device

        def empty(width: int, dtype: torch.dtype) -> Tensor:
            return torch.empty(count, width, dtype=dtype, device=device)

        single, double, small = torch.float32, torch.float64, torch.int32
        return _Scratch(
            empty(vocab, single), empty(parts, single), empty(parts, small), empty(parts, small),
            empty(parts * _COLUMNS, single), empty(parts, double), empty(parts, double), empty(parts, double),
            empty(parts, double), empty(parts, small), empty(parts, small), empty(parts * _BINS, single),
            empty(parts * _BINS, single), empty(_CAPACITY, torch.int64), empty(4, small), empty(1, small),
            empty(1, small), empty(1, double),
        )  # fmt: skip

    def draw(self) -> tuple[Tensor, Tensor]:
        """Tokens int64 and whether logits were finite uint8, [R] each."""
        from recipes.components.gpu.draw_kernels import draw_rows
        from recipes.components.gpu.nucleus_kernels import bracket_rows, narrow_rows
        from recipes.components.gpu.sampling_kernels import weigh_rows
        from recipes.components.gpu.survey_kernels import survey_rows

        logits, scratch, sizes, width = self._logits, self._scratch, self._sizes, self._width
        (count, vocab), options = logits.shape, self._options
        common = {"V": vocab, "PART": sizes.part, "PARTS": sizes.parts, "ADJUSTED": self._adjusts, **options}
        shared = {**common, "GROUPS": sizes.groups}
        drawn = {**shared, "LEARNED": self._learned, "GIVEN": self._given}
        few, joined = min(_FEWEST, _CAPACITY), min(_JOINED, sizes.parts * _COLUMNS)
        grid = (count, sizes.groups)
        tokens = torch.empty(count, dtype=torch.int64, device=logits.device)
        basis = (logits, self._slots, self._lanes, scratch)
        survey_rows[(count, sizes.real)](*basis, width, COLUMNS=_COLUMNS, **common)
        weigh_rows[grid](
            *basis, tokens, self._finite, width, COLUMNS=_COLUMNS, JOINED=joined, FEWEST=few, CAPACITY=_CAPACITY,
            BINS=_BINS, CHUNK=sizes.chunk, **drawn,
        )  # fmt: skip
        narrow_rows[grid](*basis, width, BINS=_BINS, CHUNK=sizes.chunk, **shared)
        bracket_rows[grid](*basis, tokens, width, CAPACITY=_CAPACITY, BINS=_BINS, CHUNK=sizes.chunk, **drawn)
        draw_rows[grid](*basis, tokens, width, **drawn)
        return tokens, self._finite

    def write(self, tokens: Tensor, laws: Tensor) -> None:
        """The laws that `tokens` were drawn from, into `laws` float32 [R, V]. After `draw`."""
        from recipes.components.gpu.draw_kernels import write_laws

        sizes, vocab = self._sizes, self._logits.shape[1]
        write_laws[(len(laws), sizes.real)](
            self._logits, self._slots, self._lanes, self._scratch, tokens, self._finite, laws, laws.stride(0), V=vocab,
            PART=sizes.part, PARTS=sizes.parts, **self._options,
        )  # fmt: skip


def _say_rows(found: Candidates, logits: Tensor, state: DeviceState) -> tuple[Tensor, Tensor]:
    lanes, ahead = found.drafts.shape
    width = ahead + 1
    rows = found.rows.repeat_interleave(width)
    steps = torch.arange(width, device=rows.device)
    prefix = torch.where(steps[:ahead] < steps[:, None], found.drafts[:, None], -1)
    emitted = state.words[found.rows, Word.GENERATED, None] + steps
    changed = adjusted_rows(logits, state, rows, prefix.flatten(0, 1), emitted.flatten())
    laws = row_laws(changed, state, rows)
    return row_tokens(found, laws, state), laws.finite.view(lanes, width)
