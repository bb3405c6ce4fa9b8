"""One fault in the middle of work, and what its clients see of it, with times: the rows of architecture.md, section 7.

Four streams run and two requests wait when one service is killed, is stopped for good, or pauses for a moment. The
latest times are the product's own constants, and one allowance for the machine.
"""

from __future__ import annotations

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

import psutil

from compose.restarts import FIRST_DELAY_S
from compose.supervisor import SLOWEST_POLL_S
from services.scheduler.loop import TICK_S
from services.scheduler.worker_link import SUSPICION_S
from tests.fixtures.harness import SERVICES, Server, wait_until
from tests.system.observer import observing
from tests.system.reader import LONG, Reader

HANG_S = 4.0
"""`--hang-timeout` of servers under these tests."""
BUSY_S = 5.0
"""The one allowance, on top of every bound of the product: a machine that runs much else turns to us so late."""
WORKER_LOST_S = SUSPICION_S + TICK_S
"""From a worker's end to the scheduler's verdict."""
HUNG_S = HANG_S + 2 * SLOWEST_POLL_S
"""From a stop to the kill: the supervisor hears the last beat, and misses the next ones, at one of its looks."""
PROBE_S = 2.0
"""How long `Server.ready` waits for an answer, which a stopped frontend never gives."""
LOADS = 3.0
"""A load is no promise of the product: it may take so many times as long as the one that the test has seen."""
PAUSE_S = 1.5
AGAIN_S = 60.0

Kind = Literal["kill", "stop", "pause"]


@dataclass(frozen=True, slots=True)
class Fault:
    """`stop` is never continued; `pause` is, soon."""

    service: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class Seen:
    """Seconds from the signal: to the last running stream's end, to the first /ready that is not 200, to the start of
    another process in the place of the struck one, to 200 again.

    All are zero after a pause: nobody sees it."""

    fault: Fault
    ended: float = 0.0
    unready: float = 0.0
    restarted: float = 0.0
    again: float = 0.0


def latest(fault: Fault, loading: float) -> Seen:
    """The latest times of a fault; `loading` is how long the server took to start, in seconds.

    Only the last of them depends on it.
    """
    if fault.kind == "pause":
        return Seen(fault)
    found = (HUNG_S if fault.kind == "stop" else 0.0) + (WORKER_LOST_S if fault.service == "worker" else 0.0)
    unready = PROBE_S if fault.service == "frontend" else found
    restarted = found + FIRST_DELAY_S + BUSY_S
    return Seen(fault, found + BUSY_S, unready + BUSY_S, restarted, restarted + LOADS * loading)


def strike(server: Server, fault: Fault, label: str) -> Seen:
    """Works, strikes, and checks what everybody gets; leaves the server ready and idle."""
    with observing(server) as observer, ThreadPoolExecutor(12) as pool:
        budget = 300 if fault.kind == "pause" else 900
        pages = observer.status().free_pages
        running = [Reader(server, pool, f"{LONG} {label} {i}", max_tokens=budget) for i in range(4)]
        assert all(reader.begun.wait(20) for reader in running)
        queued = [Reader(server, pool, f"say:queued {label} {i}", max_tokens=60) for i in range(2)]
        wait_until(lambda: observer.status().waiting == 2, 10, "two wait")
        url, pids = server.url, {name: server.process(name).pid for name in SERVICES}
        number = signal.SIGKILL if fault.kind == "kill" else signal.SIGSTOP
        server.signal(fault.service, number)
        at = time.monotonic()
        if fault.kind == "pause":
            time.sleep(PAUSE_S)
            server.signal(fault.service, signal.SIGCONT)
            seen = Seen(fault)
            _nothing_is_lost(server, running, queued, label)
            changed = set[str]()
        else:
            wait_until(lambda: not server.ready(), HUNG_S + WORKER_LOST_S + BUSY_S, "not ready")
            unready = time.monotonic()
            ended = [_end(reader, fault) for reader in running]
            wait_until(lambda: _replaced(server, fault.service, pids), AGAIN_S, "another process")
            restarted = time.monotonic()
            wait_until(server.ready, AGAIN_S, "ready again")
            seen = Seen(fault, max(ended) - at, unready - at, restarted - at, time.monotonic() - at)
            _queue_is_kept(queued, fault, label)
            changed = {fault.service}
        assert {name for name in SERVICES if server.process(name).pid != pids[name]} == changed
        assert server.url == url
        assert server.chat(f"say:on {label}", max_tokens=60)["choices"][0]["message"]["content"] == f"on {label}"
        wait_until(lambda: observer.idle(pages), 10, "idle")
    assert not [process for process in server.tree() if process.status() == psutil.STATUS_ZOMBIE]
    assert len(list(server.memory.iterdir())) == 2, "one worker's plan and completion frames"
    return seen


def _replaced(server: Server, service: str, pids: dict[str, int]) -> bool:
    try:
        return int(server.process(service).pid) != pids[service]
    except LookupError:
        return False


def _end(reader: Reader, fault: Fault) -> float:
    """When a running stream ended: with one error frame, or with its connection when the frontend is what ended."""
    if fault.service == "frontend":
        assert reader.result.exception(HUNG_S + WORKER_LOST_S + BUSY_S) is not None
        return reader.ended
    last = reader.result.result(HUNG_S + WORKER_LOST_S + BUSY_S)[-1]
    assert last.error is not None, last
    assert last.error["code"] == "state_lost"
    return last.at


def _queue_is_kept(queued: list[Reader], fault: Fault, label: str) -> None:
    """Who waited has lost nothing and is served, unless its connection is gone."""
    for i, reader in enumerate(queued):
        if fault.service == "frontend":
            assert reader.result.exception(HUNG_S + WORKER_LOST_S + BUSY_S) is not None
        else:
            assert reader.text() == f"queued {label} {i}"


def _nothing_is_lost(server: Server, running: list[Reader], queued: list[Reader], label: str) -> None:
    texts = [reader.text() for reader in running]
    assert [reader.text() for reader in queued] == [f"queued {label} {i}" for i in range(2)]
    again = server.chat(f"{LONG} {label} 0", max_tokens=300)
    assert again["choices"][0]["message"]["content"] == texts[0]
