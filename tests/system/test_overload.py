"""Above a bound requests get 429 and when to come again; those that were taken in and their neighbours see nothing."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from shared import manifest
from tests.fixtures.harness import Server, wait_until
from tests.system.conftest import SLOW
from tests.system.observer import Observer, observing
from tests.system.reader import LONG, Reader

BURST = 300
QUEUE = 8
TOKENS = 200


async def burst(url: str) -> list[httpx.Response]:
    """So many requests at once."""
    limits = httpx.Limits(max_connections=BURST)
    async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False, limits=limits) as client:
        bodies = [
            {"messages": [{"role": "user", "content": f"say:number {i}"}], "temperature": 0, "max_tokens": 30}
            for i in range(BURST)
        ]
        return await asyncio.gather(*(client.post("/v1/chat/completions", json=body) for body in bodies))


def most_waiting(observer: Observer, over: threading.Event) -> int:
    """The highest the queue was seen at until the burst was over."""
    most = 0
    while not over.is_set():
        most = max(most, observer.status().waiting)
    return most


def test_a_burst_beyond_the_queue_is_refused_and_costs_nobody_else(core: Path) -> None:
    with (
        Server(core, ("--queue-limit", str(QUEUE)), environment=SLOW) as server,
        ThreadPoolExecutor(2) as pool,
    ):
        server.wait_ready()
        with observing(server) as observer:
            pages = observer.status().free_pages
            alone = server.chat(LONG, max_tokens=TOKENS)["choices"][0]["message"]["content"]
            neighbour = Reader(server, pool, LONG, max_tokens=TOKENS)
            assert neighbour.begun.wait(20)
            over = threading.Event()
            watching = pool.submit(most_waiting, observer, over)
            try:
                answers = asyncio.run(burst(server.url))
            finally:
                over.set()
            assert neighbour.text() == alone
            slots = manifest.read(core).geometry.concurrency
            assert 0 < watching.result(20) <= QUEUE + slots, "free slots do not count as queue"
            codes = Counter(answer.status_code for answer in answers)
            assert codes[200] + codes[429] == BURST, codes
            assert codes[429] > 0
            assert codes[200] >= QUEUE
            for number, answer in enumerate(answers):
                if answer.status_code == 200:
                    assert answer.json()["choices"][0]["message"]["content"] == f"number {number}"
                else:
                    assert int(answer.headers["retry-after"]) >= 1
                    assert answer.json()["error"]["code"] == "overloaded"
            wait_until(lambda: observer.idle(pages), 10, "idle")
