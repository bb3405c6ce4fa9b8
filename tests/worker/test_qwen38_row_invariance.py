"""Deterministic qwen3.8-flash: a row is bitwise the same however its text was cut, wherever it lay, whoever was near.

Target and drafter alike, with all the state they leave. Experts with rounded activations (W4A4) too: there a difference
of one bit could move a value to the next step of the grid.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import pytest
import torch
from torch import Tensor

from recipes.components.model import DraftTask, Lane, Proposal, rows_of
from recipes.components.nvfp4_activations import ActivationPolicy
from recipes.components.target_law import neutral_values
from recipes.declaration import LoadConfig
from recipes.qwen38.checkpoint import Checkpoint
from recipes.qwen38.mtp import MtpDrafter, MtpLayer
from recipes.qwen38.target import Target
from recipes.qwen38.tiny import tiny_architecture, write_tiny
from recipes.qwen38.weights import WeightReader, read_drafter, read_target
from tests.threads import torch_threads
from tests.worker.qwen38_state import committed_state

LENGTH = 75
"""Over the border of a page, beyond the selector's budget, with an open group at the end."""
PAGES = torch.tensor([3, 1])
ELSEWHERE = torch.tensor([6, 2])
CUTS = (
    *([width] * (LENGTH // width) + [LENGTH % width] * (LENGTH % width > 0) for width in range(2, 9)),
    *([64, 11], [63, 12], [32, 32, 11], [9, 1, 40, 3, 8, 14], [1, 74]),
)


class Pair:
    """A target with its drafter over one checkpoint, fed lane by lane into one slot."""

    def __init__(self, folder: Path, policy: ActivationPolicy) -> None:
        checkpoint = Checkpoint(folder)
        a, reader = checkpoint.architecture, WeightReader(checkpoint.architecture, checkpoint.tensors)
        weights = read_target(reader, policy)
        self.target = Target(a, weights, LoadConfig(True, slots=3, pages=8, snapshots=1))
        layer = MtpLayer(a, read_drafter(reader, weights), pages=8, rows=4, deterministic=True)
        self.drafter = MtpDrafter(layer, 3, 4, a.streams_width)

    def reset(self, slot: int) -> None:
        self.target.reset(slot)
        self.drafter.reset(slot)

    def feed(self, parts: Sequence[Tensor], slot: int = 0, pages: Tensor = PAGES) -> Tensor:
        """Streams of a whole text that comes in parts, each committed and absorbed."""
        self.reset(slot)
        found, first = [], 0
        for part in parts:
            lane = Lane(slot, 0, len(part), first, pages)
            streams = self.target.forward(rows_of(part, (lane,)))
            self.target.commit(lane, len(part))
            self.drafter.absorb(lane, part, streams, len(part))
            found.append(streams)
            first += len(part)
        return torch.cat(found)

    def propose(self, slot: int, pending: int, pages: Tensor) -> Proposal:
        draws = torch.linspace(0.1, 0.9, 7)
        return self.drafter.propose(DraftTask(slot, LENGTH, pending, 7, pages, draws, neutral_values()))


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Rows of so few elements are never divided, and idle threads only wait for one another."""
    with torch_threads(1):
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("invariance")
    write_tiny(path, tiny_architecture(), seed=1)
    return path


@pytest.fixture(scope="module")
def pair(folder: Path) -> Pair:
    return Pair(folder, ActivationPolicy.W4A16)


@pytest.fixture(scope="module")
def text() -> Tensor:
    found = torch.randint(0, 319, (LENGTH,), generator=torch.Generator().manual_seed(3))
    found[11] = 319  # an end token, so that n-gram history is cut once
    return found


@dataclass(frozen=True, slots=True)
class Alone:
    """Rows that were computed one by one: their streams, the state behind them, and what the drafter then proposes."""

    streams: Tensor
    state: dict[str, Tensor]
    proposal: Proposal


def single_rows(pair: Pair, text: Tensor) -> Alone:
    streams = pair.feed(torch.tensor_split(text, LENGTH))
    state = committed_state(pair.target, pair.drafter, 0, PAGES)
    return Alone(streams, state, pair.propose(0, int(text[7]), PAGES))


@pytest.fixture(scope="module")
def alone(pair: Pair, text: Tensor) -> Alone:
    return single_rows(pair, text)


def check(pair: Pair, text: Tensor, alone: Alone, cuts: Sequence[int]) -> None:
    assert sum(cuts) == LENGTH
    assert torch.equal(pair.feed(torch.tensor_split(text, tuple(accumulate(cuts))[:-1])), alone.streams)
    found = committed_state(pair.target, pair.drafter, 0, PAGES)
    assert [name for name in alone.state if not torch.equal(found[name], alone.state[name])] == []
    proposal = pair.propose(0, int(text[7]), PAGES)
    assert torch.equal(proposal.tokens, alone.proposal.tokens)
    assert torch.equal(proposal.law, alone.proposal.law)


@pytest.mark.parametrize("cuts", CUTS, ids=lambda cuts: "+".join(map(str, cuts[:3])))
def test_the_cut_of_a_text_changes_no_row_no_state_and_no_proposal(
    pair: Pair, text: Tensor, alone: Alone, cuts: list[int]
) -> None:
    check(pair, text, alone, cuts)


def test_rounded_activations_are_alike_in_every_cut(folder: Path, text: Tensor) -> None:
    pair = Pair(folder, ActivationPolicy.W4A4)
    alone = single_rows(pair, text)
    for cuts in CUTS[-3:]:
        check(pair, text, alone, cuts)


def test_slot_and_page_placement_change_nothing(pair: Pair, text: Tensor, alone: Alone) -> None:
    assert torch.equal(pair.feed([text[:60], text[60:]], slot=2, pages=ELSEWHERE), alone.streams)
    found = committed_state(pair.target, pair.drafter, 2, ELSEWHERE)
    assert [name for name in alone.state if not torch.equal(found[name], alone.state[name])] == []
    assert torch.equal(pair.propose(2, int(text[7]), ELSEWHERE).law, alone.proposal.law)


def test_batch_mates_do_not_change_a_row(pair: Pair, text: Tensor, alone: Alone) -> None:
    others = text.flip(0)
    pair.feed([text[:62]])
    pair.feed([others[:37]], slot=1, pages=ELSEWHERE)
    pair.reset(2)
    lanes = (
        Lane(slot=1, start=0, count=5, first=37, pages=ELSEWHERE),
        Lane(slot=0, start=5, count=6, first=62, pages=PAGES),
        Lane(slot=2, start=11, count=17, first=0, pages=torch.tensor([0, 7])),
    )
    streams = pair.target.forward(rows_of(torch.cat([others[37:42], text[62:68], others[:17]]), lanes))
    assert torch.equal(streams[5:11], alone.streams[62:68])
    assert torch.equal(
        pair.target.logits(streams)[5:11], torch.cat([pair.target.logits(row[None]) for row in streams[5:11]])
    )
