"""One stream that runs beside a test's noise, and the figures that say whether the noise disturbed it.

Also the memory of a server's three services, and whether it has come to rest. Used by the two fuzz tests.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families

from shared import metrics
from tests.fixtures.harness import SERVICES, Server

PROMPT = "say:" + "0123456789" * 9
MAXIMUM_GAP_S = 5.0
"""Generous, for machines that run much else; a server that stalls does so until a time-out of tens of seconds."""


@dataclass
class Pace:
    """When the pieces of back-to-back streams came, in seconds of the monotonic clock, and what was wrong with them."""

    times: list[float] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    streams: int = 0

    @property
    def gaps(self) -> list[float]:
        """Seconds between neighbouring pieces, in order of size."""
        return sorted(after - before for before, after in zip(self.times, self.times[1:], strict=False))

    def __str__(self) -> str:
        gaps = self.gaps
        middle, late = gaps[len(gaps) // 2], gaps[len(gaps) * 99 // 100]
        return (
            f"{self.streams} streams beside, {len(gaps)} gaps: median {middle * 1e3:.1f} ms, "
            f"p99 {late * 1e3:.1f} ms, longest {gaps[-1] * 1e3:.0f} ms"
        )


@contextmanager
def streaming_beside(server: Server, expected: str) -> Iterator[Pace]:
    """Streams one answer after the other until left; each must be `expected` in full."""
    pace, stopping = Pace(), threading.Event()

    def stream() -> None:
        while not stopping.is_set():
            text = ""
            with server.stream(PROMPT) as events:
                for event in events:
                    pace.times.append(time.monotonic())
                    text += event.text
                    if event.error is not None:
                        pace.faults.append(str(event.error))
            if text != expected:
                pace.faults.append(f"another text: {text!r}")
            pace.streams += 1

    def guarded() -> None:
        try:
            stream()
        except Exception as error:  # top of a thread: whatever it is, the test shows it
            pace.faults.append(repr(error))

    thread = threading.Thread(target=guarded, daemon=True)
    thread.start()
    try:
        yield pace
    finally:
        stopping.set()
        thread.join(60)
    assert not thread.is_alive()


def memory(server: Server) -> dict[str, int]:
    """Resident MiB of each service."""
    found = {}
    for name in SERVICES:
        try:
            found[name] = server.process(name).memory_info().rss >> 20
        except psutil.NoSuchProcess:
            found[name] = 0
    return found


def _scrape(server: Server, service: str) -> dict[str, float]:
    """Sums over the labels of each gauge and counter."""
    at = json.loads((server.run_dir / f"{service}.metrics.json").read_bytes())
    text = httpx.get(f"http://{at['host']}:{at['port']}/metrics", trust_env=False, timeout=10).text
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


def idle(server: Server) -> bool:
    """Whether no request is left in any service, and every page is free."""
    scheduler, frontend = _scrape(server, "scheduler"), _scrape(server, "frontend")
    busy = (metrics.REQUESTS_RUNNING, metrics.REQUESTS_WAITING)
    return (
        not any(scheduler[name] for name in busy)
        and scheduler[metrics.PAGES] == scheduler[metrics.PAGES_FREE]
        and not frontend[metrics.OPEN_REQUESTS]
    )
