"""Two hundred clients that leave when they like: nothing of them stays, and the rest get what they asked (B23, B24)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import httpx
import orjson
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from compose.log_reader import ServiceLog
from compose.logbook import Choice, since
from shared import metrics
from tests.fixtures.harness import SERVICES, Server, wait_until
from tests.system.leavers import LEAVINGS, Client, crowd, texts, visit_all
from tests.system.observer import Observer, observing

CLIENTS = 200
QUIET_S = 10.0
COMPLETIONS = 500
GROWTH_BYTES = 12 << 20
"""Of one service over five hundred completions, after a hundred that warm its caches: a leak of 25 KB each is seen."""


@pytest.fixture(scope="module")
def crowded(core: Path) -> Iterator[Server]:
    """A server that takes everybody in, a little slow so that there is something to leave in the middle of."""
    arguments = ("--queue-limit", str(4 * CLIENTS), "--no-history-drafts", "--no-prompt-drafts")
    with Server(core, arguments, environment={"T1_FORWARD_SECONDS": "0.01"}) as running:
        running.wait_ready()
        yield running


class Samples:
    """The numbers of one scrape, by name; labels added up unless asked for."""

    def __init__(self, text: str) -> None:
        self._samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]

    def total(self, name: str, **labels: str) -> float:
        return sum(
            sample.value
            for sample in self._samples
            if sample.name == name and all(sample.labels.get(key) == value for key, value in labels.items())
        )


def frontend_of(server: Server) -> Samples:
    with server.client() as client:
        return Samples(client.get("/metrics").text)


def scheduler_of(server: Server) -> Samples:
    notice = orjson.loads((server.run_dir / "scheduler.metrics.json").read_bytes())
    return Samples(httpx.get(f"http://{notice['host']}:{notice['port']}/metrics", trust_env=False).text)


def quiet(server: Server, observer: Observer, pages: int) -> bool:
    """Whether nothing is left of anybody, in the frontend and in the scheduler."""
    return observer.idle(pages) and frontend_of(server).total(metrics.OPEN_REQUESTS) == 0


def phases_of_leavers(server: Server, start: str) -> Counter[str]:
    """In which phase requests were cancelled, by the scheduler's log from time `start` on."""
    reached: dict[str, str] = {}
    found: Counter[str] = Counter()
    with closing(ServiceLog(server.log_dir / "scheduler.log")) as log:
        events = [entry.event for entry in Choice(start=start).entries(log.history())]
    for event in events:
        phase = {"request.received": "waiting", "request.admitted": "prefill", "request.prefilled": "running"}
        if event["event"] in phase:
            reached[event["request"]] = phase[event["event"]]
        elif event["event"] == "request.cancelled":
            found[reached[event["request"]]] += 1
    return found


PHASES = ("waiting", "prefill", "running")
CROWDS = 4
"""At the most, until somebody has left in every phase: on a machine that stands still all may leave while they wait."""


@pytest.mark.parametrize(
    ("stream", "n"), [(True, 1), (False, 1), (True, 3), (False, 3)], ids=["stream", "whole", "stream-3", "whole-3"]
)
def test_two_hundred_clients_leave_when_they_like(crowded: Server, server: Server, stream: bool, n: int) -> None:
    phases: Counter[str] = Counter()
    for turn in range(CROWDS):
        phases += _left(crowded, crowd(CLIENTS, 1000 * turn + 100 * n + stream, stream=stream, n=n))
        assert _is_as_new(crowded, server)
        if all(phases[name] for name in PHASES):
            break
    assert min(phases[name] for name in PHASES) > 0, phases


def _left(crowded: Server, clients: list[Client]) -> Counter[str]:
    """Plays a crowd to its end, after which nothing of it is left; in which phase its requests were cancelled."""
    before = scheduler_of(crowded)
    start, n = since("0s", datetime.now(UTC)), clients[0].n
    with observing(crowded) as observer:
        pages = observer.status().free_pages
        answers = asyncio.run(visit_all(clients, httpx.URL(crowded.url)))
        wait_until(lambda: quiet(crowded, observer, pages), QUIET_S, "quiet")
    stayed = [(client, got) for client, got in zip(clients, answers, strict=True) if client.leaving == "never"]
    assert len(stayed) == CLIENTS // len(LEAVINGS)
    for client, got in stayed:
        assert texts(client, got) == [client.answer] * n
    after = scheduler_of(crowded)
    [submitted] = _grown(before, after, metrics.SUBMITTED + "_total", {})
    ended = [{"outcome": outcome} for outcome in ("cancelled", "stop", "length")]
    cancelled, *finished = _grown(before, after, metrics.OUTCOMES + "_total", *ended)
    assert cancelled + sum(finished) == submitted
    kinds = Counter(client.leaving for client in clients)
    assert sum(finished) <= n * (kinds["never"] + kinds["last round"]), "somebody who had left was served to the end"
    assert cancelled > n * (kinds["waiting"] + kinds["prefill"] + kinds["chunks"]) / 2, (
        "some left before they were read"
    )
    wait_until(lambda: phases_of_leavers(crowded, start).total() == cancelled, 10, "each is in the log")
    return phases_of_leavers(crowded, start)


def _grown(before: Samples, after: Samples, name: str, *labels: dict[str, str]) -> list[float]:
    return [after.total(name, **each) - before.total(name, **each) for each in labels]


def _is_as_new(used: Server, fresh: Server) -> bool:
    """Whether the next answer is that of a server that has seen nothing."""
    text, fields = "tell me something long", {"max_tokens": 200}
    one, other = (each.chat(text, **fields)["choices"][0]["message"]["content"] for each in (used, fresh))
    return bool(one) and one == other


def _holdings(server: Server) -> dict[str, tuple[int, int]]:
    """Resident bytes and descriptors of each service."""
    processes = {name: server.process(name) for name in SERVICES}
    return {name: (process.memory_info().rss, process.num_fds()) for name, process in processes.items()}


def test_five_hundred_completions_leave_nothing(crowded: Server) -> None:
    def complete(number: int) -> str:
        body = {"messages": [{"role": "user", "content": f"d1:7/7;say:{number}"}], "max_tokens": 9, "temperature": 0}
        return str(http.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"])

    with (
        observing(crowded) as observer,
        httpx.Client(base_url=crowded.url, timeout=60, trust_env=False) as http,
        ThreadPoolExecutor(8) as pool,
    ):
        pages = observer.status().free_pages
        assert list(pool.map(complete, range(100))) == [str(number) for number in range(100)]
        before = _holdings(crowded)
        assert list(pool.map(complete, range(COMPLETIONS))) == [str(number) for number in range(COMPLETIONS)]
        wait_until(lambda: quiet(crowded, observer, pages), QUIET_S, "quiet")
        after = _holdings(crowded)
    for name in SERVICES:
        assert after[name][0] - before[name][0] < GROWTH_BYTES, (name, before, after)
        assert after[name][1] <= before[name][1] + 2, (name, before, after)
    assert scheduler_of(crowded).total(metrics.UNACKNOWLEDGED) == 0
    assert not [process for process in crowded.tree() if process.status() == psutil.STATUS_ZOMBIE]
