"""Log probabilities in the completion frame, by the kernel over parts of a row: what the reference computes."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from recipes.components.device_law import raw_logprobs_rows
from recipes.components.device_state import DeviceState, Word
from services.worker.devices.completion import DeviceCompletion
from services.worker.devices.plan import field_view
from shared.frames import ROW_TOKENS, TOP_LOGPROBS, completion_layout
from shared.manifest import Geometry
from tests.gpu.places import Place

SLOTS, WIDTH, VOCABULARY = 3, 2, 2 * 2048 + 700
NOTHING = -7.0


@dataclass(slots=True)
class Told:
    """What stands in one frame."""

    chosen: Tensor
    ids: Tensor
    values: Tensor


def told(
    place: Place, logits: Tensor, asked: list[int], rows: list[int], emitted: list[int], scored: bool = False
) -> tuple[list[Told], Tensor]:
    """Both frames after a round on frame 0 and one on frame 1, told `tokens` 5, 6 ...; and who arrived in the end."""
    geometry = Geometry(logits.shape[1], 4, 64, SLOTS, 4, 0)
    layout, device = completion_layout(geometry), place.device
    state = DeviceState(SLOTS, geometry.vocab_size, 4, device)
    state.words[: len(asked), Word.TOP_LOGPROBS] = torch.tensor(asked, device=device)
    frames = torch.zeros(2, layout.nbytes // 8, dtype=torch.int64, device=device)
    for name in ("logprobs", "top_logprobs"):
        for frame in frames:
            field_view(frame, layout, name).fill_(NOTHING)
    out = DeviceCompletion(state, layout, frames)
    tokens = (5 + torch.arange(len(logits), device=device)).view(len(rows), -1)
    counter = torch.zeros(1, dtype=torch.int64, device=device)

    def twice() -> Tensor:
        arguments = (place.take(logits), place.take(torch.tensor(rows)), place.take(torch.tensor(emitted)), tokens)
        for _ in range(2):
            (out.score if scored else out.tell)(counter, *arguments)
            counter.add_(1)
        return out._arrived

    arrived = place.run(twice)
    views = ("logprobs", "top_ids", "top_logprobs")
    return [Told(*(field_view(frame, layout, name).cpu() for name in views)) for frame in frames], arrived


def logits_of(count: int) -> Tensor:
    """Rows with equal logits in different parts, and tokens that cannot be said."""
    logits = torch.randn(count, VOCABULARY) * 4
    logits[0, [4000, 17, 2047, 2048]] = 15.0
    logits[0, 100:200] = -torch.inf
    logits[-1, :2048] = -torch.inf
    return logits


def test_emitted_rows_of_requests_that_asked_are_told(place: Place) -> None:
    asked, rows, emitted = [TOP_LOGPROBS, 0, -1], [2, 0, 1], [2, 2, 1]
    logits = logits_of(len(rows) * WIDTH)
    found, arrived = told(place, logits, asked, rows, emitted)
    assert not arrived.any()
    wanted, _, values = raw_logprobs_rows(logits, 5 + torch.arange(len(logits)), TOP_LOGPROBS)
    for frame in found:
        silent = torch.ones(SLOTS, ROW_TOKENS, dtype=torch.bool)
        for lane, slot in enumerate(rows):
            for index in range(emitted[lane] if asked[slot] >= 0 else 0):
                row, silent[slot, index] = lane * WIDTH + index, False
                torch.testing.assert_close(frame.chosen[slot, index].double(), wanted[row], atol=1e-5, rtol=1e-6)
                best = frame.ids[slot, index, : asked[slot]].long()
                told_values = frame.values[slot, index, : asked[slot]].double()
                torch.testing.assert_close(told_values, values[row, : asked[slot]], atol=1e-5, rtol=1e-6)
                order = torch.sort(logits[row], descending=True, stable=True).indices
                assert best.tolist() == order[: asked[slot]].tolist(), "the lower id first among equals"
        assert (frame.chosen[silent] == NOTHING).all()
        assert (frame.values[silent] == NOTHING).all()
        assert (frame.values[1] == NOTHING).all(), "who asks for no alternatives is told of none"


@pytest.mark.parametrize("count", [1, 4])
def test_scored_rows_lie_one_behind_the_other(place: Place, count: int) -> None:
    logits = logits_of(5)
    (frame, _), arrived = told(place, logits, [3, -1, -1], [0], [count], scored=True)
    assert not arrived.any()
    wanted, _, values = raw_logprobs_rows(logits, 5 + torch.arange(len(logits)), 3)
    chosen, best = frame.chosen.flatten(), frame.values.flatten(0, 1)
    torch.testing.assert_close(chosen[:count].double(), wanted[:count], atol=1e-5, rtol=1e-6)
    torch.testing.assert_close(best[:count, :3].double(), values[:count], atol=1e-5, rtol=1e-6)
    assert (chosen[count:] == NOTHING).all()
    assert (best[count:] == NOTHING).all()


def test_a_vocabulary_smaller_than_what_is_asked_for_is_told_whole(place: Place) -> None:
    logits = torch.randn(1, 11)
    (frame, _), _ = told(place, logits, [TOP_LOGPROBS, -1, -1], [0], [1])
    assert frame.ids[0, 0, :11].tolist() == logits[0].argsort(descending=True).tolist()
    assert (frame.values[0, 0, 11:] == NOTHING).all()
