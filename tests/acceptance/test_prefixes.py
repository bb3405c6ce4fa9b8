"""Snapshot rows and shared pages: cold, hit and branch are one text; a row holds what its prefix has and no more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from recipes.components.model import DraftTask, Proposal
from recipes.components.request_state import NOBODY
from shared.frames import Meta, Status
from shared.messages.common import Sampling
from tests.acceptance.cores import SharingHost, drafter_of, named, target_of
from tests.acceptance.states import NEAR, assert_equal, caches_of, committed, pages_of, poison, recurrent, same
from tests.acceptance.texts import WARM, Tokens, finish, forced, greedy, plain
from tests.worker.host import LanePlan, Record
from tests.worker.qwen38_talk import GREEDY, prompt_of

ROW, BUDGET = 1, 20
PREFIX = prompt_of(64, 64)


@pytest.fixture(autouse=True)
def _own_pages(host: SharingHost) -> Iterator[None]:
    host.catalog.snapshots.clear()
    yield
    host.borrowed.clear()


def hit(host: SharingHost, slot: int, length: int, sampling: Sampling, noted: Tokens = ()) -> None:
    """A fresh request of `length` prompt tokens on slot 0's page and the snapshot row behind it."""
    host.borrowed[slot] = (int(host.pages(0)[0]),)
    host.init(slot, length, sampling, BUDGET, ())
    assert named(host, "restore", slot, ROW, noted)[Meta.CONSUMED] == len(PREFIX)
    poison(host)


def feed(host: SharingHost, slot: int, tail: Tokens) -> Record:
    """The prompt's rest behind a hit: a chunk, or for a full hit a draw from the saved sampling vector."""
    return host.chunk(slot, len(PREFIX), tail, final=1) if tail else named(host, "resume", slot, ROW)


def shared_page(host: SharingHost) -> list[torch.Tensor]:
    """Everything in slot 0's first page."""
    page = int(host.pages(0)[0])
    found = []
    for cache in caches_of(host).values():
        rows, groups = slice(page * 64, page * 64 + 64), slice(page * 16, page * 16 + 16)
        found += [cache.keys[:, rows].clone(), cache.values[:, rows].clone(), cache.groups[groups].clone()]
    return found


def proposal(host: SharingHost, slot: int) -> Proposal:
    """What the drafter would say behind the pending token."""
    state = host.catalog.state
    consumed, pending = int(state.consumed[slot]), int(state.pending[slot])
    draws = torch.linspace(0.2, 0.8, 7)
    return drafter_of(host).propose(
        DraftTask(slot, consumed, pending, 7, pages_of(host, slot), draws, state.values[slot])
    )


def test_branches_share_a_page_that_no_round_writes(host: SharingHost) -> None:
    """ "Branches share immutable target and draft pages and own private suffix state"; "Rejected writes cannot mutate
    an immutable shared page". The giver goes on between them, and most drafts are wrong."""
    tails = {0: prompt_of(1, 3), 1: prompt_of(2, 9), 2: ()}
    texts = {slot: greedy(host, (*PREFIX, *tail), BUDGET) for slot, tail in tails.items()}
    host.init(0, 67, GREEDY, BUDGET, ())
    host.chunk(0, 0, PREFIX, final=0, export=ROW)
    poison(host)  # the page has places that are nobody's: NaN before as after
    before = shared_page(host)
    records = {0: host.chunk(0, 64, tails[0], final=1)}
    for slot in (1, 2):
        hit(host, slot, 64 + len(tails[slot]), GREEDY)
        records[slot] = feed(host, slot, tails[slot])
    said = {slot: list(record.tokens) for slot, record in records.items()}
    for turn in range(BUDGET):
        live = [slot for slot in said if records[slot][Meta.STATUS] == Status.RUNNING]
        if not live:
            break
        lanes = [
            forced(records[slot], slot, (*PREFIX, *tails[slot]), texts[slot], (turn + slot) % 3, 7) for slot in live
        ]
        records.update(host.round(lanes, 8))
        for slot in live:
            said[slot].extend(records[slot].tokens)
            poison(host)
    assert {slot: tuple(tokens) for slot, tokens in said.items()} == texts
    assert all(same(one, other) for one, other in zip(shared_page(host), before, strict=True))


@pytest.mark.parametrize("tail", [(), prompt_of(5, 1), prompt_of(6, 7)], ids=len)
def test_a_hit_has_the_state_and_the_drafts_of_a_cold_request(host: SharingHost, tail: Tokens) -> None:
    """ "A full prompt hit restores both model histories, samples p from the saved target sampling vector, and completes
    the MTP feedback pair from the saved pre-mixer tail"."""
    host.start(0, PREFIX, GREEDY, BUDGET)
    named(host, "snapshot", 0, ROW)
    hit(host, 1, 64 + len(tail), WARM)
    record = feed(host, 1, tail)
    host.init(2, 64 + len(tail), WARM, BUDGET, ())
    cold = host.chunk(2, 0, PREFIX, final=int(not tail))
    if tail:
        cold = host.chunk(2, 64, tail, final=1)
    assert record.tokens == cold.tokens
    assert_equal(committed(host, 1), committed(host, 2), 0.0)
    found, wanted = proposal(host, 1), proposal(host, 2)
    assert torch.equal(found.tokens, wanted.tokens)
    torch.testing.assert_close(found.law, wanted.law, rtol=0, atol=0)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_hit_is_drawn_with_its_own_seed_and_penalties(host: SharingHost, seed: int) -> None:
    """ "Request RNG and penalty state are initialized from the new request", whatever the giver's were; "Prompt counts
    are initialized once", from the tokens that the restoring plan brings."""
    host.start(0, PREFIX, Sampling(temperature=0.7, seed=99, presence_penalty=1.5), BUDGET)
    named(host, "snapshot", 0, ROW)
    sampling = Sampling(temperature=1.0, top_k=4, seed=seed, frequency_penalty=0.3, repetition_penalty=1.2)
    hit(host, 1, 64, sampling, noted=PREFIX)
    record = feed(host, 1, ())
    cold = host.start(2, PREFIX, sampling, BUDGET)
    state = host.catalog.state
    assert torch.equal(state.seen[1], state.seen[2])
    assert torch.equal(state.counts[1], state.counts[2])
    assert finish(host, record, 1, 5) == finish(host, cold, 2, 5)
    assert torch.equal(state.seen[1], state.seen[2])
    assert torch.equal(state.counts[1], state.counts[2])


def rings(host: SharingHost, row: int) -> dict[str, list[int]]:
    """Positions whose raw keys each cache holds for a row."""
    return {
        name: sorted(int(tag) for tag in cache.rings.tags[row] if tag >= 0) for name, cache in caches_of(host).items()
    }


@pytest.mark.parametrize("way", ["snapshot", "chunk", *range(8)], ids=str)
def test_a_row_of_64_tokens_has_63_pairs_and_three_open_raw_keys(host: SharingHost, way: str | int) -> None:
    """ "P-1 draft-cache entries"; "At P % 64 == 0, target QSA has no open four-token compression group, while the MTP
    cache has three entries in its open group. Its checkpoint must retain raw selector keys, tags, positions".

    Taken of a slot, at the end of a chunk, and inside rounds that cross the boundary with any accepted count.
    """
    row, state = host.manifest.geometry.concurrency + ROW, target_of(host).state
    host.init(0, 64, GREEDY, BUDGET, ())
    if isinstance(way, int):
        length = 63 - way // 2
        text = greedy(host, PREFIX[:length], 9)
        whole = (*PREFIX[:length], *text)
        record = host.start(0, PREFIX[:length], GREEDY, BUDGET)
        lane = forced(record, 0, PREFIX[:length], text, way, 7)
        host.round([LanePlan(0, 8, lane.copies, lane.anchor, export_slot=ROW, export_boundary=64)], 8)
    else:
        whole = PREFIX
        host.chunk(0, 0, PREFIX, final=0, export=ROW if way == "chunk" else -1)
        if way == "snapshot":
            named(host, "snapshot", 0, ROW)
    host.init(2, 64, GREEDY, BUDGET, ())
    host.chunk(2, 0, whole[:64], final=0)
    assert int(state.consumed[row]) == int(drafter_of(host).consumed[row]) == 64
    assert_equal(recurrent(host, row), recurrent(host, 2))
    found = rings(host, row)
    assert max(found["drafter"]) == 62
    assert {60, 61, 62} <= set(found["drafter"])
    assert max(found["layer 1"]) == 63
    cache = caches_of(host)["drafter"]
    for position in (60, 61, 62):
        mine, cold = (cache.rings.keys[at][cache.rings.tags[at] == position] for at in (row, 2))
        torch.testing.assert_close(mine, cold, rtol=0, atol=NEAR)


@pytest.mark.parametrize("ahead", range(1, 9))
def test_a_boundary_that_was_not_reached_is_not_published(host: SharingHost, ahead: int) -> None:
    """ "At a crossed 64-token boundary, publish only the state corresponding to an actually accepted consumed prefix":
    five inputs are kept of eight, so the rows behind them are nobody's prefix."""
    prompt = PREFIX[: 64 - ahead]
    text = greedy(host, prompt, 9)
    record = host.start(0, prompt, GREEDY, BUDGET)
    lane = forced(record, 0, prompt, text, 4, 7)
    record = host.round([LanePlan(0, 8, lane.copies, lane.anchor, export_slot=ROW, export_boundary=64)], 8)[0]
    assert record[Meta.ACCEPTED] == 4
    assert int(host.catalog.snapshots.consumed[ROW]) == (64 if ahead <= 5 else NOBODY)


def test_a_row_outlives_the_request_that_gave_it(host: SharingHost) -> None:
    """ "Resource retirement waits for every referencing graph and transfer": a row is a copy, to which nothing matters
    that its giver does afterwards, or who takes its slot."""
    host.start(0, PREFIX, GREEDY, BUDGET)
    named(host, "snapshot", 0, ROW)
    row = host.manifest.geometry.concurrency + ROW
    before = recurrent(host, row)
    host.round([LanePlan(0, 8)], 8)
    host.start(0, prompt_of(9, 30), WARM, BUDGET)
    host.round([LanePlan(0, 3)], 3)
    for name, value in recurrent(host, row).items():
        assert same(value, before[name]), name
    assert plain(host, PREFIX, GREEDY, 4) == greedy(host, PREFIX, 4)
