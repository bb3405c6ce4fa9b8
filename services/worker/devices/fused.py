"""Decode and verification rounds in few kernels: what `programs.py` does for them, lane by lane on the device.

A round is then its fetch, one kernel that opens lanes, the model, one kernel a row that says its token, one that
settles lanes, one for log probabilities, and the frame. Rounds with a learned drafter, and all others, are
`programs.py`'s.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from recipes.components.device_acceptance import Candidates
from recipes.components.device_model import DeviceRows
from recipes.components.gpu.launch import power_above
from recipes.components.gpu.sampling import say_rows
from services.worker.devices.parts import Parts
from shared.frames import Layout
from shared.manifest import ExecutionGraph

FusedBody = Callable[[Tensor], None]
"""A program over the round counter int64 [1]; it judges the plan itself."""


@dataclass(frozen=True, slots=True)
class Opened:
    """Lanes as `lane_kernels.open_lanes` finds them."""

    candidates: Candidates
    rows: DeviceRows
    faults: Tensor
    sources: Tensor


class FusedRounds:
    """The bodies of decode and verification graphs on a device that runs Triton."""

    def __init__(self, parts: Parts, taken: Tensor, layout: Layout) -> None:
        self._parts, self._taken, self._layout = parts, taken, layout

    def body(self, index: int, graph: ExecutionGraph) -> FusedBody | None:
        """The program of graph `index`; None where `programs.py` has it."""
        if self._parts.drafter is not None or graph.kind not in ("decode", "speculative"):
            return None
        width = graph.verify_tokens if graph.kind == "speculative" else 1
        return lambda counter: self._verify(counter, index, graph.batch_capacity, width)

    def _word(self, name: str) -> int:
        return self._layout.offset_of(name) // 8

    def _verify(self, counter: Tensor, index: int, batch: int, width: int) -> None:
        parts = self._parts
        opened = self._open(counter, index, batch, width)
        rows, found = opened.rows, opened.candidates
        vectors = parts.model.forward(rows)
        logits = parts.model.logits(vectors)
        tokens, finite = say_rows(found, logits, parts.state)
        kept, at, target = self._settle(opened, vectors, tokens, finite)
        parts.model.export(rows, at, target)
        parts.model.commit(rows, kept)
        parts.out.tell(counter, logits, found.rows, kept, tokens)

    def _open(self, counter: Tensor, index: int, batch: int, width: int) -> Opened:
        from services.worker.devices.lane_kernels import open_lanes

        parts, device, word = self._parts, counter.device, self._word
        lanes = [torch.empty(batch, dtype=torch.int64, device=device) for _ in range(8)]
        row, slots, faults, first, room, offered, sources, counts = lanes
        live = torch.empty(batch, dtype=torch.uint8, device=device)
        drafts = torch.empty(batch, width - 1, dtype=torch.int64, device=device)
        tokens = torch.empty(batch * width, dtype=torch.int64, device=device)
        state = parts.state
        open_lanes[(max(batch, state.slots),)](
            self._taken, counter, state.words, parts.out.notes, row, slots, live, faults, first, room, offered, drafts,
            sources, tokens, counts, index, width, batch, state.slots, word("head"), word("tail"), word("graph"),
            word("lanes"), word("slot"), word("epoch"), word("request"), word("ceiling"), word("copy_anchor"),
            word("copy_length"), word("copy_source"), word("copy_tokens"), num_warps=1,
        )  # fmt: skip
        rows = DeviceRows(tokens, slots, first, counts, parts.plan.page_table[:batch], width)
        alive = live.view(torch.bool)
        # The kernel that says tokens asks nobody whether a draft was learned.
        found = Candidates(row, alive, first, room, offered, drafts, drafts, None)
        return Opened(found, rows, faults, sources)

    def _settle(self, opened: Opened, vectors: Tensor, tokens: Tensor, finite: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rows kept, rows up to a wanted boundary, and the snapshot row for it or -1: int64 [B] each."""
        from services.worker.devices.lane_kernels import settle_lanes

        parts, found, state = self._parts, opened.candidates, self._parts.state
        batch, snapshots, hidden = len(found.rows), parts.snapshots, state.hidden_size
        kept, at, target = (torch.empty_like(found.rows) for _ in range(3))
        settle_lanes[(batch,)](
            self._taken, state.words, parts.out.notes, state.end_ids, state.seen.view(torch.uint8), state.counts,
            vectors, state.vectors, snapshots.words, snapshots.vectors, found.rows, found.live.view(torch.uint8),
            opened.faults, found.first, found.room, found.offered, found.drafts, opened.sources, opened.rows.tokens,
            tokens, finite.view(torch.uint8), kept, at, target, opened.rows.width, state.vocab_size, state.slots,
            snapshots.rows, self._word("export_slot"), self._word("export_boundary"), hidden,
            min(1024, power_above(hidden)), num_warps=4,
        )  # fmt: skip
        return kept, at, target
