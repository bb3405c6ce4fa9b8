"""Deterministic sampling on the tiny Qwen3.8 at its defaults: the seed decides, not lanes, neighbours or copies.

With proposals of the MTP layer as they come. A round with proposals draws from the chain's stream, one without from the
positions' own: equal text with and without copies is promised where copies take the place of no proposal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest

from shared.frames import Meta
from shared.messages.common import Sampling
from tests.worker.host import LanePlan
from tests.worker.qwen38_host import Qwen38Host
from tests.worker.qwen38_talk import Talk, prompt_of

BUDGET = 16
PROMPTS = tuple(prompt_of(110 + index, length) for index, length in enumerate((9, 30, 59)))
pytestmark = pytest.mark.parametrize("qwen38", [True], indirect=True, ids=["deterministic"])


def sampling(seed: int) -> Sampling:
    """The checkpoint's defaults; every third request is so warm that nearly all proposals are accepted."""
    if seed % 3 == 1:
        return Sampling(temperature=30.0, seed=seed)
    return Sampling(temperature=1.0, top_k=20, top_p=0.95, seed=seed)


def learned(talk: Talk) -> LanePlan:
    """Proposals only, of a width that follows from how far the request is."""
    return LanePlan(talk.slot, 1 + (5 + 3 * talk.consumed) % 8)


def spoken(host: Qwen38Host, talks: list[Talk], plan: Callable[[Talk], LanePlan]) -> list[list[int]]:
    """All requests to their end, together; what each said."""
    while live := [talk for talk in talks if talk.running]:
        plans = [(talk, plan(talk)) for talk in live]
        host.turn(plans, max(lane.ceiling for _, lane in plans))
    return [talk.said for talk in talks]


def test_a_request_among_others_says_what_it_says_alone(
    qwen38: Qwen38Host, record_property: Callable[[str, object], None]
) -> None:
    """Proposals are drawn, accepted and rejected alike in batches of one, two and four, in whatever slot."""
    alone: list[list[int]] = []
    counts: Counter[tuple[int, int]] = Counter()
    for index, prompt in enumerate(PROMPTS):
        talk = qwen38.begin(0, prompt, BUDGET, sampling(index))
        alone += spoken(qwen38, [talk], learned)
        counts += talk.counts
    print(f"rounds by (width, accepted proposals): {sorted(counts.items())}")
    record_property("rounds by (width, accepted proposals)", str(sorted(counts.items())))
    assert {0, 7} <= {kept for width, kept in counts if width == 8}
    for order in ((0, 1), (2, 0, 1)):
        talks = [qwen38.begin(3 - slot, PROMPTS[index], BUDGET, sampling(index)) for slot, index in enumerate(order)]
        assert spoken(qwen38, talks, learned) == [alone[index] for index in order]


def test_another_seed_says_something_else(qwen38: Qwen38Host) -> None:
    talks = [qwen38.begin(seed, PROMPTS[0], BUDGET, sampling(seed)) for seed in range(3)]
    said = spoken(qwen38, talks, learned)
    assert len({tuple(one) for one in said}) == 3


def test_copies_are_invisible(qwen38: Qwen38Host) -> None:
    """Width one against copies that are right, wrong and right in part, the MTP layer absorbing all along."""
    for index, prompt in enumerate(PROMPTS):
        talk = qwen38.begin(1, prompt, BUDGET, sampling(index))
        (text,) = spoken(qwen38, [talk], lambda talk: LanePlan(talk.slot, 1))
        talk = qwen38.begin(2, prompt, BUDGET, sampling(index))
        talk.truth = text
        spoken(qwen38, [talk], lambda talk: talk.plan(8 - len(talk.said) % 3, talk.counts.total() % 5))
        assert talk.said == text
        assert {0, 4} <= {kept for _, kept in talk.counts}


def test_the_end_of_a_request_is_the_same_at_every_width(qwen38: Qwen38Host) -> None:
    """The budget clips a round of right copies: consumed, pending and status are those of width one."""
    talk = qwen38.begin(1, PROMPTS[0], BUDGET, sampling(9))
    (text,) = spoken(qwen38, [talk], lambda talk: LanePlan(talk.slot, 1))
    for width in range(2, 9):
        wide = qwen38.begin(2, PROMPTS[0], BUDGET, sampling(9))
        wide.truth = text
        spoken(qwen38, [wide], partial(Talk.plan, width=width, right=width - 1))
        assert wide.said == text
        for column in (Meta.CONSUMED, Meta.GENERATED, Meta.STATUS, Meta.DRAFT_CACHE):
            assert wide.record[column] == talk.record[column]
