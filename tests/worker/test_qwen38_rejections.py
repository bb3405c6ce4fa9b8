"""B14, B06 on the tiny Qwen3.8: what a rejected draft touched is as if it had never been offered.

All kinds of state are compared bit for bit: recurrent matrices, convolution and n-gram histories, token histories,
pages, group keys, rings with their tags, the drafter's own, the sampling vector.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from shared.frames import Meta
from tests.worker.host import LanePlan, Record
from tests.worker.qwen38_host import Qwen38Host
from tests.worker.qwen38_state import committed_state
from tests.worker.qwen38_talk import GREEDY, Talk, prompt_of

ROW, SLOT, BUDGET = 0, 0, 30
PROMPT = prompt_of(70, 58)
"""Eight rows behind it cross groups of four and the border of a page."""
deterministic = pytest.mark.parametrize("qwen38", [True], indirect=True, ids=["deterministic"])


@pytest.fixture
def start(qwen38: Qwen38Host) -> Qwen38Host:
    """A snapshot row of the prompt, whose pages are the slot's own."""
    qwen38.drop(ROW)
    qwen38.tables[SLOT] = []
    qwen38.init(SLOT, len(PROMPT), GREEDY, BUDGET)
    qwen38.chunk(SLOT, 0, PROMPT, final=0, export=ROW)
    qwen38.hold(ROW, SLOT)
    return qwen38


def again(host: Qwen38Host) -> Talk:
    """The request from the snapshot on; its first token is drawn."""
    host.init(SLOT, len(PROMPT), GREEDY, BUDGET)
    host.restore(SLOT, ROW, PROMPT)
    record = host.resume(SLOT)
    return Talk(SLOT, PROMPT, host.reference.continuation(PROMPT, BUDGET), record, list(record.tokens))


def state_of(host: Qwen38Host) -> dict[str, Tensor]:
    found = committed_state(host.target, host.drafter, SLOT, host.table(SLOT))
    return {**found, "sampling vector": host.catalog.state.vectors[SLOT].clone()}


def replayed(host: Qwen38Host, said: list[int]) -> Record:
    """The same tokens as a chunk behind the snapshot, never drafted."""
    host.init(SLOT, len(PROMPT), GREEDY, BUDGET)
    host.restore(SLOT, ROW, PROMPT)
    return host.chunk(SLOT, len(PROMPT), tuple(said[:-1]), final=2, pending=said[-1])


def parted(one: dict[str, Tensor], other: dict[str, Tensor]) -> list[str]:
    assert one.keys() == other.keys()
    return [name for name in one if not torch.equal(one[name], other[name])]


@deterministic
@pytest.mark.parametrize("kept", range(1, 9))
def test_state_after_rejected_drafts_is_that_of_the_kept_rows_alone(start: Qwen38Host, kept: int) -> None:
    talk = again(start)
    start.turn([(talk, talk.plan(8, kept - 1))], 8)
    assert (talk.record[Meta.OFFERED], talk.record[Meta.ACCEPTED]) == (7, kept - 1)
    rejecting = state_of(start)
    assert rejecting["consumed"] == len(PROMPT) + kept
    only = again(start)
    start.turn([(only, only.plan(kept, kept - 1))], kept)
    assert only.said == talk.said
    assert parted(state_of(start), rejecting) == []
    replayed(start, talk.said)
    assert parted(state_of(start), rejecting) == []
    single = again(start)
    for _ in range(kept):
        start.turn([(single, single.plan(1, 0))], 1)
    assert parted(state_of(start), rejecting) == []


@deterministic
def test_proposals_leave_as_little_as_copies(start: Qwen38Host) -> None:
    """Seven recursive proposals a round, for some rounds: the drafter's pages, ring and tail are of history alone."""
    talk = again(start)
    for _ in range(3):
        start.turn([(talk, LanePlan(SLOT, 8))], 8)
        assert talk.record[Meta.OFFERED] == 7
    proposing = state_of(start)
    replayed(start, talk.said)
    assert parted(state_of(start), proposing) == []


def test_twenty_rounds_of_rejections_and_then_acceptances(qwen38: Qwen38Host) -> None:
    """B14 as it was reported: nothing accepted for long, then everything."""
    talk = qwen38.begin(1, prompt_of(71, 9), 46)
    for right in (*[0] * 20, 7, 7, 7):
        qwen38.turn([(talk, talk.plan(8, right))], 8)
    assert talk.counts == {(8, 0): 20, (8, 7): 3}
    qwen38.check(talk)


def test_copies_in_some_rounds_and_none_in_others(qwen38: Qwen38Host) -> None:
    """B06 as it was reported: three accepted, none, none, two accepted, none; beside a lane that does the contrary."""
    pattern = (3, 0, 0, 2, 0)
    talk, other = qwen38.begin(2, prompt_of(72, 30), 30), qwen38.begin(0, prompt_of(73, 12), 60)
    for turn in range(15):
        right, contrary = pattern[turn % 5], 0 if pattern[turn % 5] else 7
        plans = [(talk, talk.plan(1 + right, right)), (other, other.plan(1 + contrary, contrary - contrary % 3))]
        qwen38.turn([plan for plan in plans if plan[0].running], 1 + max(right, contrary))
    for each in (talk, other):
        qwen38.check(each)
