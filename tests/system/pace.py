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
from itertools import pairwise

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families

from shared import metrics
from tests.fixtures.harness import SERVICES, Server, wait_until

PROMPT = "say:" + "0123456789" * 9
QUIET_STREAMS = 4
"""Measured before the noise begins."""
MAXIMUM_GAP_S = 5.0
"""Generous, for machines that run much else; a server that stalls does so until a time-out of tens of seconds."""
MAXIMUM_P95_S = 2.0
SLOWDOWN = 10.0
"""Of the median gap. A core is shared with the noise and its clients; a stream that starves slows by far more."""
SMALLEST_MEDIAN_S = 0.25
"""A median below this is never too slow: ten times hardly anything may be one turn of the machine's scheduler."""


@dataclass
class Pace:
    """When the pieces of back-to-back streams came, in seconds of the monotonic clock, and what was wrong with them.

    The first `calm` pieces came before the noise.
    """

    times: list[float] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    streams: int = 0
    calm: int = 0

    @property
    def quiet(self) -> list[float]:
        """Seconds between neighbouring pieces before the noise, in order of size."""
        return _gaps(self.times[: self.calm])

    @property
    def gaps(self) -> list[float]:
        """The same under the noise."""
        return _gaps(self.times[max(0, self.calm - 1) :])

    def check(self) -> None:
        """Asserts that the noise changed no text and did not disturb the pace."""
        assert not self.faults
        gaps, quiet = self.gaps, self.quiet
        assert _at(gaps, 0.5) < max(SLOWDOWN * _at(quiet, 0.5), SMALLEST_MEDIAN_S), str(self)
        assert _at(gaps, 0.95) < MAXIMUM_P95_S, str(self)
        assert gaps[-1] < MAXIMUM_GAP_S, str(self)

    def __str__(self) -> str:
        gaps, quiet = self.gaps, self.quiet
        if not gaps or not quiet:
            return f"{self.streams} streams beside, faults {self.faults}"
        return (
            f"{self.streams} streams beside, {len(gaps)} gaps: median {_at(gaps, 0.5) * 1e3:.1f} ms "
            f"(quiet {_at(quiet, 0.5) * 1e3:.1f} ms), p95 {_at(gaps, 0.95) * 1e3:.1f} ms "
            f"(quiet {_at(quiet, 0.95) * 1e3:.1f} ms), longest {gaps[-1] * 1e3:.0f} ms"
        )


def _gaps(times: list[float]) -> list[float]:
    return sorted(after - before for before, after in pairwise(times))


def _at(gaps: list[float], share: float) -> float:
    """The quantile of sorted gaps."""
    return gaps[int(len(gaps) * share)]


@contextmanager
def streaming_beside(server: Server, expected: str) -> Iterator[Pace]:
    """Streams one answer after the other until left; each must be `expected` in full. Entered after a quiet while."""
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
        wait_until(lambda: pace.streams >= QUIET_STREAMS or bool(pace.faults), 60, "the quiet streams")
        pace.calm = len(pace.times)
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
