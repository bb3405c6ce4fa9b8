"""Copy drafts on the card: a continuation written before the round before was known, sliced at the pending token."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from shared.frames import COPY_TOKENS, ROW_TOKENS, Meta
from tests.gpu.toy_plans import SLOTS, Ledger, Records, lane_of, plan_at, write_plan
from tests.gpu.toy_rules import Lane, Slot, continuation

if TYPE_CHECKING:
    from tests.gpu.toy_worker import ToyWorker

pytestmark = pytest.mark.gpu


def two_rounds(worker: ToyWorker, first: list[Lane], second: list[Lane]) -> tuple[Records, Records]:
    """Both plans written before anything runs, both replays queued; checks all state and returns both records."""
    worker.reset()
    ledger = Ledger()
    for sequence, lanes in enumerate((first, second)):
        write_plan(plan_at(worker.plans.payload, sequence), sequence, lanes)
    expected = [ledger.apply(first, 0), ledger.apply(second, 1)]
    worker.replay_pair()
    found = [records for _, records in worker.journal((0, 1))]
    assert found == expected
    assert worker.slots() == ledger.slots
    return expected[0], expected[1]


def in_fours(cases: list[tuple[int, ...]]) -> list[list[tuple[int, ...]]]:
    """Cases by lanes: one slot each."""
    return [cases[at : at + SLOTS] for at in range(0, len(cases), SLOTS)]


def copying(slots: list[Slot], index: int, ceiling: int, tokens: tuple[int, ...], shift: int = 0) -> Lane:
    """A lane whose continuation starts at the previous token, or `shift` positions after it."""
    return lane_of(slots, index, ceiling=ceiling, anchor=slots[index].consumed - 1 + shift, tokens=tokens)


def test_both_rounds_take_their_slice_for_every_pair_of_accepted_counts(worker: ToyWorker) -> None:
    slots = Ledger().slots
    texts = [continuation(slot, COPY_TOKENS) for slot in slots]
    pairs: list[tuple[int, ...]] = list(itertools.product(range(ROW_TOKENS), repeat=2))
    for group in in_fours(pairs):
        first = [copying(slots, i, a + 1, texts[i]) for i, (a, _) in enumerate(group)]
        second = [copying(slots, i, b + 1, texts[i]) for i, (_, b) in enumerate(group)]
        records = two_rounds(worker, first, second)
        found = [(one[Meta.ACCEPTED], two[Meta.ACCEPTED]) for one, two in zip(*records, strict=True)]
        assert found == group


def test_a_wrong_token_anywhere_ends_copying_where_it_stands(worker: ToyWorker) -> None:
    slots = Ledger().slots
    cases: list[tuple[int, ...]] = list(itertools.product(range(COPY_TOKENS), (1, 5, ROW_TOKENS)))
    for group in in_fours(cases):
        lanes = []
        for index, (wrong, ceiling) in enumerate(group):
            tokens = list(continuation(slots[index], COPY_TOKENS))
            tokens[wrong] ^= 1
            lanes.append(copying(slots, index, ceiling, tuple(tokens)))
        first, second = two_rounds(worker, lanes, lanes)
        for index, (wrong, ceiling) in enumerate(group):
            right = min(ceiling - 1, wrong - 2) if wrong >= 2 else 0
            assert first[index][Meta.ACCEPTED] == right
            if 1 <= wrong <= right + 2:
                # The correction is pending and the continuation disagrees with it: width one.
                assert second[index][Meta.OFFERED] == 0


def test_anchors_and_lengths_that_cover_too_little_offer_nothing(worker: ToyWorker) -> None:
    slots = Ledger().slots
    offered = set()
    cases: list[tuple[int, ...]] = list(itertools.product((-2, -1, 0, 1, 2), range(COPY_TOKENS + 1)))
    for group in in_fours(cases):
        lanes = []
        for index, (shift, length) in enumerate(group):
            text = continuation(slots[index], COPY_TOKENS)
            tokens = (9,) * -shift + text if shift < 0 else text[shift:]
            lanes.append(copying(slots, index, ROW_TOKENS, tokens[:length], shift))
        first, _ = two_rounds(worker, lanes, lanes)
        for index, (shift, length) in enumerate(group):
            count = min(len(lanes[index].tokens), length) + shift - 2
            assert first[index][Meta.OFFERED] == (min(count, 7) if shift <= 0 and count > 0 else 0)
            offered.add(first[index][Meta.OFFERED])
    assert offered == set(range(ROW_TOKENS))
