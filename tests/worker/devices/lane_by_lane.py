"""A model or drafter of the CPU contract behind the device's contract: lane by lane, with values read on the host.

So the scripted target and drafter, whose answers come from Python, run under the device's rounds on the CPU. Not for
capture.
"""

from __future__ import annotations

import torch
from torch import Tensor

from recipes.components.device_drafter import DeviceDrafts, DeviceTask
from recipes.components.device_model import DeviceRows
from recipes.components.device_state import DeviceState, Word
from recipes.components.model import Drafter, DraftTask, Lane, Model, rows_of
from recipes.components.target_law import Values
from shared.frames import InitFloat

_MANY = 64


def lanes_of(rows: DeviceRows) -> list[tuple[int, Lane]]:
    """Live lanes with their index, in the packed form that the CPU contract has."""
    found, start = [], 0
    for index, (slot, count) in enumerate(zip(rows.slots.tolist(), rows.counts.tolist(), strict=True)):
        if slot >= 0 and count > 0:
            pages = rows.tables[index].long()
            found.append((index, Lane(slot, start, count, int(rows.first[index]), pages)))
            start += count
    return found


def places_of(rows: DeviceRows, lanes: list[tuple[int, Lane]]) -> Tensor:
    """int64 [R]: where the packed rows lie among the B * W."""
    parts = [torch.arange(lane.count) + index * rows.width for index, lane in lanes]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64)


class LaneModel:
    """`DeviceModel` over a `Model`. Masked rows get NaN as their vector, so that nobody may read one."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.faults = torch.zeros(_MANY, dtype=torch.int32)
        """A test that sets them says that rows of these slots could not be computed."""

    @property
    def vocab_size(self) -> int:
        return self._model.vocab_size

    @property
    def hidden_size(self) -> int:
        return self._model.hidden_size

    def forward(self, rows: DeviceRows) -> Tensor:
        lanes = lanes_of(rows)
        vectors = torch.full((len(rows.tokens), self.hidden_size), torch.nan)
        if lanes:
            places = places_of(rows, lanes)
            vectors[places] = self._model.forward(rows_of(rows.tokens[places], tuple(lane for _, lane in lanes)))
        return vectors

    def logits(self, vectors: Tensor) -> Tensor:
        return self._model.logits(vectors)

    def commit(self, rows: DeviceRows, kept: Tensor) -> None:
        for index, lane in lanes_of(rows):
            self._model.commit(lane, int(kept[index]))

    def export(self, rows: DeviceRows, kept: Tensor, target: Tensor) -> None:
        for index, lane in lanes_of(rows):
            if target[index] >= 0:
                self._model.export(lane, int(kept[index]), int(target[index]))

    def reset(self, slot: Tensor) -> None:
        if slot[0] >= 0:
            self._model.reset(int(slot[0]))

    def adopt(self, slot: Tensor, consumed: Tensor) -> None:
        if slot[0] >= 0 and consumed[0] > 0:
            self._model.adopt(int(slot[0]), int(consumed[0]))

    def snapshot(self, slot: Tensor, target: Tensor) -> None:
        if slot[0] >= 0 and target[0] >= 0:
            self._model.snapshot(int(slot[0]), int(target[0]))

    def restore(self, source: Tensor, slot: Tensor) -> None:
        if slot[0] >= 0 and source[0] >= 0:
            self._model.restore(int(source[0]), int(slot[0]))


def values_of(state: DeviceState, row: int) -> Values:
    """A slot's sampling values, as the CPU contract has them."""
    words, floats = state.words[row], state.floats[row]
    biased = int(words[Word.BIAS_COUNT])
    return Values(
        temperature=float(floats[InitFloat.TEMPERATURE]),
        top_k=int(words[Word.TOP_K]),
        top_p=float(floats[InitFloat.TOP_P]),
        min_p=float(floats[InitFloat.MIN_P]),
        repetition=float(floats[InitFloat.REPETITION]),
        frequency=float(floats[InitFloat.FREQUENCY]),
        presence=float(floats[InitFloat.PRESENCE]),
        min_tokens=int(words[Word.MIN_TOKENS]),
        end_ids=tuple(state.end_ids[row, : int(words[Word.END_COUNT])].tolist()),
        bias_ids=state.bias_ids[row, :biased].long(),
        bias_values=state.bias_values[row, :biased],
    )


class LaneDrafter:
    """`DeviceDrafter` over a `Drafter`. What lies beyond a lane's drafts is poisoned."""

    def __init__(self, drafter: Drafter, vocab_size: int) -> None:
        self._drafter, self._vocab_size = drafter, vocab_size

    def propose(self, task: DeviceTask) -> DeviceDrafts:
        lanes, horizon = task.draws.shape
        tokens = torch.full((lanes, horizon), 3, dtype=torch.int64)
        law = torch.full((lanes, horizon, self._vocab_size), torch.nan)
        counts = torch.zeros(lanes, dtype=torch.int64)
        for lane, limit in enumerate(task.limits.tolist()):
            if limit <= 0:
                continue
            consumed, pending = int(task.consumed[lane]), int(task.pending[lane])
            values = values_of(task.state, int(task.rows[lane]))
            pages, draws = task.tables[lane].long(), task.draws[lane, :limit]
            found = self._drafter.propose(
                DraftTask(int(task.slots[lane]), consumed, pending, limit, pages, draws, values)
            )
            count = counts[lane] = len(found.tokens)
            tokens[lane, :count], law[lane, :count] = found.tokens, found.law
        return DeviceDrafts(tokens, counts, law)

    def absorb(self, rows: DeviceRows, vectors: Tensor, kept: Tensor) -> None:
        for index, lane in lanes_of(rows):
            part = slice(index * rows.width, index * rows.width + lane.count)
            if kept[index] > 0:
                self._drafter.absorb(lane, rows.tokens[part], vectors[part], int(kept[index]))

    def reset(self, slot: Tensor) -> None:
        if slot[0] >= 0:
            self._drafter.reset(int(slot[0]))

    def snapshot(self, slot: Tensor, target: Tensor) -> None:
        if slot[0] >= 0 and target[0] >= 0:
            self._drafter.snapshot(int(slot[0]), int(target[0]))

    def export(self, rows: DeviceRows, vectors: Tensor, kept: Tensor, target: Tensor) -> None:
        for index, lane in lanes_of(rows):
            part = slice(index * rows.width, index * rows.width + lane.count)
            if target[index] >= 0:
                self._drafter.export(lane, vectors[part], int(kept[index]), int(target[index]))

    def restore(self, source: Tensor, slot: Tensor) -> None:
        if slot[0] >= 0 and source[0] >= 0:
            self._drafter.restore(int(source[0]), int(slot[0]))
