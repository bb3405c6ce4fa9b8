"""SIGKILL and SIGSTOP of each process in the middle of work: section 7 holds, with times, and nothing stays behind."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import get_args

import pytest

from services.scheduler.config import SchedulerConfig
from tests.fixtures.harness import SERVICES, Server, wait_until
from tests.system.conftest import SLOW
from tests.system.faults import BUSY_S, HANG_S, WORKER_LOST_S, Fault, Kind, Seen, latest, strike

SILENCE_S = SchedulerConfig(Path(), Path()).worker_timeout
"""By default a frontend gives up a silent scheduler after as long as a scheduler a silent worker."""
ROUNDS = 20


@pytest.fixture(scope="module")
def started(core: Path) -> Iterator[tuple[Server, float]]:
    """A server, and how many seconds it took to be ready."""
    arguments = ("--hang-timeout", str(HANG_S), "--drain-timeout", "20")
    with Server(core, arguments, environment=SLOW) as running:
        yield running, running.wait_ready()


@pytest.fixture
def struck(started: tuple[Server, float]) -> Server:
    """A server that one fault after another falls upon."""
    return started[0]


@pytest.fixture
def loading(started: tuple[Server, float]) -> float:
    """Seconds that a start of it takes on this machine."""
    return started[1]


def check(seen: Seen, loading: float) -> None:
    """The times of section 7; a stopped process must be found out first."""
    bound = latest(seen.fault, loading)
    for name in ("ended", "unready", "restarted", "again"):
        assert getattr(seen, name) <= getattr(bound, name), (name, seen, bound)


@pytest.mark.parametrize("kind", get_args(Kind))
@pytest.mark.parametrize("service", SERVICES)
def test_a_fault_of_one_service_costs_what_it_held(struck: Server, loading: float, service: str, kind: Kind) -> None:
    check(strike(struck, Fault(service, kind), f"{service} {kind}"), loading)


def test_a_worker_killed_while_idle_and_in_a_prefill(struck: Server) -> None:
    """Before its first token, too, a request whose state is lost hears of it at once; nobody else hears of anything."""
    for busy in (False, True):
        with ThreadPoolExecutor(1) as pool:
            answer = None
            if busy:
                admitted = struck.log.count("request.admitted")
                answer = pool.submit(_post, struck, "sleep:600;say:late")
                wait_until(lambda: struck.log.count("request.admitted") > admitted, 10, "admitted")  # noqa: B023
            pid = struck.kill("worker")
            at = time.monotonic()
            if answer is not None:
                status, code = answer.result(60)
                assert (status, code) == (503, "state_lost")
                assert time.monotonic() - at < WORKER_LOST_S + BUSY_S
            wait_until(lambda: not struck.ready(), WORKER_LOST_S + BUSY_S, "not ready")
        struck.wait_ready()
        assert struck.process("worker").pid != pid
        assert struck.chat("say:on", max_tokens=9)["choices"][0]["message"]["content"] == "on"


def _post(server: Server, text: str) -> tuple[int, str]:
    """Status and error code of an answer that is not streamed."""
    with server.client() as client:
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": 5}
        answer = client.post("/v1/chat/completions", json=body)
    return answer.status_code, answer.json()["error"]["code"]


def test_a_supervisor_that_paused_blames_nobody(struck: Server) -> None:
    pids = {name: struck.process(name).pid for name in SERVICES}
    hung = struck.log.count("supervisor.hung")
    supervisor = struck.processes["run"]
    supervisor.send_signal(signal.SIGSTOP)
    try:
        time.sleep(HANG_S + 1)
        assert struck.chat("say:on", max_tokens=9)["choices"][0]["message"]["content"] == "on"
    finally:
        supervisor.send_signal(signal.SIGCONT)
    time.sleep(2)
    assert {name: struck.process(name).pid for name in SERVICES} == pids
    assert struck.log.count("supervisor.hung") == hung


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_twenty_rounds_of_faults(struck: Server, loading: float, capsys: pytest.CaptureFixture[str]) -> None:
    dice = random.Random(3)
    faults = [Fault(service, kind) for service in SERVICES for kind in get_args(Kind)]
    faults = (faults * 3)[:ROUNDS]
    dice.shuffle(faults)
    table = []
    for number, fault in enumerate(faults):
        table.append(strike(struck, fault, f"round {number}"))
        check(table[-1], loading)
    with capsys.disabled():
        print("\n| service | signal | streams ended | not ready | restarted | ready again |\n|---|---|---|---|---|---|")
        for seen in table:
            times = " | ".join(f"{at:.2f} s" for at in (seen.ended, seen.unready, seen.restarted, seen.again))
            print(f"| {seen.fault.service} | {seen.fault.kind} | {times} |")


@pytest.mark.slow
@pytest.mark.parametrize("service", ["scheduler", "worker"])
def test_a_service_stopped_for_long_costs_its_streams_and_recovers(slow: Server, service: str) -> None:
    """The supervisor's 30 s are not over when the others give it up after 10; continued, it is greeted again."""
    pid = slow.process(service).pid
    with slow.stream("tell me a long story", max_tokens=900) as events:
        next(events)
        slow.signal(service, signal.SIGSTOP)
        at = time.monotonic()
        try:
            last = list(events)[-1]
            assert last.error is not None
            assert last.error["code"] == "state_lost"
            assert SILENCE_S / 2 < time.monotonic() - at < SILENCE_S + 1 + BUSY_S, "a second between two of its signs"
            assert not slow.ready()
        finally:
            slow.signal(service, signal.SIGCONT)
    slow.wait_ready()
    assert slow.process(service).pid == pid
    assert slow.chat("say:on", max_tokens=9)["choices"][0]["message"]["content"] == "on"
