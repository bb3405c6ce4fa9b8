"""What the scheduler counts: every request ends in exactly one outcome, gauges fall back, drafts are told by source."""

from __future__ import annotations

from collections import Counter

import pytest
from prometheus_client.core import Metric

from services.scheduler.exposition import TallyCollector
from services.scheduler.survival import Kind, Outcome
from services.scheduler.tallies import Tallies
from shared import metrics
from shared.frames import Source
from shared.messages.scheduler import Ack, Safe
from tests.scheduler.conftest import Serve, Served
from tests.scheduler.cores import cycling, manifest, mixing

Samples = dict[tuple[str, tuple[str, ...]], float]


def scrape(served: Served) -> Samples:
    """Every number, by sample name and label values."""
    families: list[Metric] = list(TallyCollector(served.tallies, served.loop.gauges).collect())
    return {(s.name, tuple(s.labels.values())): s.value for family in families for s in family.samples}


def of(samples: Samples, name: str) -> dict[tuple[str, ...], float]:
    return {labels: value for (found, labels), value in samples.items() if found == name}


def test_outcomes_add_up_to_what_was_submitted_and_gauges_fall_back(serve: Serve) -> None:
    """B66: finished, stopped, cancelled, refused and failed, with preemption and cancellation twice over."""
    served = serve(manifest(concurrency=2), queue_limit=3)
    worker = served.worker(mixing, round_s=0.003)
    frontend = served.frontend()
    frontend.wait(lambda: frontend.status is not None and frontend.status.ready)
    for number in range(3):
        frontend.submit(f"bad{number}", [], 5)
    frontend.submit("stopped", [20] * 30, 400)
    frontend.submit("cancelled", [21] * 30, 400)
    frontend.wait(lambda: min(len(frontend.output.get(name, [])) for name in ("stopped", "cancelled")) >= 6)
    for number in range(5):
        frontend.submit(f"plain{number}", [22] * 30, 6)
    frontend.wait_over("plain3", "plain4")
    frontend.stop_at("stopped", frontend.deltas[-1].epoch, 4)
    for _ in range(2):
        frontend.cancel("cancelled")
        frontend.cancel("never-heard-of")
    frontend.wait_over("plain0", "plain1", "plain2")
    frontend.submit("gone", [20] * 30, 400)
    frontend.wait(lambda: "gone" in frontend.output)
    frontend.close()
    other = served.frontend()
    other.wait(served.idle)
    samples = scrape(served)
    outcomes = {labels[0]: value for labels, value in of(samples, metrics.OUTCOMES + "_total").items()}
    expected = {"length": 3, "stop": 1, "cancelled": 2, "overloaded": 2, "invalid_request": 3}
    assert outcomes == expected
    assert samples[metrics.SUBMITTED + "_total", ()] == sum(expected.values()) == 11
    gauges = (metrics.REQUESTS_RUNNING, metrics.REQUESTS_WAITING, metrics.PAGE_USAGE, metrics.ROUNDS_OUTSTANDING)
    assert [samples[name, ()] for name in gauges] == [0, 0, 0, 0]
    assert samples[metrics.PAGES_FREE, ()] == samples[metrics.PAGES, ()] == served.core.geometry.pages
    assert samples[metrics.FRONTENDS, ()] == 1
    assert samples[metrics.QUEUE_TIME + "_count", ()] == 6, "all that were given a slot"
    assert samples[metrics.DECODE_TIME + "_count", ()] == 4, "three that ran to their end, and the stopped one"
    assert samples[metrics.WORKER_ATTACHMENTS + "_total", ()] == 1
    again = scrape(served)
    assert again == samples, "a scrape changes nothing"
    worker.stop()
    other.wait(lambda: other.status is not None and not other.status.ready)
    assert scrape(served)[metrics.WORKER_LOSSES + "_total", ()] == 1


def test_requests_that_lose_their_worker_or_meet_the_drain_limit_end_once(serve: Serve) -> None:
    served = serve(manifest(concurrency=2), drain_timeout=0.2)
    worker = served.worker(mixing, round_s=0.005)
    frontend = served.frontend()
    for name in ("a", "b", "waits"):
        frontend.submit(name, [20] * 30, 400)
    frontend.wait(lambda: "a" in frontend.output and "b" in frontend.output)
    worker.stop()
    frontend.wait_over("a", "b")
    served.worker(mixing, round_s=0.02)
    frontend.wait(lambda: "waits" in frontend.output)
    served.loop.stop()
    frontend.wait_over("waits")
    assert served.join() == 0
    assert served.tallies.failed == Counter(state_lost=2, service_unavailable=1)
    assert not served.tallies.finished
    assert served.tallies.submitted == 3


def test_a_stopped_request_whose_frontend_goes_is_not_cancelled_too(serve: Serve) -> None:
    served = serve(manifest())
    served.worker(mixing, round_s=0.05)
    frontend = served.frontend()
    frontend.submit("a", [20] * 30, 400)
    frontend.wait(lambda: len(frontend.output.get("a", [])) >= 3)
    frontend.stop_at("a", frontend.deltas[-1].epoch, 2)
    frontend.cancel("a")
    frontend.close()
    other = served.frontend()
    other.wait(served.idle)
    other.wait(lambda: sum(served.tallies.finished.values()) > 0)
    assert served.tallies.finished == {"stop": 1}


def test_only_acknowledged_tokens_count(serve: Serve) -> None:
    served = serve(manifest())
    served.worker(mixing)
    frontend = served.frontend(acknowledges=False)
    frontend.submit("a", [20] * 30, 9)
    frontend.wait_over("a")
    samples = scrape(served)
    assert samples[metrics.PROMPT_TOKENS + "_total", ()] == 30
    assert samples[metrics.GENERATION_TOKENS + "_total", ()] == 0
    assert samples[metrics.UNACKNOWLEDGED, ()] == 9
    safe = Safe(request="a", epoch=frontend.deltas[-1].epoch, upto=9)
    frontend.send(Ack(instance=frontend.instance, safe=(safe,)))
    frontend.wait(lambda: scrape(served)[metrics.GENERATION_TOKENS + "_total", ()] == 9)
    assert scrape(served)[metrics.UNACKNOWLEDGED, ()] == 0
    assert scrape(served)[metrics.HISTORY_TOKENS, ()] == 9


def test_copies_are_counted_by_source_and_position(serve: Serve) -> None:
    served = serve(manifest(), adaptive=False)
    served.worker(cycling)
    frontend = served.frontend()
    frontend.submit("a", [10 + i % 12 for i in range(40)], 100)
    frontend.wait_over("a")
    frontend.wait(lambda: scrape(served)[metrics.GENERATION_TOKENS + "_total", ()] == 100)
    samples, counts = scrape(served), frontend.deltas[-1].counts
    accepted = of(samples, metrics.ACCEPTED_BY_SOURCE + "_total")
    offered = of(samples, metrics.OFFERED_BY_SOURCE + "_total")
    by_position = of(samples, metrics.ACCEPTED_BY_POSITION + "_total")
    for source, told in (("learned", 0), ("history", counts.accepted_history), ("prompt", counts.accepted_prompt)):
        assert sum(value for labels, value in accepted.items() if labels[0] == source) == told
    assert sum(accepted.values()) == samples[metrics.ACCEPTED_TOKENS + "_total", ()] > 50
    assert sum(offered.values()) == samples[metrics.DRAFT_TOKENS + "_total", ()] == counts.offered
    assert {labels[0]: sum(accepted[source, labels[0]] for source in ("learned", "history", "prompt"))
            for labels in by_position} == {labels[0]: value for labels, value in by_position.items()}  # fmt: skip
    assert all(accepted[key] <= offered[key] for key in accepted)
    lanes = {int(labels[0]): value for labels, value in of(samples, metrics.LANES + "_total").items()}
    emitting = sum(1 for delta in frontend.deltas if delta.start)
    assert sum(lanes.values()) == emitting
    assert lanes[8] > 5


@pytest.mark.parametrize("source", [Source.HISTORY, Source.PROMPT])
def test_learned_drafts_follow_the_copies_of_their_row(source: Source) -> None:
    tallies = Tallies()
    tallies.note_drafts(Outcome(Kind.LEARNED, 7, 5, False, 7, 4, 3, source | Source.LEARNED))
    tallies.note_drafts(Outcome(Kind.LEARNED, 3, 0, False, 0))
    assert sum(map(sum, tallies.offered_by_source.values())) == 7, "what was not verified counts nowhere"
    assert tallies.offered_by_source[source] == [1, 1, 1, 1, 0, 0, 0]
    assert tallies.offered_by_source[Source.LEARNED] == [0, 0, 0, 0, 1, 1, 1]
    assert tallies.accepted_by_source[source] == [1, 1, 1, 0, 0, 0, 0]
    assert tallies.accepted_by_source[Source.LEARNED] == [0, 0, 0, 1, 1, 0, 0]
    assert (tallies.drafted_rounds, tallies.draft_tokens, tallies.accepted_tokens) == (1, 7, 5)


def test_narrow_lanes_tell_their_reason(serve: Serve) -> None:
    served = serve(manifest(), adaptive=False, history_drafts=False)
    served.worker(mixing, round_s=0.002)
    frontend = served.frontend()
    frontend.submit("a", [20 + n % 9 for n in range(7)], 60)
    frontend.wait(lambda: len(frontend.output.get("a", [])) >= 5)
    frontend.submit("b", [30] * 300, 4)
    frontend.wait_over("a", "b")
    narrow = {labels[0]: value for labels, value in of(scrape(served), metrics.NARROW_LANES + "_total").items()}
    assert set(narrow) == {"prefill", "no_drafts", "policy", "pages"}
    assert narrow["prefill"] > 0
    assert narrow["pages"] == 0


def test_a_record_of_an_impossible_width_counts_apart() -> None:
    tallies = Tallies()
    for rows in (1, 8, -3, 1 << 40):
        tallies.note_lane(rows)
    assert tallies.lanes == [2, 1, 0, 0, 0, 0, 0, 0, 1]


def test_counts_of_a_record_that_makes_no_sense_break_nothing() -> None:
    tallies = Tallies()
    tallies.note_drafts(Outcome(Kind.LEARNED, 3, -40, False, 900, -50, 1 << 40, Source.HISTORY))
    assert tallies.offered_by_source[Source.LEARNED] == [1] * 7
    assert tallies.accepted_by_depth == [0] * 7


def test_two_frontends_are_counted_beside_one_another(serve: Serve) -> None:
    """B66: the same request id from two of them is two requests, and each counts once."""
    served = serve(manifest())
    served.worker(mixing)
    frontends = [served.frontend() for _ in range(2)]
    for frontend in frontends:
        frontend.submit("a", [20] * 30, 9)
    for frontend in frontends:
        frontend.wait_over("a")
    frontends[0].wait(lambda: scrape(served)[metrics.GENERATION_TOKENS + "_total", ()] == 18)
    samples = scrape(served)
    assert samples[metrics.FRONTENDS, ()] == 2
    assert samples[metrics.SUBMITTED + "_total", ()] == samples[metrics.OUTCOMES + "_total", ("length",)] == 2
