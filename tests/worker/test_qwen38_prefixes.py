"""Prefixes of the tiny Qwen3.8: exported inside a round, restored, branched from; the request itself goes on beside.

Shared pages stay the owner's: what a branch writes lies behind them. Compared as in test_qwen38_rounds.py.
"""

from __future__ import annotations

import pytest

from shared.frames import Meta
from tests.worker.qwen38_host import Qwen38Host
from tests.worker.qwen38_talk import GREEDY, Talk, prompt_of

ROW = 1
BOUNDARY = 64


def exported(host: Qwen38Host, accepted: int, boundary: int = BOUNDARY) -> Talk:
    """A request in slot 2 that crosses the boundary in a round with this many accepted drafts, which exports it."""
    host.drop(ROW)
    talk = host.begin(2, prompt_of(60 + accepted, 63 - accepted // 2), 30)
    while talk.consumed < boundary:
        host.turn([(talk, talk.plan(8, accepted, export=(ROW, boundary)))], 8)
    assert talk.record[Meta.ACCEPTED] == accepted
    host.hold(ROW, 2)
    return talk


@pytest.mark.parametrize("accepted", range(8))
def test_a_boundary_crossed_inside_a_round_continues_like_a_cold_request(qwen38: Qwen38Host, accepted: int) -> None:
    """A full hit in another slot while the first request goes on."""
    talk = exported(qwen38, accepted)
    prefix = (*talk.prompt, *talk.said)[:BOUNDARY]
    hit = adopted(qwen38, 0, prefix, prefix, talk.truth[BOUNDARY - len(talk.prompt) :])
    for width, right in ((8, 7), (1, 0), (5, 2)):
        qwen38.turn([(hit, hit.plan(width, right)), (talk, talk.plan(width, width - 1 - right))], width)
    qwen38.check(hit)


@pytest.mark.parametrize("boundary", [61, 62, 63, 66])
def test_any_prefix_can_be_exported_where_its_pages_stay_with_it(qwen38: Qwen38Host, boundary: int) -> None:
    """Open groups of every size, in the target and in the drafter, whose pairs are one behind."""
    talk = exported(qwen38, 7, boundary)
    whole = (*talk.prompt, *talk.truth)
    qwen38.init(2, boundary, GREEDY, 12)
    qwen38.restore(2, ROW, whole[:boundary])
    record = qwen38.resume(2)
    again = Talk(2, whole[:boundary], list(whole[boundary:]), record, list(record.tokens))
    for width, right in ((2, 0), (8, 7)):
        qwen38.turn([(again, again.plan(width, right))], width)
    qwen38.check(again)


def test_a_prompt_that_was_said_before_is_not_computed_again(qwen38: Qwen38Host) -> None:
    """Its end is a boundary: the snapshot graph keeps it, and the first token of the second request is the first's."""
    qwen38.drop(ROW)
    talk = qwen38.begin(2, prompt_of(70, BOUNDARY), 25)
    qwen38.snapshot(2, ROW)
    qwen38.turn([(talk, talk.plan(8, 2))], 8)
    hit = adopted(qwen38, 1, talk.prompt, talk.prompt, talk.truth)
    assert set(qwen38.watch.seen[1]) == {BOUNDARY - 1}  # of the prompt, only its last row's logits
    assert hit.said == talk.said[:1]
    for width, right in ((1, 0), (8, 7), (4, 1)):
        qwen38.turn([(talk, talk.plan(width, right)), (hit, hit.plan(width, right))], width)
    for each in (talk, hit):
        qwen38.check(each)


def test_two_tails_branch_from_one_prefix_while_its_owner_goes_on(qwen38: Qwen38Host) -> None:
    talk = exported(qwen38, 6)
    prefix = (*talk.prompt, *talk.said)[:BOUNDARY]
    tails = [
        adopted(qwen38, slot, prefix, (*prefix, *prompt_of(80 + slot, length))) for slot, length in ((0, 1), (3, 70))
    ]
    everyone = [*tails, talk]
    for shift in (0, 3, 5):
        shapes = [(8, (shift + 3 * index) % 8) for index in range(3)]
        qwen38.turn([(one, one.plan(*shape)) for one, shape in zip(everyone, shapes, strict=True)], 8)
    # The row is as it was, whatever has been built upon it.
    late = adopted(qwen38, 1, prefix, (*prefix, *prompt_of(90, 5)))
    qwen38.turn([(late, late.plan(8, 7))], 8)
    for one in (*everyone, late):
        qwen38.check(one)


def adopted(
    host: Qwen38Host, slot: int, prefix: tuple[int, ...], prompt: tuple[int, ...], truth: list[int] | None = None
) -> Talk:
    """A request whose prompt begins with the exported prefix, in slot 2's first page and then in its own."""
    truth = host.reference.continuation(prompt, 25) if truth is None else truth
    host.tables[slot] = host.pages(2)[:1].tolist()
    host.init(slot, len(prompt), GREEDY, len(truth))
    host.restore(slot, ROW, prefix)
    tail = prompt[len(prefix) :]
    record = host.chunk(slot, len(prefix), tail, final=1) if tail else host.resume(slot)
    return Talk(slot, prompt, truth, record, list(record.tokens))
