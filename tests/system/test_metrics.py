"""What a whole server counts after real traffic: everything declared is there, adds up and is counted once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from shared import metrics
from shared.metrics import FAMILIES
from tests.compose.queries import queries
from tests.fixtures.harness import SERVICES, Server, wait_until
from tests.system.conftest import SLOW
from tests.system.scrapes import Scrape, scrape, scrape_all, url

TEXT = "the quick brown fox jumps over the lazy dog and the quick brown fox jumps again"
IDS = ",".join(str(ord(letter)) for letter in "no prompt says this, only an answer did before")


@pytest.fixture(scope="module")
def busy(core: Path) -> Iterator[Server]:
    """A server of one slot and no queue after traffic: all kinds of drafts, an abort, a refusal, a bad request."""
    arguments = ("--no-mtp-adaptive-verification", "--concurrency", "1", "--queue-limit", "0")
    with Server(core, (*arguments, "--served-model-name", "Tested"), environment=SLOW) as server:
        server.wait_ready()
        for directive in (f"d1:3/2,7/7;ids:{IDS}", f"d1:0/0;ids:{IDS}", f"d1:0/0;say:{TEXT}"):
            server.chat(directive, max_tokens=90)
        for number in range(3):
            server.chat(f"say:{number} and cut", max_tokens=4)
        with server.stream("no end in sight", max_tokens=400) as stream, server.client() as client:
            next(event for event in stream if event.text)
            body = {"messages": [{"role": "user", "content": "say:too much"}]}
            assert client.post("/v1/chat/completions", json=body).status_code == 429
            assert client.post("/v1/chat/completions", json={"messages": []}).status_code == 400
        wait_until(lambda: idle(server), 20, "the aborted request is gone")
        yield server


def idle(server: Server) -> bool:
    front, scheduler, worker = (scrape(server, name) for name in SERVICES)
    busy = (metrics.REQUESTS_RUNNING, metrics.UNACKNOWLEDGED, metrics.ROUNDS_OUTSTANDING)
    return not any(
        (front.total(metrics.OPEN_REQUESTS), worker.total(metrics.ROUND_AGE_SECONDS), *map(scheduler.total, busy))
    )


@pytest.fixture(scope="module")
def found(busy: Server) -> dict[str, Scrape]:
    return scrape_all(busy)


def test_every_declared_metric_is_exposed_by_its_service_alone(found: dict[str, Scrape]) -> None:
    for service in SERVICES:
        declared = {family.name for family in FAMILIES if service in family.services}
        assert set(found[service].families) == declared, service


def test_types_and_labels_are_the_declared_ones(found: dict[str, Scrape]) -> None:
    for service in SERVICES:
        for family in FAMILIES:
            if service not in family.services:
                continue
            exposed = found[service].families[family.name]
            assert exposed.type == family.type, family.name
            assert exposed.samples, family.name
            own = {"model_name"} if family.name.startswith(metrics.PREFIX) else set()
            for sample in exposed.samples:
                assert set(sample.labels) - {"le"} == {*family.labels, *own}, sample
                assert sample.labels.get("model_name", "Tested") == "Tested"
            if family.name.startswith(metrics.PREFIX):
                assert exposed.documentation == family.meaning


def test_every_series_of_dashboard_and_rules_is_there(found: dict[str, Scrape]) -> None:
    there = set().union(*(each.samples() for each in found.values()))
    asked = {str(selector.name) for query in queries() for selector in query.selectors()} - {"up"}
    assert len(asked) > 50
    assert asked <= there, asked - there


def test_counts_of_different_services_agree(found: dict[str, Scrape]) -> None:
    """B66: each request in one outcome, seen from both sides; nothing runs any more."""
    front, scheduler, worker = (found[name] for name in SERVICES)
    ended = {
        reason: front.total(metrics.REQUESTS_FINISHED, finished_reason=reason) for reason in ("stop", "length", "abort")
    }
    assert ended == {"stop": 3, "length": 3, "abort": 1}
    assert front.total(metrics.REQUESTS_FAILED) == 2
    assert front.total(metrics.REQUESTS_FAILED, code="overloaded") == 1
    outcomes = {
        name: scheduler.total(metrics.OUTCOMES, outcome=name) for name in ("stop", "length", "cancelled", "overloaded")
    }
    assert outcomes == {"stop": 3, "length": 3, "cancelled": 1, "overloaded": 1}
    assert scheduler.total(metrics.SUBMITTED) == sum(outcomes.values()) == scheduler.total(metrics.OUTCOMES)
    assert front.total(metrics.OPEN_REQUESTS) == scheduler.total(metrics.REQUESTS_WAITING) == 0
    assert scheduler.total(metrics.PAGES_FREE) == scheduler.total(metrics.PAGES) > 0
    finished = next(
        sample.value
        for sample in front.families[metrics.REQUEST_GENERATION_TOKENS].samples
        if sample.name.endswith("_sum")
    )
    generated = scheduler.total(metrics.GENERATION_TOKENS)
    assert finished < generated <= finished + 400, "the rest is the aborted one's"
    assert scheduler.total(metrics.QUEUE_TIME) == 7
    for name in (metrics.STALE_RECORDS, metrics.FAULTY_RECORDS, metrics.WORKER_LOSSES, metrics.REFUSED_FRAMES):
        assert scheduler.total(name) == 0, name
    assert worker.total(metrics.STALE_MESSAGES) == 0


def test_rounds_and_drafts_add_up(found: dict[str, Scrape]) -> None:
    _, scheduler, worker = (found[name] for name in SERVICES)
    rounds = worker.total(metrics.ROUNDS)
    assert rounds == worker.total(metrics.ROUND_SECONDS) == worker.total(metrics.LAUNCH_LEAD_SECONDS)
    assert worker.total(metrics.ROUNDS, kind="init") == 7
    assert 0 < worker.total(metrics.LAUNCH_GAP_SECONDS) < rounds, "some were queued ahead, and the first of all was not"
    assert worker.total(metrics.ROUND_AGE_SECONDS) == 0
    assert scheduler.total(metrics.DRAFT_TOKENS) == scheduler.total(metrics.OFFERED_BY_SOURCE)
    assert scheduler.total(metrics.ACCEPTED_TOKENS) == scheduler.total(metrics.ACCEPTED_BY_SOURCE)
    assert scheduler.total(metrics.ACCEPTED_TOKENS) == scheduler.total(metrics.ACCEPTED_BY_POSITION)
    for source in ("learned", "history", "prompt"):
        assert scheduler.total(metrics.ACCEPTED_BY_SOURCE, source=source) > 0, source
    generation = sum(worker.total(metrics.ROUNDS, kind=kind) for kind in ("speculative", "mixed"))
    assert generation > 0
    assert scheduler.total(metrics.LANES) >= scheduler.total(metrics.DRAFT_ROUNDS)


def test_a_scrape_changes_nothing_and_the_api_port_tells_the_same(busy: Server, found: dict[str, Scrape]) -> None:
    for service in SERVICES:
        again = scrape(busy, service)
        for family in FAMILIES:
            if service in family.services and family.type == "counter" and family.name != metrics.PROCESS_CPU:
                assert again.total(family.name) == found[service].total(family.name), family.name
    text = httpx.get(f"{busy.url}/metrics", trust_env=False).text
    assert url(busy, "frontend") != busy.url
    assert 'flare:request_success_total{finished_reason="length",model_name="Tested"} 3.0' in text
