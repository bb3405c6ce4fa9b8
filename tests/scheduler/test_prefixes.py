"""The prefix cache in use, against a strict device: what hits, what is published and when, and that nothing is lost.

Pages alone continue a prefix of one kind of core; the other kind (`rows`) has recurrent state, which needs a row too.
The device refuses rows, pages and notes that are not of exactly the prefix; texts hang on all that was said before.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.scheduler.controller import AdaptiveWidth, FixedWidth
from services.scheduler.prefix_cache import NO_ROW
from services.scheduler.requests import Leaving, Phase, RequestKey
from shared.frames import FRAMES, Fault, Meta
from shared.manifest import PAGE_TOKENS
from tests.scheduler.cores import END, cycling, output, remembering
from tests.scheduler.desk import FRONTEND, Desk, submit
from tests.scheduler.serving import BOTH, ROWS, core_of, desk_of, request_of, run, speak, turn, words


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("offset", [-1, 0, 1])
@BOTH
def test_the_same_prompt_again_starts_at_its_last_boundary(rows: int, n: int, offset: int) -> None:
    desk, length = desk_of(core_of(rows=rows)), PAGE_TOKENS * n + offset
    assert run(desk, "a", words(length)) == 0
    last = length // PAGE_TOKENS * PAGE_TOKENS
    # Without a sampling vector at least one token must be computed to know what follows.
    expected = last - PAGE_TOKENS if last == length and not rows else last
    for name in ("b", "c"):
        desk.kinds.clear()
        assert run(desk, name, words(length)) == expected
        if rows and expected:
            follows = "resume" if expected == length else "prefill"
            assert desk.kinds[:3] == ["init", "restore", follows]
        else:
            assert desk.kinds[:2] == ["init", "prefill"]
    assert (desk.prefixes.queries, desk.prefixes.hits) == (3 * length, 2 * expected)


@BOTH
def test_a_single_token_behind_a_cached_prompt(rows: int) -> None:
    desk = desk_of(core_of(rows=rows))
    for length in (PAGE_TOKENS, 2 * PAGE_TOKENS, 2 * PAGE_TOKENS + 1):
        for name in ("cold", "warm"):
            run(desk, f"{name}{length}", words(length), budget=1)
    assert desk.prefixes.hits > 2 * PAGE_TOKENS


@BOTH
def test_requests_for_one_text_share_its_pages_before_any_of_them_is_preempted(rows: int) -> None:
    """Sent together they computed it four times; five pages each do not fit, five pages and their ends do."""
    desk, prompt = desk_of(core_of(concurrency=4, context=305, pages=12, rows=rows)), words(200)
    for name in ("a", "b", "c", "d"):
        desk.submit(submit(name, prompt, 100))
    desk.drain(acknowledging=True)
    desk.settle()
    assert desk.roster.preemptions == 0
    assert [desk.output[name] for name in ("a", "b", "c", "d")] == [output(remembering, prompt, 100)] * 4


@pytest.mark.parametrize("position", range(1, 9))
def test_a_boundary_crossed_inside_a_round_is_kept(position: int) -> None:
    """B18: on whatever row of a round the boundary falls, the conversation goes on from there."""
    desk, prompt = desk_of(core_of(rows=ROWS)), words(PAGE_TOKENS - position)
    run(desk, "a", prompt, budget=30)
    grown = prompt + desk.output["a"] + words(9)
    assert run(desk, "b", grown) == PAGE_TOKENS


@pytest.mark.parametrize("length", range(40, 64, 3))
def test_a_boundary_that_two_queued_rounds_race_to_is_kept(length: int) -> None:
    """Eight tokens a round, two rounds queued: whichever reaches it writes the row, and none claims what it did not."""
    desk = Desk(core_of(rows=ROWS), cycling, FixedWidth())
    prompt = [10 + i % 12 for i in range(length)]
    desk.submit(submit("a", prompt, 100))
    desk.drain(acknowledging=True)
    assert desk.sequence < 40
    grown = prompt + desk.output["a"] + words(9)
    desk.submit(submit("b", grown, 4))
    desk.drain()
    assert desk.cached[-1][1] == 2 * PAGE_TOKENS
    assert desk.output["b"] == output(cycling, grown, 4)


@BOTH
def test_a_conversation_goes_on_from_the_newest_boundary_of_its_last_answer(rows: int) -> None:
    desk, prompt = desk_of(core_of(context=1024, rows=rows)), words(70)
    for turns in range(3):
        before = len(prompt)
        cached = run(desk, f"r{turns}", prompt, budget=150)
        assert cached == (0 if turns == 0 else (before - 6) // PAGE_TOKENS * PAGE_TOKENS)
        prompt = prompt + desk.output[f"r{turns}"] + words(5, turns)
    assert desk.prefixes.cache.rows <= 2 * 3, "of a generation's boundaries only the newest keeps its row"


@BOTH
def test_output_is_published_when_it_is_acknowledged_and_not_beyond_a_stop(rows: int) -> None:
    desk, prompt = desk_of(core_of(rows=rows)), words(60)
    desk.submit(submit("a", prompt, 200))
    while len(desk.output.get("a", [])) < 140:
        turn(desk)
    request = request_of(desk, "a")
    assert desk.prefixes.cache.pages == 0, "nothing was acknowledged, and the prompt fills no page"
    desk.acknowledgements.advance(request, 70)
    assert desk.prefixes.cache.pages == 2
    desk.acknowledgements.stopped(request, 72)
    desk.drain()
    assert desk.prefixes.cache.pages == 2
    whole = prompt + output(remembering, prompt, 200)
    # Recurrent state was written at the first boundary only: the next one waited for that to be acknowledged.
    assert run(desk, "b", whole[:190]) == (PAGE_TOKENS if rows else 2 * PAGE_TOKENS)


@BOTH
def test_what_is_acknowledged_after_the_end_is_published_too(rows: int) -> None:
    desk, prompt = desk_of(core_of(rows=rows)), words(60)
    desk.submit(submit("a", prompt, 20))
    desk.drain()
    assert desk.prefixes.cache.pages == 0
    assert desk.prefixes.available < desk.roster.pool.total
    desk.settle()
    assert desk.prefixes.cache.pages == 1
    assert run(desk, "b", prompt + desk.output["a"]) == PAGE_TOKENS


@BOTH
def test_two_tails_of_one_prefix_and_the_third_starts_where_they_part(rows: int) -> None:
    desk, trunk = desk_of(core_of(rows=rows)), words(2 * PAGE_TOKENS)
    assert run(desk, "a", trunk + words(100, 1)) == 0
    # The first left a row at its own last boundary only: the second one leaves one where both part.
    assert run(desk, "b", trunk + words(100, 2)) == (0 if rows else 2 * PAGE_TOKENS)
    assert run(desk, "c", trunk + words(100, 3)) == 2 * PAGE_TOKENS
    assert run(desk, "d", trunk + words(100, 1)) == 3 * PAGE_TOKENS


def test_a_missing_row_never_gives_a_hit() -> None:
    """B08: pages without the recurrent state behind them are worth nothing."""
    desk, prompt = desk_of(core_of(rows=ROWS)), words(3 * PAGE_TOKENS + 5)
    run(desk, "a", prompt)
    assert run(desk, "b", prompt) == 3 * PAGE_TOKENS
    row = desk.prefixes.cache.evict_row()
    assert row != NO_ROW
    desk.prefixes._rows.append(row)
    assert run(desk, "c", prompt) == 0
    assert run(desk, "d", prompt) == 3 * PAGE_TOKENS, "and is written anew"


def test_rows_go_round_and_nobody_waits_for_one() -> None:
    desk = desk_of(core_of(rows=2))
    prompts = {f"r{n}": words(PAGE_TOKENS + 3, n) for n in range(5)}
    for name, prompt in prompts.items():
        assert run(desk, name, prompt) == 0
    assert run(desk, "again", prompts["r4"]) == PAGE_TOKENS
    assert run(desk, "old", prompts["r0"]) == 0
    assert desk.prefixes.cache.rows == 2


@pytest.mark.parametrize("again", ["another request", "the same one, preempted"])
def test_no_row_is_taken_from_another_prefix_for_a_boundary_that_has_one(again: str) -> None:
    desk, prompt = desk_of(core_of(rows=2)), words(60)
    run(desk, "other", words(100, 1))
    if again == "another request":
        prompt = words(100)
        for name in ("a", "b"):
            desk.submit(submit(name, prompt, 4))
    else:
        # At 64 tokens there is its own row, but a token behind it must be computed to go on.
        request = speak(desk, "a", prompt, budget=50, count=5)
        desk.acknowledge("a")
        assert (request.prefill_length, desk.prefixes.free_rows) == (PAGE_TOKENS, 0)
        desk.roster.stop(request, Leaving.REQUEUE)
    desk.drain()
    assert [hit for name, hit in desk.cached if name != "other"] == [0, 0], "both computed what a row was there for"
    assert run(desk, "other again", words(100, 1)) == PAGE_TOKENS


def test_a_generation_remembers_no_row_that_the_tree_did_not_take() -> None:
    """Two say the same: the tree has the first one's row, and the second one's is free for anybody."""
    desk, prompt = desk_of(core_of(concurrency=2, rows=ROWS)), words(60)
    for name in ("a", "b"):
        desk.submit(submit(name, prompt, 100))
    while min(len(desk.output.get(name, [])) for name in ("a", "b")) < 20:
        turn(desk)
    for name in ("a", "b"):
        desk.acknowledge(name)
    first, second = (request_of(desk, name).share for name in ("a", "b"))
    assert first.rolling is not None
    assert first.rolling_row == first.rolling.row
    assert (second.rolling, second.rolling_row) == (None, NO_ROW)
    desk.drain(acknowledging=True)


def test_a_row_stays_until_the_request_that_found_it_has_restored_it() -> None:
    desk, prompt = desk_of(core_of(rows=1)), words(100)
    run(desk, "a", prompt)
    desk.submit(submit("b", prompt, 4))
    assert desk.plan()
    assert desk.kinds[-1] == "init"
    assert desk.prefixes.cache.evict_row() == NO_ROW
    assert desk.plan()
    assert desk.kinds[-1] == "restore"
    assert desk.prefixes.cache.evict_row() == 0, "later rounds write it after it was read"
    desk.prefixes._rows.append(0)
    desk.drain()
    assert desk.output["b"] == desk.output["a"]


@BOTH
def test_what_nobody_reads_is_evicted_before_anybody_is_preempted_or_kept_waiting(rows: int) -> None:
    core = core_of(concurrency=2, context=305, pages=10, rows=rows)
    desk = desk_of(core)
    for number in range(8):
        run(desk, f"r{number}", words(200, number), budget=100)
    assert desk.roster.preemptions == 0
    assert desk.prefixes.cache.pages > 5
    assert run(desk, "last", words(200, 7)) == 3 * PAGE_TOKENS, "the newest are kept longest"


@BOTH
def test_a_preempted_request_comes_back_through_the_cache(rows: int) -> None:
    core = core_of(concurrency=3, context=305, pages=12, rows=rows)
    desk = desk_of(core)
    prompts = {f"r{n}": words(120, n) for n in range(3)}
    for name, prompt in prompts.items():
        desk.submit(submit(name, prompt, 150))
    desk.drain(acknowledging=True)
    assert desk.roster.preemptions > 0
    for name, prompt in prompts.items():
        assert desk.output[name] == output(remembering, prompt, 150)
    again = [hit for name, hit in desk.cached[3:]]
    assert max(again) >= PAGE_TOKENS
    assert desk.prefixes.hits == 0, "only a first admission counts"
    desk.settle()


def test_a_request_alone_gives_up_its_copies_of_what_the_cache_has() -> None:
    """It computed pages anew that the tree has without a row, and the pool has no room for both."""
    core = core_of(concurrency=1, context=305, pages=5, rows=ROWS)
    desk, prompt = desk_of(core), words(200)
    run(desk, "a", prompt, budget=1)
    while (row := desk.prefixes.cache.evict_row()) != NO_ROW:
        desk.prefixes._rows.append(row)
    assert run(desk, "b", prompt, budget=100) == 0


@BOTH
def test_penalties_know_the_whole_cached_prefix(rows: int) -> None:
    """Piece by piece, where it is longer than a chunk; a whole prompt too. The device counts what it was told."""
    desk = desk_of(core_of(rows=rows, prefill=(16, 64)))
    for length in (3 * PAGE_TOKENS, 3 * PAGE_TOKENS + 9):
        run(desk, f"plain{length}", words(length), budget=100)
        desk.kinds.clear()
        hit = run(desk, f"law{length}", words(length), frequency_penalty=0.5)
        assert hit >= 2 * PAGE_TOKENS
        assert desk.kinds.count("restore") == hit // 64
        desk.kinds.clear()
        run(desk, f"none{length}", words(length))
        assert desk.kinds.count("restore") == bool(rows)


@BOTH
def test_others_go_on_while_a_long_prefix_is_noted(rows: int) -> None:
    desk = desk_of(core_of(concurrency=2, rows=rows, prefill=(16, 64)))
    run(desk, "before", words(320))
    desk.submit(submit("a", words(5), 300))
    while len(desk.output.get("a", [])) < 10:
        turn(desk)
    before = len(desk.output["a"])
    desk.submit(submit("b", words(320), 5, presence_penalty=0.5))
    while "b" not in desk.output:
        turn(desk)
    assert desk.cached[-1][1] >= 4 * PAGE_TOKENS
    assert len(desk.output["a"]) - before >= 4
    desk.drain()


@BOTH
def test_a_lost_worker_takes_the_cache_along(rows: int) -> None:
    desk, prompt = desk_of(core_of(rows=rows)), words(200)
    run(desk, "a", prompt)
    desk.submit(submit("b", prompt, 50))
    turn(desk)
    desk.queued.clear()
    desk.roster.detach("gone")
    assert desk.prefixes.available == desk.roster.pool.total
    assert desk.prefixes.cache.pages == desk.prefixes.cache.rows == desk.prefixes.free_rows == 0
    desk.replayed = desk.sequence
    desk.roster.failures.clear()
    desk.attach(rows)
    assert run(desk, "c", prompt) == 0
    assert run(desk, "d", prompt) == 3 * PAGE_TOKENS


@BOTH
def test_switched_off_it_keeps_nothing(rows: int) -> None:
    desk = desk_of(core_of(rows=rows), cache=False)
    for name in ("a", "b"):
        assert run(desk, name, words(200)) == 0
    assert desk.prefixes.available == desk.roster.pool.free == desk.roster.pool.total
    assert desk.prefixes.queries == 0


def test_without_rows_a_recurrent_core_caches_nothing() -> None:
    desk = desk_of(core_of(rows=1))
    desk.attach(0)
    for name in ("a", "b"):
        assert run(desk, name, words(200)) == 0
    assert desk.prefixes.cache.pages == 0


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(0, 5), st.integers(1, 150)),
        st.tuples(st.just("law"), st.integers(0, 5), st.integers(1, 40)),
        st.tuples(st.sampled_from(["cancel", "ack", "stop"]), st.integers(0, 12), st.integers(0, 90)),
        st.tuples(st.sampled_from(["plan", "replay", "complete"]), st.just(0), st.just(0)),
        st.tuples(st.just("turn"), st.integers(1, 25), st.just(0)),
        st.tuples(st.sampled_from(["steal", "refuse"]), st.just(0), st.just(0)),
    ),
    max_size=60,
)
TEXTS = [words(63), words(64), words(190), words(128) + words(40, 1), words(128) + words(70, 2), words(20)]


@settings(max_examples=150, deadline=None)
@given(
    steps=STEPS,
    policy=st.sampled_from([AdaptiveWidth, FixedWidth]),
    pages=st.integers(6, 16),
    rows=st.sampled_from([0, 1, 4]),
    mixed=st.sampled_from([0, 32]),
)
def test_any_history_shares_pages_and_rows_without_a_trace_in_the_texts(
    steps: list[tuple[str, int, int]], policy: type[AdaptiveWidth | FixedWidth], pages: int, rows: int, mixed: int
) -> None:
    """Each page and row has one owner at any time, rounds write only their own, and all of it comes back."""
    desk = Desk(core_of(concurrency=3, context=360, pages=pages, mixed=mixed, rows=rows), remembering, policy())
    sent: dict[str, tuple[list[int], int]] = {}
    cut: set[str] = set()
    for kind, first, second in steps:
        name = f"r{first}"
        found = desk.roster.requests.get(RequestKey(FRONTEND, name))
        if kind in ("submit", "law"):
            name = f"r{len(sent)}"
            sent[name] = (TEXTS[first], second)
            desk.submit(submit(name, *sent[name], ends=(END,), repetition_penalty=1.0 + (kind == "law")))
        elif kind == "ack" and found is not None:
            desk.acknowledgements.advance(found, second)
        elif kind == "cancel" and found is not None:
            cut.add(name)
            desk.roster.stop(found, Leaving.FORGET)
        elif kind == "stop" and found is not None:
            cut.add(name)
            desk.acknowledgements.stopped(found, min(second, found.generated))
        elif kind == "turn":
            for _ in range(first):
                turn(desk)
        elif kind == "steal":
            row = desk.prefixes.cache.evict_row()
            desk.prefixes._rows += [row] if row != NO_ROW else []
        elif kind == "refuse" and desk.queued and desk.queued[0][0] < desk.replayed:
            sequence, plan = desk.queued[0]
            for request in [r for r in plan.requests if r.phase is not Phase.STOPPING]:
                desk.outs[sequence % FRAMES].records[request.slot, Meta.FAULTS] = Fault.NOT_FINITE
                cut.add(request.key.request)
            desk.complete()
        elif kind in ("plan", "replay", "complete"):
            {"plan": desk.plan, "replay": desk.replay, "complete": desk.complete}[kind]()
        desk.check()
    desk.drain()
    desk.settle()
    assert {failure.request.key.request for failure in desk.roster.failures} <= cut
    for name, (prompt, budget) in sent.items():
        expected, got = output(remembering, prompt, budget, (END,)), desk.output.get(name, [])
        assert got == expected[: len(got)] if name in cut else got == expected
