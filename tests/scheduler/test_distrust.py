"""Requests that the device refused: what of theirs others may still start from, and what of it nobody meets again."""

from __future__ import annotations

import numpy as np
import pytest

from services.scheduler.prefix_cache import NO_ROW
from shared.frames import FRAMES, Fault, Meta
from shared.manifest import PAGE_TOKENS
from tests.scheduler.cores import output, remembering
from tests.scheduler.desk import Desk, submit
from tests.scheduler.serving import BOTH, ROWS, core_of, desk_of, refuse, request_of, run, speak, turn, words

PROMPT = words(2 * PAGE_TOKENS + 5)


def offered(desk: Desk) -> set[int]:
    """Pages that the next request for the prompt would meet, for a hit or for its own pages to be entered behind."""
    cache = desk.prefixes.cache
    found, node = set(), cache._root
    for start in range(0, 2 * PAGE_TOKENS, PAGE_TOKENS):
        child = node.children.get(np.array(PROMPT[start : start + PAGE_TOKENS], dtype=np.int32).tobytes())
        if child is None:
            break
        found.add(child.page)
        node = child
    return found


@pytest.mark.parametrize("where", ["restore", "prefill", "speculative"])
def test_a_round_that_the_device_refused_leaves_nothing_behind(where: str) -> None:
    desk = desk_of(core_of(rows=ROWS))
    if where == "restore":
        run(desk, "a", PROMPT)
    desk.submit(submit("b", PROMPT, 100))
    while not desk.queued or desk.queued[0][1].graph.kind != where:
        turn(desk)
        desk.plan()
    desk.replay()
    request = request_of(desk, "b")
    desk.outs[desk.queued[0][0] % FRAMES].records[request.slot, Meta.FAULTS] = Fault.NOT_FINITE
    desk.complete()
    assert [failure.error.code for failure in desk.roster.failures] == ["round_failed"]
    desk.drain()
    desk.settle()
    desk.roster.failures.clear()
    assert run(desk, "c", PROMPT) == 0
    assert run(desk, "d", PROMPT) == 2 * PAGE_TOKENS


@pytest.mark.parametrize("second", ["goes on", "is refused"])
@pytest.mark.parametrize("first", ["giver", "taker"])
@BOTH
def test_pages_of_a_refused_request_are_met_by_nobody_while_another_still_reads_them(
    rows: int, first: str, second: str
) -> None:
    """Whether it gave them or hit them: the next one computes anew, and the one after it starts from that."""
    desk = desk_of(core_of(concurrency=3, context=360, pages=24, rows=rows))
    bad = set(speak(desk, "giver", PROMPT).pages[:2])
    assert set(speak(desk, "taker", [*PROMPT, 7]).pages[:2]) == bad
    other = "taker" if first == "giver" else "giver"
    refuse(desk, first, Fault.NOT_FINITE)
    assert not offered(desk)
    if second == "is refused":
        refuse(desk, other, Fault.NOT_FINITE)
    fresh = speak(desk, "fresh", PROMPT)
    assert fresh.share.hit == 0
    assert offered(desk) == set(fresh.pages[:2])
    if second == "goes on":
        assert set(request_of(desk, other).pages[:2]) == bad, "it keeps what it reads until it is over"
        assert not offered(desk) & bad
    desk.drain(acknowledging=True)
    desk.settle()
    assert run(desk, "later", PROMPT) == 2 * PAGE_TOKENS
    refused = {failure.request.key.request for failure in desk.roster.failures}
    assert refused == ({first, other} if second == "is refused" else {first})
    if second == "goes on":
        prompt = PROMPT if other == "giver" else [*PROMPT, 7]
        assert desk.output[other] == output(remembering, prompt, 100)


@BOTH
def test_who_reads_distrusted_pages_gives_nothing_more(rows: int) -> None:
    """Its own pages lie behind suspect ones; they go back with it, the ones that it reads too."""
    desk = desk_of(core_of(concurrency=2, context=360, pages=24, rows=rows))
    speak(desk, "giver", PROMPT)
    speak(desk, "taker", [*PROMPT, 7], budget=200)
    refuse(desk, "giver", Fault.NOT_FINITE)
    desk.drain(acknowledging=True)
    assert desk.output["taker"] == output(remembering, [*PROMPT, 7], 200)
    desk.settle()
    assert desk.prefixes.cache.pages == desk.prefixes.cache.rows == 0
    assert desk.roster.pool.free == desk.roster.pool.total


@pytest.mark.parametrize("refused", [False, True])
def test_own_pages_are_not_given_up_for_distrusted_ones(refused: bool) -> None:
    """Without a row it computed them anew, and they are as good as ever."""
    desk = desk_of(core_of(rows=ROWS))
    speak(desk, "giver", PROMPT)
    while (row := desk.prefixes.cache.evict_row()) != NO_ROW:
        desk.prefixes._rows.append(row)
    request = speak(desk, "anew", PROMPT)
    own = tuple(request.pages)
    if refused:
        refuse(desk, "giver", Fault.NOT_FINITE)
    assert desk.prefixes.fold(request) is not refused
    assert (tuple(request.pages) == own) is refused
    desk.drain(acknowledging=True)
    assert desk.output["anew"] == output(remembering, PROMPT, 100)


@BOTH
def test_another_text_is_not_suspect(rows: int) -> None:
    desk, other = desk_of(core_of(rows=rows)), words(150, 3)
    run(desk, "other", other)
    speak(desk, "a", PROMPT)
    refuse(desk, "a", Fault.NOT_FINITE)
    desk.drain()
    assert run(desk, "again", other) == 2 * PAGE_TOKENS


@pytest.mark.parametrize(
    "fault", [Fault.WRONG_PREFIX, Fault.UNEXPECTED_PLAN, Fault.MISSING_HISTORY, Fault.NOT_FINITE | Fault.ROW_SERVER]
)
@BOTH
def test_doubt_about_state_takes_the_text_out(rows: int, fault: Fault) -> None:
    desk = desk_of(core_of(rows=rows))
    run(desk, "before", PROMPT)
    speak(desk, "a", PROMPT)
    refuse(desk, "a", fault)
    desk.drain()
    assert run(desk, "again", PROMPT) == 0


@pytest.mark.parametrize("fault", [Fault.ROW_SERVER, Fault.STALE_EPOCH, Fault.BAD_TOKEN, Fault.MASK_NOT_READY])
@BOTH
def test_a_fault_that_says_nothing_about_state_leaves_the_cache_alone(rows: int, fault: Fault) -> None:
    """A dead row server ends every request that runs; what they share is as good as before."""
    desk = desk_of(core_of(rows=rows))
    run(desk, "before", PROMPT)
    for name in ("a", "b"):
        speak(desk, name, PROMPT)
    for name in ("a", "b"):
        refuse(desk, name, fault)
    desk.drain()
    assert len(desk.roster.failures) == 2
    assert run(desk, "again", PROMPT) == 2 * PAGE_TOKENS
