"""A speculative round is a state transaction: what it consumes, emits and keeps, at every accepted count.

Copies of the target's own text are drafts of which any number is right; the drafter's own proposals run beside them.
Wherever nothing is committed lies NaN, and what is committed equals the state of a prompt that was computed at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from shared.frames import Meta, Source, Status
from tests.acceptance.states import State, assert_equal, committed, everything, poison, same
from tests.acceptance.texts import WARM, Tokens, finish, forced, greedy, plain
from tests.worker.host import Host, LanePlan
from tests.worker.qwen38_talk import GREEDY, prompt_of

Cold = Callable[[Tokens], State]


@pytest.fixture(scope="module")
def cold(host: Host) -> Cold:
    """The state of a prefix that a slot takes in as one prompt."""
    known: dict[Tokens, State] = {}

    def state_of(tokens: Tokens) -> State:
        if tokens not in known:
            host.start(3, tokens, GREEDY, 1)
            known[tokens] = committed(host, 3)
        return known[tokens]

    return state_of


@pytest.mark.parametrize("length", range(59, 67))
def test_every_accepted_prefix_over_groups_and_pages(host: Host, cold: Cold, length: int) -> None:
    """ "all-accept/all-reject and every intermediate prefix; QSA groups of four and page boundaries of 64".

    "With a accepted drafts, ordinary chain verification consumes a+1 inputs and produces a+1 newly generated tokens".
    """
    prompt = prompt_of(length, length)
    text = greedy(host, prompt, 9)
    for right in range(8):
        slot = right % 3
        first = host.start(slot, prompt, GREEDY, 40)
        poison(host)
        record = host.round([forced(first, slot, prompt, text, right, 7)], 8)[slot]
        assert (record[Meta.OFFERED], record[Meta.ACCEPTED], record[Meta.EMITTED]) == (7, right, right + 1)
        assert record[Meta.CONSUMED] == length + right + 1
        assert record[Meta.GENERATED] == record[Meta.VISIBLE] == right + 2
        assert record[Meta.DRAFT_CACHE] == record[Meta.CONSUMED] - 1
        assert record.tokens == text[1 : right + 2]
        assert int(host.catalog.state.pending[slot]) == text[right + 1]
        assert_equal(committed(host, slot), cold((*prompt, *text[: right + 1])))


@pytest.mark.parametrize("width", range(1, 8))
def test_every_accepted_prefix_at_every_width(host: Host, cold: Cold, width: int) -> None:
    """ "Qualify every accepted count": at widths that the round above does not have, twice in a row."""
    prompt = prompt_of(100 + width, 61)
    text = greedy(host, prompt, 2 * width + 1)
    for right in range(width):
        record = host.start(0, prompt, GREEDY, 40)
        for turn in (1, 2):
            poison(host)
            record = host.round([forced(record, 0, prompt, text, right, width - 1)], width)[0]
            assert record[Meta.ACCEPTED] == right
            assert record[Meta.CONSUMED] == 61 + turn * (right + 1)
            assert_equal(committed(host, 0), cold((*prompt, *text[: turn * (right + 1)])))


def test_learned_drafts_at_every_accepted_count(host: Host, cold: Cold) -> None:
    """ "Reusable draft history must be absorbed from the actual target hidden states and accepted next-token IDs"."""
    counts: Counter[int] = Counter()
    for seed in range(8):
        prompt = prompt_of(seed, 58 + seed)
        record = host.start(1, prompt, WARM, 32)
        known = [*prompt, *record.tokens]
        while record[Meta.STATUS] == Status.RUNNING:
            poison(host)
            record = host.round([LanePlan(1, 8)], 8)[1]
            known.extend(record.tokens)
            if record[Meta.OFFERED] == 7:
                assert record[Meta.SOURCES] == Source.LEARNED
                counts[record[Meta.ACCEPTED]] += 1
        consumed = record[Meta.CONSUMED]
        assert consumed == len(known) - 1
        assert_equal(committed(host, 1), cold(tuple(known[:consumed])))
    assert set(counts) == set(range(8)), counts


def test_one_emitted_draft_consumes_the_pending_token_alone(host: Host, cold: Cold) -> None:
    """ "emitting only d[0] consumes p, not d[0], even if later draft rows were verified"."""
    prompt = prompt_of(7, 62)
    text = greedy(host, prompt, 9)
    first = host.start(0, prompt, GREEDY, 40, end_ids=(text[1],))
    record = host.round([forced(first, 0, prompt, text, 7, 7)], 8)[0]
    assert record.tokens == (text[1],)
    assert (record[Meta.CONSUMED], record[Meta.WIDTH]) == (63, 8)
    assert int(host.catalog.state.pending[0]) == text[1]
    assert_equal(committed(host, 0), cold((*prompt, text[0])))


def new_at(host: Host, index: int) -> tuple[Tokens, Tokens]:
    """A prompt and its sampled text whose token `index` is the first of its kind, so that it can be an end token."""
    for seed in range(200):
        prompt = prompt_of(seed, 60)
        text = plain(host, prompt, WARM, 10)
        if text[index] not in text[:index]:
            return prompt, text
    raise AssertionError(f"no text whose token {index} is new")


@pytest.mark.parametrize("emitted", range(1, 9))
def test_an_end_token_inside_an_accepted_run_clips_it(host: Host, cold: Cold, emitted: int) -> None:
    """ "Advance consumed and generated counts by t, select the state after verification input t-1, and retain emitted
    token t-1 as pending"; "A terminal token remains pending"."""
    prompt, text = new_at(host, emitted)
    first = host.start(2, prompt, WARM, 40, end_ids=(text[emitted],))
    record = host.round([forced(first, 2, prompt, text, 7, 7)], 8)[2]
    assert record.tokens == text[1 : emitted + 1]
    assert record[Meta.STATUS] == Status.ENDED
    assert record[Meta.CONSUMED] == 60 + emitted
    assert record[Meta.GENERATED] == record[Meta.VISIBLE] + 1 == emitted + 1
    assert int(host.catalog.state.pending[2]) == text[emitted]
    assert_equal(committed(host, 2), cold((*prompt, *text[:emitted])))


@pytest.mark.parametrize("budget", range(2, 9))
def test_the_budget_clips_an_accepted_run(host: Host, cold: Cold, budget: int) -> None:
    """ "clip at device-visible EOS or output budget"."""
    prompt = prompt_of(31, 59)
    text = greedy(host, prompt, 9)
    first = host.start(2, prompt, GREEDY, budget)
    record = host.round([forced(first, 2, prompt, text, 7, 7)], 8)[2]
    assert record.tokens == text[1:budget]
    assert record[Meta.WIDTH] == budget - 1, "no row is verified that could not be emitted"
    assert record[Meta.STATUS] == Status.LENGTH
    assert record[Meta.GENERATED] == record[Meta.VISIBLE] == budget
    assert_equal(committed(host, 2), cold((*prompt, *text[: budget - 1])))


@pytest.mark.parametrize("ending", ["budget", "end token"])
def test_a_round_that_was_queued_behind_the_end_changes_nothing(host: Host, ending: str) -> None:
    """ "Requests already at their limit execute no state transition"; "Device terminal flags suppress any later queued
    round for that request"."""
    prompt = prompt_of(41, 62)
    text = greedy(host, prompt, 5)
    budget, ends = (3, ()) if ending == "budget" else (40, (text[2],))
    first = host.start(0, prompt, GREEDY, budget, ends)
    lane = forced(first, 0, prompt, text, 4, 4)
    last = host.round([lane], 5)[0]
    assert last[Meta.STATUS] != Status.RUNNING
    before = {name: value.clone() for name, value in everything(host).items()}
    for width, kind in ((8, "speculative"), (1, "speculative"), (1, "decode")):
        record = host.round([lane], width, kind)[0]  # type: ignore[arg-type]
        assert (record.tokens, record[Meta.OFFERED], record[Meta.WIDTH]) == ((), 0, 0)
        assert record.meta[Meta.CONSUMED : Meta.EMITTED] == last.meta[Meta.CONSUMED : Meta.EMITTED]
    for name, value in everything(host).items():
        assert same(value, before[name]), name


def test_eight_rows_then_one_with_eight_preceding_accepted_inputs(host: Host, cold: Cold) -> None:
    """ "width-eight to width-one transitions with eight preceding accepted inputs", and "Adaptive width-one rounds
    continue absorbing target feedback into the MTP cache so requests can resume drafting"."""
    for length in range(54, 58):
        prompt = prompt_of(50 + length, length)
        text = greedy(host, prompt, 18)
        record = host.start(1, prompt, GREEDY, 18)
        record = host.round([forced(record, 1, prompt, text, 7, 7)], 8)[1]
        assert record[Meta.ACCEPTED] == 7
        said = [text[0], *record.tokens]
        for _ in range(1 + length % 4):
            poison(host)
            record = host.round([LanePlan(1)], 1)[1]
            said.extend(record.tokens)
            assert record[Meta.DRAFT_CACHE] == record[Meta.CONSUMED] - 1
        assert_equal(committed(host, 1), cold((*prompt, *said[:-1])))
        assert finish(host, record, 1, 8, said) == text
