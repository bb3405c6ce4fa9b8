"""B66: what a frontend counts. Outcomes add up to the requests, whatever becomes of them, and gauges fall back."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
import zmq
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from services.frontend.exposition import expose
from services.frontend.link import SchedulerLink
from services.frontend.state import FrontendState
from shared import exposition, metrics
from shared.channel import RunDirectory
from shared.metrics_address import notice
from shared.pulse import Pulse
from tests.frontend.conftest import Deployment, deploy
from tests.frontend.scripted_scheduler import SOON_S, Script
from tests.frontend.small_core import END

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture(scope="module")
def own(core: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A frontend whose counters no other test moves, and that renders them anew for each scrape."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exposition, "FRESH_S", 0.0)
        with deploy(core, tmp_path_factory.mktemp("run"), metrics_port=0) as deployment:
            yield deployment


def scrape(client: httpx.Client, path: str = "/metrics") -> Samples:
    """Every number by name and labels, but for the model's name."""
    answer = client.get(path)
    assert answer.headers["content-type"].startswith("text/plain")
    return {
        (sample.name, frozenset(item for item in sample.labels.items() if item[0] != "model_name")): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def plain(samples: Samples, name: str) -> float:
    return samples[name, frozenset()]


def by_label(samples: Samples, name: str) -> dict[str, float]:
    return {next(iter(labels))[1]: value for (found, labels), value in samples.items() if found == name and value}


def test_outcomes_of_twenty_requests_add_up_to_twenty(own: Deployment) -> None:
    chat, scheduler = own.chat, own.scheduler
    scheduler.script = Script((*b"abcd", END), rounds=(2,))
    for number in range(10):
        assert (chat.stream() if number % 2 else chat.whole()).finish == "stop"
    bad: tuple[dict[str, Any], ...] = ({"temperature": 9}, {"max_tokens": 0}, {"messages": []})
    for fields in bad:
        assert chat.post(**fields).status_code == 400
    scheduler.script = Script((), failure=("overloaded", "64 requests wait already"))
    assert chat.post().status_code == 429
    scheduler.script = Script((), failure=("round_failed", "the device refused"))
    assert chat.post().status_code == 500
    scheduler.script = Script((*b"ab",), hang_after=2)
    for number in range(5):
        with chat.streaming() as events:
            next(events)
            if number:
                next(events)
    deadline = time.monotonic() + SOON_S
    while plain(scrape(chat.client), metrics.OPEN_REQUESTS) and time.monotonic() < deadline:
        time.sleep(0.02)
    samples = scrape(chat.client)
    finished = by_label(samples, metrics.REQUESTS_FINISHED + "_total")
    failed = by_label(samples, metrics.REQUESTS_FAILED + "_total")
    assert finished == {"stop": 10, "abort": 5}
    assert failed == {"invalid_request": 3, "overloaded": 1, "round_failed": 1}
    assert sum(finished.values()) + sum(failed.values()) == 20
    assert plain(samples, metrics.OPEN_REQUESTS) == 0
    assert plain(samples, metrics.REQUEST_GENERATION_TOKENS + "_count") == 10
    assert plain(samples, metrics.REQUEST_GENERATION_TOKENS + "_sum") == 50
    assert (
        plain(samples, metrics.REQUEST_LATENCY + "_count")
        == plain(samples, metrics.TIME_PER_OUTPUT_TOKEN + "_count")
        == 10
    )
    assert plain(samples, metrics.TIME_TO_FIRST_TOKEN + "_count") == 15, "aborted ones had their first token too"
    gaps = plain(samples, metrics.INTER_TOKEN_LATENCY + "_count")
    assert 10 * 2 <= gaps <= 10 * 2 + 5, "one a round after the first, not one a token"
    moving = ("process_", metrics.READY)
    again = scrape(chat.client)
    assert {k: v for k, v in again.items() if not k[0].startswith(moving)} == {
        k: v for k, v in samples.items() if not k[0].startswith(moving)
    }


def test_the_metrics_port_and_the_api_port_tell_the_same(own: Deployment) -> None:
    at = orjson.loads(notice(own.run_dir, "frontend").read_bytes())
    with httpx.Client(base_url=f"http://{at['host']}:{at['port']}", trust_env=False) as other:
        assert set(scrape(other)) == set(scrape(own.chat.client))
        assert other.get("/health").status_code == other.get("/ready").status_code == 200
        own.scheduler.tell(False)
        deadline = time.monotonic() + SOON_S
        while (answer := other.get("/ready")).status_code == 200 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert (answer.status_code, answer.json()["reason"]) == (503, "no worker")
        assert other.get("/health").status_code == 200
        assert plain(scrape(other), metrics.READY) == 0
        own.scheduler.tell(True)


def test_a_slow_rendering_holds_up_no_stream(own: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, done = threading.Event(), threading.Event()

    def slow(registry: CollectorRegistry) -> bytes:
        begun.set()
        done.wait(10)
        return generate_latest(registry)

    monkeypatch.setattr(exposition, "generate_latest", slow)
    own.scheduler.script = Script((*b"ab", END))
    with ThreadPoolExecutor(8) as pool:
        scrapes = [pool.submit(own.chat.client.get, "/metrics") for _ in range(8)]
        try:
            assert begun.wait(SOON_S)
            assert own.chat.stream().text == "ab"
            assert not any(answer.done() for answer in scrapes)
        finally:
            done.set()
        assert {answer.result(SOON_S).status_code for answer in scrapes} == {200}


def test_a_loop_that_stands_still_is_neither_alive_nor_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def tell() -> None:
        context = zmq.Context[zmq.Socket[bytes]]()
        link = SchedulerLink(context, RunDirectory(tmp_path).frontends)
        shown = expose(FrontendState(link, 5, 5))
        monkeypatch.setattr(exposition, "PULSE", pulse := Pulse())  # this process has another frontend, which beats
        pulse.at = time.monotonic() - 60
        assert "stood still" in shown.alive()
        assert "stood still" in shown.unready()
        pulse.at = time.monotonic()
        assert shown.alive() == ""
        assert shown.unready() == "the server is loading"
        link.close()
        context.term()

    asyncio.run(tell())


def test_control_characters_of_clients_are_in_no_metric(own: Deployment) -> None:
    """B66: names and headers of a client label nothing, so it can make no series and break no line."""
    before = set(scrape(own.chat.client))
    for name in ("a\nflare:ready 0", "x" * 500, "\x1b[31m"):
        assert own.chat.post(model=name).status_code == 404
        own.chat.client.get("/v1/models/" + "y%0Aflare:ready")
        own.chat.client.get("/metrics", headers={"X-Request-Id": "flare-ready"})
    after = set(scrape(own.chat.client))
    assert {labels for _, labels in after - before} <= {frozenset({("code", "model_not_found")})}
