"""Scrapes of a server's three services, found by what each writes into the run directory."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass

import httpx
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from shared.exposition import FRESH_S
from shared.metrics_address import notice
from tests.fixtures.harness import SERVICES, Server


@dataclass(frozen=True)
class Scrape:
    """One answer of `/metrics`, by family."""

    families: dict[str, Metric]

    def total(self, name: str, **labels: str) -> float:
        """The sum of a counter's or gauge's samples with these labels, or of a histogram's counts."""
        family = self.families[name]
        wanted = name + {"counter": "_total", "gauge": "", "histogram": "_count"}[family.type]
        return sum(
            sample.value
            for sample in family.samples
            if sample.name == wanted and labels.items() <= sample.labels.items()
        )

    def samples(self) -> set[str]:
        """The names of all samples."""
        return {sample.name for family in self.families.values() for sample in family.samples}


def url(server: Server, service: str) -> str:
    """Where a service's metrics are. Raises `OSError` while it serves none."""
    at = json.loads(notice(server.run_dir, service).read_bytes())
    return f"http://{at['host']}:{at['port']}"


def ask(server: Server, service: str, path: str, timeout: float = 1.0) -> tuple[int, str]:
    """Status and reason of `/health` or `/ready`; 0 when nobody answers."""
    try:
        answer = httpx.get(url(server, service) + path, timeout=timeout, trust_env=False)
    except (OSError, ValueError, httpx.HTTPError):
        return 0, ""
    return answer.status_code, str(answer.json().get("reason", ""))


_scraped: dict[str, float] = {}
"""When each address was last scraped."""


def scrape(server: Server, service: str) -> Scrape:
    """What a service counts now: waits until it renders anew. It is assumed that nobody else scrapes."""
    address = url(server, service)
    time.sleep(max(_scraped.get(address, 0.0) + FRESH_S - time.monotonic(), 0.0))
    answer = httpx.get(address + "/metrics", timeout=10, trust_env=False)
    _scraped[address] = time.monotonic()
    return Scrape({family.name: family for family in text_string_to_metric_families(answer.text)})


def scrape_all(server: Server) -> dict[str, Scrape]:
    return {service: scrape(server, service) for service in SERVICES}
