"""Requests beside and after one another over the tiny Qwen3.8: batches, padding, mixed rounds, preemption, slot reuse.

As in test_qwen38_rounds.py, each request's tokens and logits are compared with recomputation of its text alone.
"""

from __future__ import annotations

from shared.frames import Meta
from tests.worker.qwen38_host import Qwen38Host
from tests.worker.qwen38_talk import GREEDY, Talk, prompt_of

SIZES = ((3, 9), (40, 16), (62, 24), (66, 42))
"""Prompt length and output budget of each lane."""


def test_lanes_of_other_lengths_and_widths_change_nothing(qwen38: Qwen38Host) -> None:
    """They end one by one: four, two and one lane fill a graph, three leave a padded one."""
    talks = [
        qwen38.begin((slot + 1) % 4, prompt_of(20 + slot, length), budget)
        for slot, (length, budget) in enumerate(SIZES)
    ]
    beside, turn = set(), 0
    while live := [talk for talk in talks if talk.running]:
        # Width and accepted count of each lane go round at strides of their own.
        shapes = [(8 - (turn + 3 * index) % 8, turn + 2 * index) for index in range(len(live))]
        plans = [(talk, talk.plan(width, right % width)) for talk, (width, right) in zip(live, shapes, strict=True)]
        qwen38.turn(plans, max(width for width, _ in shapes))
        beside.add(len(live))
        turn += 1
    assert beside == {1, 2, 3, 4}
    for talk in talks:
        qwen38.check(talk)


def test_a_prompt_chunk_beside_decoding_lanes_changes_neither(qwen38: Qwen38Host) -> None:
    """Mixed rounds: one request answers, another's prompt comes in chunks that are not of whole groups or pages."""
    talk, prompt, start = qwen38.begin(0, prompt_of(31, 30), 18), prompt_of(32, 71), 0
    truth = qwen38.reference.continuation(prompt, 9)
    qwen38.turn([(talk, talk.plan(8, 3))], 8)
    qwen38.init(3, len(prompt), GREEDY, 9)
    for size in (9, 1, 25, 29, 7):
        record = qwen38.mixed([(talk, talk.plan(1, 0))], 3, start, prompt[start : start + size], start + size == 71)
        start += size
    other = Talk(3, prompt, truth, record, list(record.tokens))
    qwen38.turn([(other, other.plan(8, 7)), (talk, talk.plan(4, 2))], 8)
    for each in (talk, other):
        qwen38.check(each)


def test_a_preempted_request_goes_on_from_its_replayed_tokens(qwen38: Qwen38Host) -> None:
    """Its slot and pages go to somebody else; its tokens are fed again into another slot, and the pending one waits."""
    talk = qwen38.begin(1, prompt_of(41, 50), 40)
    for width, right in ((8, 5), (3, 0), (8, 7)):
        qwen38.turn([(talk, talk.plan(width, right))], width)
    other = qwen38.begin(1, prompt_of(42, 33), 9)
    qwen38.turn([(other, other.plan(8, 2))], 8)
    qwen38.init(2, len(talk.prompt), GREEDY, 40)
    history = (*talk.prompt, *talk.said[:-1])
    qwen38.chunk(2, 0, history[:60], final=0)
    record = qwen38.chunk(2, 60, history[60:], final=2, pending=talk.said[-1])
    assert record[Meta.CONSUMED] == len(history)
    assert record[Meta.GENERATED] == len(talk.said)
    again = Talk(2, talk.prompt, talk.truth, record, list(talk.said))
    while again.running:
        plans = [(again, again.plan(8, len(again.said) % 8))]
        qwen38.turn(plans + [(other, other.plan(2, 1))] * other.running, 8)
    qwen38.check(again, since=len(history))
    qwen38.check(other)


def test_a_cancelled_requests_slot_serves_the_next_at_once(qwen38: Qwen38Host) -> None:
    """The slot's last round had rejected drafts; the next request is shorter, then longer than the first."""
    neighbour = qwen38.begin(0, prompt_of(51, 20), 30)
    for seed, length in ((52, 63), (53, 6), (54, 90)):
        talk = qwen38.begin(3, prompt_of(seed, length), 30)
        for right in (7, 0, 4):
            qwen38.turn([(neighbour, neighbour.plan(2, 1)), (talk, talk.plan(8, right))], 8)
        qwen38.check(talk)
    qwen38.check(neighbour)
