"""The planner and the roster against a strict device, without sockets: random submits, cancels, stops and delays."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.scheduler.admission import Limits
from services.scheduler.controller import AdaptiveWidth, FixedWidth
from services.scheduler.graphs import GraphTable
from services.scheduler.requests import Leaving, Phase, RequestKey
from shared.errors import ManifestError, Overloaded, ProcessError, RequestError
from shared.frames import FRAMES
from shared.manifest import ExecutionGraph, Manifest
from tests.scheduler.cores import END, cycling, manifest, mixing, output
from tests.scheduler.desk import FRONTEND, Desk, submit
from tests.scheduler.device import NextToken

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(1, 150), st.integers(1, 150)),
        st.tuples(st.sampled_from(["cancel", "ack", "stop"]), st.integers(0, 12), st.integers(0, 30)),
        st.tuples(st.sampled_from(["plan", "replay", "complete"]), st.just(0), st.just(0)),
        st.tuples(st.just("turn"), st.integers(1, 12), st.just(0)),
    ),
    max_size=60,
)


@settings(max_examples=120, deadline=None)
@given(
    steps=STEPS,
    text=st.sampled_from([mixing, cycling]),
    policy=st.sampled_from([AdaptiveWidth, FixedWidth]),
    pages=st.integers(5, 14),
    drafts=st.sampled_from([None, 0, 3]),
    mixed=st.sampled_from([0, 32]),
)
def test_any_history_of_events_keeps_the_device_rules(
    steps: list[tuple[str, int, int]],
    text: NextToken,
    policy: type[AdaptiveWidth | FixedWidth],
    pages: int,
    drafts: int | None,
    mixed: int,
) -> None:
    core = manifest(concurrency=3, context=305, pages=pages, mixed=mixed)
    desk = Desk(core, text, policy(), drafts)
    sent: dict[str, tuple[list[int], int]] = {}
    ended: dict[str, int | None] = {}
    for kind, first, second in steps:
        name = f"r{first}"
        found = desk.roster.requests.get(RequestKey(FRONTEND, name))
        if kind == "submit":
            name = f"r{len(sent)}"
            sent[name] = ([10 + (i * first) % 12 for i in range(first)], second)
            desk.submit(submit(name, *sent[name]))
        elif kind == "ack":
            desk.acknowledge(name)
        elif kind == "cancel" and found is not None:
            ended.setdefault(name, None)
            desk.roster.stop(found, Leaving.FORGET)
        elif kind == "stop" and found is not None:
            ended.setdefault(name, None)
            desk.acknowledgements.stopped(found, min(second, found.generated))
        elif kind == "turn":
            for _ in range(first):
                desk.plan()
                desk.replay()
                desk.complete()
        elif kind in ("plan", "replay", "complete"):
            {"plan": desk.plan, "replay": desk.replay, "complete": desk.complete}[kind]()
        desk.check()
    desk.drain()
    desk.settle()
    assert not desk.roster.failures
    for name, (prompt, budget) in sent.items():
        expected, got = output(text, prompt, budget), desk.output.get(name, [])
        assert got == expected[: len(got)] if name in ended else got == expected
    first_admissions = list(dict.fromkeys(request.number for request in desk.admitted))
    assert first_admissions == sorted(first_admissions), "first come, first served"


def test_two_rounds_are_queued_and_copies_survive_the_unknown_one() -> None:
    """With everything accepted the second queued round, planned blind, verifies its whole width too."""
    desk = Desk(manifest(concurrency=1, context=600), cycling, FixedWidth())
    desk.submit(submit("a", [10 + i % 12 for i in range(40)], 400))
    while desk.plan():
        if len(desk.queued) == FRAMES:
            desk.replay()
            desk.complete()
    desk.drain()
    assert desk.output["a"] == output(cycling, [10 + i % 12 for i in range(40)], 400)
    assert desk.sequence < 400 / 8 + 8, "nearly every round emits eight tokens"
    assert desk.tallies.finished == {"length": 1}


def test_preemption_takes_the_latest_and_the_text_goes_on() -> None:
    core = manifest(concurrency=3, context=305, pages=6)
    desk = Desk(core, mixing, FixedWidth())
    prompts = {f"r{n}": [20 + n] * 50 for n in range(3)}
    for name, prompt in prompts.items():
        desk.submit(submit(name, prompt, 150))
    desk.drain()
    assert desk.roster.preemptions > 0
    assert {request.key.request for request in desk.roster.preempted} <= {"r1", "r2"}
    assert next(iter(desk.finished)) == "r0"
    for name, prompt in prompts.items():
        assert desk.output[name] == output(mixing, prompt, 150)


def test_decode_goes_on_beside_a_long_prefill() -> None:
    desk = Desk(manifest(concurrency=2, context=512), mixing, AdaptiveWidth())
    desk.submit(submit("a", [20] * 10, 100))
    for _ in range(6):
        desk.plan()
        desk.replay()
        desk.complete()
    before = len(desk.output["a"])
    desk.submit(submit("b", [21] * 320, 5))
    while "b" not in desk.output:
        desk.plan()
        desk.replay()
        desk.complete()
    assert len(desk.output["a"]) - before >= 10


def test_an_end_token_inside_an_accepted_run_ends_the_text_there() -> None:
    """B03: whatever row the end token falls on."""
    for place in range(1, 17):

        def text(context: list[int], at: int = 40 + place) -> int:
            return END if len(context) == at else cycling(context)

        desk = Desk(manifest(concurrency=1), text, FixedWidth())
        prompt = [10 + i % 12 for i in range(40)]
        desk.submit(submit("a", prompt, 200, ends=(END,)))
        desk.drain()
        assert desk.finished == {"a": "stop"}
        assert desk.output["a"] == output(text, prompt, 200, ends=(END,))


def test_only_acknowledged_output_enters_ring_and_statistics() -> None:
    desk = Desk(manifest(concurrency=1), cycling, FixedWidth())
    desk.submit(submit("a", [10 + i % 12 for i in range(40)], 60))
    while len(desk.output.get("a", [])) < 30:
        desk.plan()
        desk.replay()
        desk.complete()
    history = desk.roster.history
    assert history is not None
    assert len(history) == 0
    assert desk.tallies.draft_tokens == 0
    request = desk.roster.requests[RequestKey(FRONTEND, "a")]
    desk.acknowledgements.advance(request, 10)
    assert len(history) == 10
    desk.acknowledgements.stopped(request, 12)
    assert len(history) == 12
    accepted = desk.tallies.accepted_tokens
    assert accepted <= 12
    desk.drain()
    assert len(history) == 12
    assert desk.tallies.accepted_tokens == accepted
    assert desk.tallies.finished == {"stop": 1}


def test_history_of_another_user_is_copied_only_where_it_is_switched_on() -> None:
    answers = {}
    for switched_on in (True, False):
        desk = Desk(manifest(concurrency=1), mixing, FixedWidth())
        if not switched_on:
            desk.roster.history = None
        for name in ("a", "b"):
            desk.submit(submit(name, [20] * 10, 60))
            desk.drain()
            request = desk.roster.requests[RequestKey(FRONTEND, name)]
            answers[name, switched_on] = request.counts
            desk.acknowledge(name)
        assert desk.output["a"] == desk.output["b"] == output(mixing, [20] * 10, 60)
    assert answers["b", True].accepted_history > 30
    assert answers["b", False].offered_history == answers["a", True].offered_history == 0


def test_a_torn_or_foreign_record_costs_its_request_and_no_other() -> None:
    desk = Desk(manifest(concurrency=2), mixing, AdaptiveWidth())
    for name in ("a", "b"):
        desk.submit(submit(name, [20] * 10, 40))
    while len(desk.output.get("b", [])) < 5:
        desk.plan()
        desk.replay()
        desk.complete()
    desk.plan()
    desk.replay()
    sequence, _ = desk.queued[0]
    slot = desk.roster.requests[RequestKey(FRONTEND, "a")].slot
    desk.outs[sequence % FRAMES].records[slot, 1] += 1
    desk.complete()
    assert desk.tallies.stale_records == 1
    desk.drain()
    assert [(f.request.key.request, f.error.code) for f in desk.roster.failures] == [("a", "round_failed")]
    assert desk.output["b"] == output(mixing, [20] * 10, 40)


def test_requests_that_can_never_run_are_refused() -> None:
    desk = Desk(manifest(concurrency=1, context=305, pages=5), mixing, AdaptiveWidth())
    for message, code in (
        (submit("a", [], 5), "invalid_request"),
        (submit("a", [500], 5), "invalid_request"),
        (submit("a", [-1], 5), "invalid_request"),
        (submit("a", [5], 0), "invalid_request"),
        (submit("a", [5] * 305, 1), "context_length_exceeded"),
        (submit("a", [5], 5, ends=tuple(range(17))), "invalid_request"),
        (submit("a", [5], 5, ends=(500,)), "invalid_request"),
    ):
        with pytest.raises(RequestError) as error:
            desk.submit(message)
        assert error.value.code == code
    desk.submit(submit("a", [5], 5))
    with pytest.raises(RequestError, match="in use"):
        desk.submit(submit("a", [5], 5))


def test_the_queue_is_bounded_beyond_free_slots() -> None:
    desk = Desk(manifest(concurrency=2), mixing, AdaptiveWidth())
    desk.roster.limits = Limits(500, 512, 64, 9, queue=2)
    for number in range(4):
        desk.submit(submit(f"r{number}", [5], 5))
    with pytest.raises(Overloaded):
        desk.submit(submit("r9", [5], 5))
    desk.drain()
    assert len(desk.finished) == 4


def test_a_core_that_lacks_a_way_of_serving_is_refused() -> None:
    with pytest.raises(ProcessError, match="prepared for 3"):
        GraphTable(manifest(widths=(1, 2, 3, 4)), 5)
    core = manifest()
    without = [graph for graph in core.graphs if graph.kind != "decode"]
    with pytest.raises(ManifestError, match="no decode graphs"):
        GraphTable(_with(core, without), 0)


def _with(core: Manifest, graphs: list[ExecutionGraph]) -> Manifest:
    return msgspec.structs.replace(core, graphs=tuple(graphs))


def test_phases_of_a_plain_request() -> None:
    desk = Desk(manifest(concurrency=1), mixing, AdaptiveWidth())
    desk.submit(submit("a", [20] * 100, 3))
    request = desk.roster.requests[RequestKey(FRONTEND, "a")]
    seen = [request.phase]
    for _ in range(20):
        desk.plan()
        desk.replay()
        desk.complete()
        if request.phase is not seen[-1]:
            seen.append(request.phase)
    assert seen == [Phase.WAITING, Phase.PREFILLING, Phase.RUNNING, Phase.FINISHED]
    assert (request.table == -1).all()
    assert np.array_equal(request.visible_output(0, 3), output(mixing, [20] * 100, 3))
    desk.acknowledge("a")
    assert desk.roster.requests == {}
