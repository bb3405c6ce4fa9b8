"""Rounds over the tiny Qwen3.8 against recomputation without a cache: every accepted count, greedy, at every width.

Drafts are forced from the target's own continuation, as copies; all that a round has no business with is NaN. Where
arithmetic is deterministic, each logit that was computed is bitwise that of one pass over the whole text. In the fast
arithmetic logits differ, by how much is measured, and tokens may part only where that could matter.
"""

from __future__ import annotations

from collections.abc import Callable

from shared.frames import Meta
from tests.worker.host import LanePlan
from tests.worker.qwen38_host import Qwen38Host
from tests.worker.qwen38_talk import prompt_of


def tour() -> list[tuple[int, int]]:
    """Rounds (width, accepted drafts): every width behind every accepted count, and every count at every width."""
    full: list[int] = []
    for low in range(1, 9):  # each ordered pair of widths once, all drafts accepted
        full.append(low)
        full.extend(width for high in range(low + 1, 9) for width in (low, high))
    return [(width, width - 1) for width in (*full, 1)] + [
        (width, accepted) for width in range(2, 9) for accepted in range(width - 1)
    ]


def test_every_accepted_count_before_every_width_and_at_every_width(
    qwen38: Qwen38Host, record_property: Callable[[str, object], None]
) -> None:
    """One text from its first tokens over six borders of pages."""
    rounds = tour()
    budget = 1 + sum(accepted + 1 for _, accepted in rounds) + 8  # the end would clip the last round
    talk = qwen38.begin(2, prompt_of(5, 5), budget)
    for width, accepted in rounds:
        qwen38.turn([(talk, talk.plan(width, accepted))], width)
        assert talk.record[Meta.ACCEPTED] == accepted
    assert {(count, width) for count in range(8) for width in range(1, 9)} <= set(talk.pairs)
    assert {(width, count) for width in range(1, 9) for count in range(width)} == set(talk.counts)
    qwen38.check(talk)
    by_width = {width: [talk.counts[width, count] for count in range(width)] for width in range(1, 9)}
    print(f"rounds by width, for each accepted count from 0 on: {by_width}")
    record_property("rounds by width and accepted count", str(by_width))


def test_eight_rows_to_one_after_seven_accepted_drafts(qwen38: Qwen38Host) -> None:
    talk = qwen38.begin(1, prompt_of(11, 61), 20)
    qwen38.turn([(talk, talk.plan(8, 7))], 8)
    assert talk.record[Meta.ACCEPTED] == 7
    while talk.running:
        qwen38.turn([(talk, talk.plan(1, 0))], 1)
    qwen38.check(talk)


def test_the_drafters_own_proposals_change_nothing(qwen38: Qwen38Host) -> None:
    """No copies at all: every draft is the MTP layer's, greedy, at every width in turn."""
    talk, offered = qwen38.begin(0, prompt_of(7, 70), 26), 0
    while talk.running:
        width = 1 + (talk.consumed - 70) % 8
        qwen38.turn([(talk, LanePlan(0, width))], width)
        offered += talk.record[Meta.OFFERED]
    assert offered > 26
    qwen38.check(talk)
