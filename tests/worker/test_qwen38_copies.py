"""Copies beside the MTP layer's proposals in one lane: what is copied comes first, what is proposed behind it.

A proposal follows a copy only where the drafter, asked alone, would have begun with that copy. What a round offered is
read from its record: how many drafts, from which sources.
"""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from recipes.components.model import DraftTask
from recipes.components.philox import proposals
from shared.frames import Meta, Source
from shared.messages.common import Sampling
from tests.worker.host import LanePlan
from tests.worker.qwen38_host import Qwen38Host
from tests.worker.qwen38_talk import GREEDY, VOCABULARY, Talk, prompt_of

SAMPLED = Sampling(temperature=1.0, top_k=20, top_p=0.95, seed=5)


def proposed(host: Qwen38Host, talk: Talk) -> list[int]:
    """What the drafter will propose in the next round; asking changes nothing that is committed."""
    state, slot = host.catalog.state, talk.slot
    draws = torch.tensor(proposals(state.seeds[slot], talk.consumed, 7))
    task = DraftTask(slot, talk.consumed, talk.said[-1], 7, host.table(slot), draws, state.values[slot])
    return host.drafter.propose(task).tokens.tolist()


def with_copies(talk: Talk, copies: list[int], source: Source) -> LanePlan:
    before = talk.said[-2] if len(talk.said) > 1 else talk.prompt[-1]
    return LanePlan(talk.slot, 8, (before, talk.said[-1], *copies), talk.consumed - 1, source)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_every_split_between_copied_and_learned_drafts(qwen38: Qwen38Host, sampling: Sampling) -> None:
    """0 .. 7 drafts copied, the rest of seven learned, from either copy source."""
    talk = qwen38.begin(3, prompt_of(91, 25), 40, sampling)
    splits: Counter[tuple[int, Source]] = Counter()
    while talk.running and talk.record[Meta.GENERATED] < 32:  # so that every round has room for seven
        turn = sum(splits.values())
        copied, source = turn % 8, (Source.PROMPT, Source.HISTORY)[turn // 8 % 2]
        qwen38.turn([(talk, with_copies(talk, proposed(qwen38, talk)[:copied], source))], 8)
        assert talk.record[Meta.OFFERED] == 7
        wanted = (source if copied else Source.NONE) | (Source.LEARNED if copied < 7 else Source.NONE)
        assert talk.record[Meta.SOURCES] == wanted
        splits[copied, source] += 1
    print(f"splits: {dict(splits)}")
    assert {(copied, source) for copied in range(8) for source in (Source.PROMPT, Source.HISTORY)} <= set(splits)
    if sampling == GREEDY:
        qwen38.check(talk)


def test_a_copy_that_the_drafter_disagrees_with_stands_alone(qwen38: Qwen38Host) -> None:
    """Proposals were drawn behind other tokens: behind this copy they would have no law."""
    talk = qwen38.begin(3, prompt_of(92, 25), 24)
    for copied in range(1, 8):
        copies = proposed(qwen38, talk)[:copied]
        copies[copied // 2] = (copies[copied // 2] + 1) % VOCABULARY
        qwen38.turn([(talk, with_copies(talk, copies, Source.HISTORY))], 8)
        assert (talk.record[Meta.OFFERED], talk.record[Meta.SOURCES]) == (copied, Source.HISTORY)
    qwen38.check(talk)


def test_copies_that_are_right_are_accepted_before_proposals_are_asked(qwen38: Qwen38Host) -> None:
    """Lanes with copies, with proposals and with neither in one round; each says what it would say alone."""
    talks = [qwen38.begin(slot, prompt_of(93 + slot, 20 + 9 * slot), 24) for slot in range(3)]
    turn = 0
    while any(talk.running for talk in talks):
        plans = []
        for talk in talks:
            kind = (turn + talk.slot) % 3
            if talk.running:
                plans.append((talk, (LanePlan(talk.slot, 1), LanePlan(talk.slot, 8), talk.plan(8, turn % 8))[kind]))
        qwen38.turn(plans, 8)
        turn += 1
    for talk in talks:
        qwen38.check(talk)
