"""B57: health tells the truth of each process apart: alive, able to serve, slow, stuck, stopped, dead."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shared import metrics
from tests.fixtures.harness import SERVICES, Server, wait_until
from tests.system.scrapes import ask, scrape

ROUND_TIMEOUT_S = 6
PATIENCE_S = 60.0
"""For what is bounded by a start-up on a busy machine."""


@pytest.fixture(scope="module")
def watched(core: Path) -> Iterator[Server]:
    """A server that gives a round six seconds and loads for three; each test leaves it ready."""
    slow_load = {"T1_LOAD_SECONDS": "3"}
    with Server(core, ("--round-timeout", str(ROUND_TIMEOUT_S)), environment=slow_load) as server:
        yield server


def health(server: Server) -> dict[str, int]:
    return {service: ask(server, service, "/health")[0] for service in SERVICES}


def test_while_it_loads_it_is_alive_and_not_ready(watched: Server) -> None:
    seen: set[tuple[int, str]] = set()

    def loading() -> bool:
        try:
            alive, ready = ask(watched, "worker", "/health"), ask(watched, "worker", "/ready")
        except FileNotFoundError:
            return False
        if alive[0]:
            assert alive[0] == 200
            seen.add(ready)
        return ready[0] == 200

    wait_until(loading, PATIENCE_S, "the worker is ready")
    assert (503, "the worker is loading") in seen
    watched.wait_ready()
    assert health(watched) == dict.fromkeys(SERVICES, 200)
    for service in SERVICES:
        assert ask(watched, service, "/ready") == (200, "")
        assert scrape(watched, service).total(metrics.READY) == 1


def test_a_slow_step_is_no_fault(watched: Server) -> None:
    answers: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: answers.append(watched.chat("sleep:1.5;say:slow", max_tokens=1)))
    thread.start()
    wait_until(lambda: scrape(watched, "worker").total(metrics.ROUND_AGE_SECONDS) > 0.5, PATIENCE_S, "a slow round")
    assert health(watched) == dict.fromkeys(SERVICES, 200)
    for service in SERVICES:
        assert ask(watched, service, "/ready") == (200, "")
    thread.join()
    assert answers[0]["choices"][0]["message"]["content"] == "s"
    assert scrape(watched, "scheduler").total(metrics.WORKER_LOSSES) == 0


def test_a_step_that_never_ends_costs_its_worker_and_no_more(watched: Server) -> None:
    before = watched.process("worker").pid
    began = time.monotonic()
    with watched.stream("sleep:3600;say:never") as events:
        [last] = [event for event in events if event.error]
    assert last.error is not None
    assert last.error["code"] == "state_lost"
    assert ROUND_TIMEOUT_S <= last.at - began < ROUND_TIMEOUT_S + 8
    assert "round_timeout" in watched.log
    watched.wait_ready(PATIENCE_S)
    assert watched.process("worker").pid != before
    assert scrape(watched, "scheduler").total(metrics.WORKER_LOSSES) == 1
    assert scrape(watched, "scheduler").total(metrics.WORKER_ATTACHMENTS) == 2
    assert watched.chat("say:again", max_tokens=9)["choices"][0]["message"]["content"] == "again"


def test_a_stopped_scheduler_makes_the_frontend_unready_and_nobody_else_dead(watched: Server) -> None:
    """Its own `/health` is then no answer at all; the frontend's time-out for its word is five seconds."""
    watched.signal("scheduler", signal.SIGSTOP)
    try:
        took = wait_until(lambda: ask(watched, "frontend", "/ready")[0] == 503, 15, "readiness follows")
        assert took > 1, "a moment of silence is no reason"
        assert health(watched) == {"frontend": 200, "scheduler": 0, "worker": 200}
    finally:
        watched.signal("scheduler", signal.SIGCONT)
    watched.wait_ready(PATIENCE_S)
    assert health(watched) == dict.fromkeys(SERVICES, 200)


def test_a_stopped_worker_does_not_answer_and_comes_back(watched: Server) -> None:
    watched.signal("worker", signal.SIGSTOP)
    try:
        assert health(watched) == {"frontend": 200, "scheduler": 200, "worker": 0}
    finally:
        watched.signal("worker", signal.SIGCONT)
    wait_until(lambda: health(watched) == dict.fromkeys(SERVICES, 200), PATIENCE_S, "all are alive")
    watched.wait_ready(PATIENCE_S)


def test_a_killed_scheduler_is_told_by_both_of_its_neighbours(watched: Server) -> None:
    watched.wait_ready(PATIENCE_S)  # it may be the only test that was asked for
    watched.kill("scheduler")
    wait_until(lambda: ask(watched, "frontend", "/ready")[0] == 503, 5, "the frontend is not ready")
    wait_until(lambda: ask(watched, "worker", "/ready") == (503, "no scheduler is attached"), 5, "nor is the worker")
    assert (ask(watched, "frontend", "/health")[0], ask(watched, "worker", "/health")[0]) == (200, 200)
    watched.wait_ready(PATIENCE_S)
    wait_until(lambda: health(watched) == dict.fromkeys(SERVICES, 200), PATIENCE_S, "its successor says where it is")
    assert ask(watched, "worker", "/ready") == (200, "")
