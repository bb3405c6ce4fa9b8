"""The target and the drafter agree with transformers on the same weights: prefill, cached steps, every verification.

The tolerance is measured: four times what transformers' cached steps differ from its own forward pass on the same text
(conftest.py). The n-gram gate has a square root with a kink at zero, near which rounding grows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from unittest.mock import patch

import pytest
import torch

from recipes.components.model import DraftTask, Lane, rows_of
from recipes.components.target_law import neutral_values
from recipes.declaration import LoadConfig
from recipes.qwen38.checkpoint import Checkpoint
from recipes.qwen38.mtp import MtpDrafter, MtpLayer
from recipes.qwen38.target import Target
from recipes.qwen38.weights import WeightReader, read_drafter, read_target
from tests.recipes.qwen38.oracle import DrafterOracle, TargetOracle

PAGES = torch.tensor([3, 1, 7, 5])
CUTS = ([96], [1] * 96, [9, 7, 1, 6, 9, 64], [40, *[1] * 12, *[8] * 5, 4], [64, 32], [63, 33], [65, 31])


class Run:
    """A slot of a target with its drafter, fed lane by lane."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        reader = WeightReader(checkpoint.architecture, checkpoint.tensors)
        weights = read_target(reader)
        self.target = Target(checkpoint.architecture, weights, LoadConfig(False, slots=2, pages=8, snapshots=2))
        self.layer = MtpLayer(checkpoint.architecture, read_drafter(reader, weights), pages=8, rows=4)
        self.drafter = MtpDrafter(self.layer, 2, 4, checkpoint.architecture.streams_width)
        self.first = 0

    def reset(self) -> None:
        self.target.reset(0)
        self.drafter.reset(0)
        self.first = 0

    def feed(self, tokens: torch.Tensor, kept: int | None = None) -> torch.Tensor:
        """Streams of the rows; the first `kept` of them are committed and absorbed."""
        kept = len(tokens) if kept is None else kept
        lane = Lane(0, 0, len(tokens), self.first, PAGES)
        streams = self.target.forward(rows_of(tokens, (lane,)))
        self.target.commit(lane, kept)
        self.drafter.absorb(lane, tokens, streams, kept)
        self.first += kept
        return streams

    def draft_logits(self, pending: int, limit: int) -> list[torch.Tensor]:
        """Raw logits of a greedy proposal."""
        found: list[torch.Tensor] = []
        logits = self.layer.logits

        def noted(streams: torch.Tensor) -> torch.Tensor:
            found.append(logits(streams)[0])
            return found[-1].unsqueeze(0)

        with patch.object(self.layer, "logits", noted):
            greedy = replace(neutral_values(), temperature=0.0)
            self.drafter.propose(DraftTask(0, self.first, pending, limit, PAGES, torch.full((limit,), 0.5), greedy))
        return found


@pytest.fixture(scope="module")
def shared_run(checkpoint: Checkpoint) -> Run:
    return Run(checkpoint)


@pytest.fixture
def run(shared_run: Run) -> Run:
    shared_run.reset()
    return shared_run


@pytest.mark.parametrize("cuts", CUTS, ids=lambda cuts: "+".join(map(str, cuts[:4])))
def test_logits_and_streams_equal_transformers_however_the_text_is_cut(
    run: Run, target_oracle: TargetOracle, text: torch.Tensor, cuts: Sequence[int], tolerance: float
) -> None:
    logits, streams = target_oracle.run(text)
    found = torch.cat([run.feed(part) for part in torch.tensor_split(text, tuple(accumulate(cuts))[:-1])])
    torch.testing.assert_close(run.target.logits(found), logits, rtol=0, atol=tolerance)
    torch.testing.assert_close(found, streams, rtol=0, atol=tolerance)


@pytest.mark.parametrize("accepted", range(8))
def test_every_width_after_every_accepted_count_equals_transformers(
    run: Run, target_oracle: TargetOracle, text: torch.Tensor, accepted: int, tolerance: float
) -> None:
    logits, _ = target_oracle.run(text)
    for width in range(1, 9):
        run.reset()
        run.feed(text[:58])
        run.feed(text[58:61])
        drafts = text[61:69].clone()
        drafts[accepted + 1 :] = (drafts[accepted + 1 :] + 5) % 300
        run.feed(drafts, accepted + 1)
        first = run.first
        found = run.target.logits(run.feed(text[first : first + width]))
        torch.testing.assert_close(found, logits[first : first + width], rtol=0, atol=tolerance)


def test_first_proposals_equal_teacher_forced_rows_whatever_was_proposed_before(
    run: Run, target_oracle: TargetOracle, drafter_oracle: DrafterOracle, text: torch.Tensor, tolerance: float
) -> None:
    _, streams = target_oracle.run(text)
    wanted, _ = drafter_oracle.run(streams[:-1], text[1:])
    for size in (9, 7, 1, 1, 1, 8, 3, 1, 33, 8, 8, 1, 1, 8):
        run.feed(text[run.first : run.first + size])
        if run.first < len(text):
            found = run.draft_logits(int(text[run.first]), 7)
            torch.testing.assert_close(found[0], wanted[run.first - 1], rtol=0, atol=tolerance)


def test_recursive_proposals_feed_the_drafters_own_streams_back(
    run: Run, target_oracle: TargetOracle, drafter_oracle: DrafterOracle, text: torch.Tensor, tolerance: float
) -> None:
    """The reference composes the chain anew at each depth: all pairs so far, with its own streams at the end."""
    known = 6  # within the selector's budget, where reusing the first selection changes nothing
    _, streams = target_oracle.run(text[:known])
    run.feed(text[:known])
    found = run.draft_logits(int(text[known]), 2)
    pairs, following = streams, torch.cat([text[1:known], text[known : known + 1]])
    for depth in range(2):
        logits, own = drafter_oracle.run(pairs, following)
        torch.testing.assert_close(found[depth], logits[-1], rtol=0, atol=tolerance)
        pairs = torch.cat([pairs, own[-1:]])
        following = torch.cat([following, logits[-1:].argmax(-1)])
