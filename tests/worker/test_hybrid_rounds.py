"""B06, B14: recurrent state through whole rounds. The state used is the one behind the last committed input.

H1 with forced copy drafts; the reference recomputes from token 0 for every token. Unused state is poisoned with NaN
before each round, so a lane that read any of it would be faulty.
"""

from __future__ import annotations

import itertools
from functools import cache

import pytest
import torch

from recipes.declaration import PreparationConfig
from shared.frames import Meta, Status
from shared.manifest import PAGE_TOKENS
from shared.messages.common import Sampling
from tests.fixtures.hybrid.layers import make_weights
from tests.fixtures.hybrid.recipe import HYBRID, SEED
from tests.fixtures.hybrid.reference import reference
from tests.fixtures.hybrid.target import HybridTarget
from tests.fixtures.hybrid.vocabulary import VOCAB_SIZE
from tests.worker.host import Host, LanePlan, host_of

GREEDY = Sampling(temperature=0.0)
BUDGET = 40
PROMPTS = [tuple((7 * i * i + shift * i + 5) % VOCAB_SIZE for i in range(9 + 11 * shift)) for shift in range(4)]


@cache
def expected(slot: int) -> tuple[int, ...]:
    """What plain recomputation says to the slot's prompt, token by token."""
    weights, tokens = make_weights(SEED), list(PROMPTS[slot])
    for _ in range(BUDGET):
        tokens.append(int(reference(weights, tokens)[-1].argmax()))
    return tuple(tokens[len(PROMPTS[slot]) :])


@pytest.fixture
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    core = tmp_path_factory.mktemp("hybrid")
    config = PreparationConfig(context_length=192, prefill_buckets=(32, 128), mixed_chunk=32)
    manifest = HYBRID.export(core, core, config, lambda what, done, total: None)
    return host_of(HYBRID, manifest)


def poison(host: Host) -> None:
    model = host.catalog.model
    assert isinstance(model, HybridTarget)
    for slot in range(4):
        model.poison(slot, torch.from_numpy(host.pages(slot).astype("int64")))


def lane(slot: int, said: list[int], consumed: int, right: int, offered: int) -> LanePlan:
    """A lane that is offered `offered` copies, of which the first `right` are what the target will say."""
    at = len(said)
    truth = list(expected(slot)[at : at + right])
    wrong = [(token + 1) % VOCAB_SIZE for token in expected(slot)[at + right : at + offered]]
    before = PROMPTS[slot][-1] if at == 1 else said[-2]
    return LanePlan(slot, offered + 1, (before, said[-1], *truth, *wrong), anchor=consumed - 1)


def run(host: Host, slots: list[int], patterns: list[list[tuple[int, int]]]) -> set[tuple[int, int]]:
    """Rounds in which lane l is offered and accepts what its pattern says; returns the (accepted, next width) seen."""
    records = {slot: host.start(slot, PROMPTS[slot], GREEDY, BUDGET) for slot in slots}
    said = {slot: list(records[slot].tokens) for slot in slots}
    seen: set[tuple[int, int]] = set()
    for turn in itertools.count():
        live = [slot for slot in slots if records[slot][Meta.STATUS] == Status.RUNNING]
        if not live:
            break
        wanted = {slot: patterns[i][turn % len(patterns[i])] for i, slot in enumerate(slots)}
        lanes = [lane(s, said[s], records[s][Meta.CONSUMED], wanted[s][1], wanted[s][0]) for s in live]
        poison(host)
        before = {slot: records[slot][Meta.ACCEPTED] for slot in live}
        found = host.round(lanes, max(plan.ceiling for plan in lanes))
        for slot in live:
            assert not found[slot].faults
            records[slot] = found[slot]
            said[slot].extend(found[slot].tokens)
            seen.add((before[slot], found[slot][Meta.WIDTH]))
    for slot in slots:
        assert tuple(said[slot]) == expected(slot)
    return seen


def test_the_reported_pattern_of_copies_and_pauses(host: Host) -> None:
    run(host, [0], [[(3, 3), (0, 0), (0, 0), (2, 2), (0, 0)]])


def test_twenty_rounds_of_rejections_leave_no_trace(host: Host) -> None:
    run(host, [1], [[(7, 0)]])


def test_every_accepted_count_before_every_width(host: Host) -> None:
    seen: set[tuple[int, int]] = set()
    for accepted in range(8):
        for offered in range(8):
            seen |= run(host, [accepted % 4], [[(7, accepted), (offered, 0)]])
    assert {(a, w) for a in range(8) for w in range(1, 9)} <= seen


def test_a_lane_that_drafts_beside_one_that_does_not(host: Host) -> None:
    run(host, [2, 0, 3, 1], [[(7, 7), (0, 0)], [(0, 0)], [(5, 2), (1, 1), (0, 0)], [(7, 0), (7, 6)]])


def test_positions_cross_pages_inside_rounds(host: Host) -> None:
    assert len(PROMPTS[3]) < PAGE_TOKENS < len(PROMPTS[3]) + BUDGET
    for accepted in range(8):
        run(host, [3], [[(7, accepted)]])
