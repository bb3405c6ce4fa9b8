"""One fault in the middle of work, and what its clients see of it, with times: the rows of architecture.md, section 7.

Four streams run and two requests wait when one service is killed, is stopped for good, or pauses for a moment.
"""

from __future__ import annotations

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

import psutil

from tests.fixtures.harness import SERVICES, Server, wait_until
from tests.system.observer import observing
from tests.system.reader import LONG, Reader

HANG_S = 4.0
"""`--hang-timeout` of servers under these tests."""
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
    """Seconds from the signal: to the last running stream's end, to the first /ready that is not 200, to 200 again.

    All are zero after a pause: nobody sees it."""

    fault: Fault
    ended: float = 0.0
    unready: float = 0.0
    again: float = 0.0


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
            unready = at + wait_until(lambda: not server.ready(), HANG_S + 10, "not ready")
            ended = [_end(reader, fault) for reader in running]
            _queue_is_kept(queued, fault, label)
            wait_until(server.ready, AGAIN_S, "ready again")
            seen = Seen(fault, max(ended) - at, unready - at, time.monotonic() - at)
            changed = {fault.service}
        assert {name for name in SERVICES if server.process(name).pid != pids[name]} == changed
        assert server.url == url
        assert server.chat(f"say:on {label}", max_tokens=60)["choices"][0]["message"]["content"] == f"on {label}"
        wait_until(lambda: observer.idle(pages), 10, "idle")
    assert not [process for process in server.tree() if process.status() == psutil.STATUS_ZOMBIE]
    assert len(list(server.memory.iterdir())) == 2, "one worker's plan and completion frames"
    return seen


def _end(reader: Reader, fault: Fault) -> float:
    """When a running stream ended: with one error frame, or with its connection when the frontend is what ended."""
    if fault.service == "frontend":
        assert reader.result.exception(HANG_S + 20) is not None
        return reader.ended
    last = reader.result.result(HANG_S + 20)[-1]
    assert last.error is not None, last
    assert last.error["code"] == "state_lost"
    return last.at


def _queue_is_kept(queued: list[Reader], fault: Fault, label: str) -> None:
    """Who waited has lost nothing and is served, unless its connection is gone."""
    for i, reader in enumerate(queued):
        if fault.service == "frontend":
            assert reader.result.exception(HANG_S + 20) is not None
        else:
            assert reader.text() == f"queued {label} {i}"


def _nothing_is_lost(server: Server, running: list[Reader], queued: list[Reader], label: str) -> None:
    texts = [reader.text() for reader in running]
    assert [reader.text() for reader in queued] == [f"queued {label} {i}" for i in range(2)]
    again = server.chat(f"{LONG} {label} 0", max_tokens=300)
    assert again["choices"][0]["message"]["content"] == texts[0]
