"""Rounds of one request in few kernels: admission, prompt chunks, drawing after a restore, snapshots.

What `programs.py` does for them, on a device that runs Triton: a kernel that judges and opens, the model, a kernel that
settles, and where a pending token is drawn, the sampler's and one more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from recipes.components.device_acceptance import Candidates
from recipes.components.device_drafter import DeviceDrafter
from recipes.components.device_model import Adopting, DeviceRows
from recipes.components.gpu.launch import chained, power_above
from recipes.components.gpu.sampling import say_rows
from services.worker.devices.parts import Parts
from shared.frames import InitInt, Layout

_BLOCK = 1024
"""Tokens of a chunk that its one program takes at once, and columns of a sampling vector."""
_CLEARED = 4096
"""Tokens of the vocabulary that a program of admission clears."""


@dataclass(frozen=True, slots=True)
class _Named:
    """What a kernel found out about a request: `words` int64 [7, 2] as `chunk_kernels.settle_chunk` tells them, whether
    its pending token is to be drawn, uint8 [1], and from which sampling vector, float32 [1, H].

    Words lie 16 bytes apart: kernels are compiled for pointers that are so aligned.
    """

    words: Tensor
    wants: Tensor
    last: Tensor

    def __getitem__(self, index: int) -> Tensor:
        """One of the words, int64 [1]."""
        return self.words[index, :1]


class FusedChunks:
    """The bodies of graphs for one request."""

    def __init__(self, parts: Parts, taken: Tensor, layout: Layout) -> None:
        self._parts, self._taken, self._layout = parts, taken, layout
        early = chained(taken)
        self._options: dict[str, Any] = {"CHAINED": early, **({"launch_pdl": True} if early else {})}
        state = parts.state
        self._counts = state.seen.view(torch.uint8), state.counts
        self._hidden = state.hidden_size, min(_BLOCK, power_above(state.hidden_size))

    def prefill(self, index: int, bucket: int, drafter: DeviceDrafter | None, alone: bool) -> Callable[[Tensor], None]:
        """A chunk of at most `bucket` tokens in graph `index`; not `alone`: behind lanes, whose notes stay."""
        return lambda counter: self._prefill(counter, index, bucket, drafter, alone)

    def init(self, index: int) -> Callable[[Tensor], None]:
        """Resets a slot for the request that the plan's `init_*` fields describe."""
        return lambda counter: self._init(counter, index)

    def resume(self, index: int) -> Callable[[Tensor], None]:
        """Draws the pending token behind a restored prefix."""
        return lambda counter: self._draw(counter, self._named(counter, index, draws=True))

    def snapshot(self, index: int, drafter: DeviceDrafter | None) -> Callable[[Tensor], None]:
        """Copies a slot's state into a snapshot row."""

        def run(counter: Tensor) -> None:
            self._leave(self._named(counter, index, draws=False), drafter)

        return run

    def _word(self, *names: str) -> tuple[int, ...]:
        return tuple(self._layout.offset_of(name) // 8 for name in names)

    def _fresh(self) -> _Named:
        device = self._taken.device
        return _Named(
            torch.empty(7, 2, dtype=torch.int64, device=device),
            torch.empty(1, dtype=torch.uint8, device=device),
            torch.empty(1, self._hidden[0], device=device),
        )

    def _init(self, counter: Tensor, index: int) -> None:
        from services.worker.devices.admission_kernels import admit

        parts, state = self._parts, self._parts.state
        slot = torch.empty(1, dtype=torch.int64, device=counter.device)
        fields = self._word(
            "head", "tail", "graph", "init_slot", "init_epoch", "init_request", "init_integers", "init_floats",
            "init_end_ids", "init_bias_ids", "init_bias_values",
        )  # fmt: skip
        block = min(_CLEARED, power_above(state.vocab_size))
        admit[(-(-state.vocab_size // block),)](
            self._taken, counter, parts.out.notes, state.fields(), slot, index, state.vocab_size, state.slots, *fields,
            block, num_warps=4, **self._options,
        )  # fmt: skip
        parts.model.reset(slot)
        if isinstance(parts.model, Adopting):
            parts.model.adopt(slot, parts.plan.init_integers[InitInt.PREFIX : InitInt.PREFIX + 1])
        if parts.drafter is not None:
            parts.drafter.reset(slot)

    def _prefill(self, counter: Tensor, index: int, bucket: int, drafter: DeviceDrafter | None, alone: bool) -> None:
        from services.worker.devices.chunk_kernels import open_chunk

        parts, device = self._parts, counter.device
        tokens = torch.empty(bucket, dtype=torch.int64, device=device)
        slot, first, counts = (torch.empty(1, dtype=torch.int64, device=device) for _ in range(3))
        state = parts.state
        fields = self._word(
            "head", "tail", "graph", "chunk_slot", "chunk_epoch", "chunk_request", "chunk_start", "chunk_length",
            "chunk_tokens",
        )  # fmt: skip
        open_chunk[(1,)](
            self._taken, counter, state.words, parts.out.notes, tokens, slot, first, counts, index, bucket,
            state.vocab_size, state.slots, *fields, min(_BLOCK, power_above(bucket)), alone, num_warps=8,
            **self._options,
        )  # fmt: skip
        rows = DeviceRows(tokens, slot, first, counts, parts.plan.chunk_page_table[None], bucket)
        vectors = parts.model.forward(rows)
        found = self._settle(rows, vectors, drafter is not None)
        taken = DeviceRows(tokens, found[1], first, found[0], rows.tables, bucket)
        parts.model.commit(taken, found[0])
        if drafter is not None:
            drafter.absorb(taken, vectors, found[0])
        self._leave(found, drafter)
        self._draw(counter, found)

    def _settle(self, rows: DeviceRows, vectors: Tensor, learns: bool) -> _Named:
        from services.worker.devices.chunk_kernels import settle_chunk

        parts, state, snapshots, found = self._parts, self._parts.state, self._parts.snapshots, self._fresh()
        settle_chunk[(1,)](
            self._taken, state.words, parts.out.notes, *self._counts, vectors, state.vectors, snapshots.words,
            snapshots.vectors, parts.faults, rows.tokens, rows.slots, rows.first, rows.counts, found.words,
            found.wants, found.last, state.vocab_size, state.slots, snapshots.rows,
            *self._word("chunk_final", "chunk_pending", "chunk_export_slot"), *self._hidden, learns, num_warps=8,
            **self._options,
        )  # fmt: skip
        return found

    def _named(self, counter: Tensor, index: int, draws: bool) -> _Named:
        from services.worker.devices.chunk_kernels import open_named

        parts, state, snapshots, found = self._parts, self._parts.state, self._parts.snapshots, self._fresh()
        fields = self._word("head", "tail", "graph", "chunk_slot", "chunk_epoch", "chunk_request", "snapshot_row")
        open_named[(1,)](
            self._taken, counter, state.words, parts.out.notes, state.vectors, snapshots.words, snapshots.vectors,
            found.words, found.wants, found.last, index, state.slots, snapshots.rows, *fields, *self._hidden, draws,
            num_warps=4, **self._options,
        )  # fmt: skip
        return found

    def _leave(self, found: _Named, drafter: DeviceDrafter | None) -> None:
        """What model and drafter hold, into the snapshot row that was asked for."""
        self._parts.model.snapshot(found[2], found[3])
        if drafter is not None:
            drafter.snapshot(found[2], found[3])

    def _draw(self, counter: Tensor, found: _Named) -> None:
        """Samples the pending token from the saved vector, where that is wanted."""
        from services.worker.devices.chunk_kernels import settle_pending

        parts, state = self._parts, self._parts.state
        logits = parts.model.logits(found.last)
        zero, nothing = torch.zeros_like(found[0]), torch.empty(1, 0, dtype=torch.int64, device=counter.device)
        # One row at the last consumed position, and no drafts.
        asked = Candidates(found[4], found.wants.view(torch.bool), found[5], zero, zero, nothing, nothing, None)
        tokens, finite = say_rows(asked, logits, state)
        row, emitted = torch.empty_like(zero), torch.empty_like(zero)
        settle_pending[(1,)](
            state.words, parts.out.notes, state.end_ids, *self._counts, found.words, found.wants, tokens,
            finite.view(torch.uint8), row, emitted, state.vocab_size, state.slots, num_warps=1, **self._options,
        )  # fmt: skip
        parts.out.tell(counter, logits, row, emitted, tokens)
