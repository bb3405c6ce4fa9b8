"""One look at a service over HTTP: whether it is ready, and the numbers it shows at `/metrics`. For `flare status`."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass, field
from urllib.parse import urlsplit

TIMEOUT_S = 2.0
Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Scrape:
    """`down` says why there is nothing, `reason` why the service is not ready; both are empty if all is well.

    A service that nobody could look at, because it is not known where, is `unknown`.
    """

    samples: dict[tuple[str, Labels], float] = field(default_factory=dict)
    down: str = ""
    reason: str = ""
    unknown: bool = False

    def total(self, name: str, **labels: str) -> float | None:
        """The sum of a metric's samples with these labels, or None if there is none."""
        wanted = set(labels.items())
        found = [value for (sample, own), value in self.samples.items() if sample == name and wanted <= set(own)]
        return sum(found) if found else None

    def values_of(self, name: str, label: str) -> list[str]:
        """The values that a label of a metric has, in order."""
        found = {dict(own).get(label, "") for sample, own in self.samples if sample == name}
        return sorted(found - {""})


def _get(url: str, path: str) -> tuple[int, bytes]:
    """Raises `OSError` or `http.client.HTTPException`."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", parts.path.rstrip("/") + path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def _parsed(text: str) -> dict[tuple[str, Labels], float]:
    from prometheus_client.parser import text_string_to_metric_families

    return {
        (sample.name, tuple(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def _reason(status: int, body: bytes) -> str:
    if status == 200:
        return ""
    try:
        return str(json.loads(body)["reason"])
    except (ValueError, KeyError, TypeError):
        return f"/ready says {status}"


def scrape(url: str) -> Scrape:
    """Looks at the service at a base URL. Blocking, a few seconds at most; what goes wrong is in the result."""
    try:
        ready = _get(url, "/ready")
        status, text = _get(url, "/metrics")
        if status != 200:
            return Scrape(down=f"/metrics says {status}", reason=_reason(*ready))
        return Scrape(_parsed(text.decode()), reason=_reason(*ready))
    except (OSError, http.client.HTTPException, ValueError) as error:
        return Scrape(down=f"no answer: {getattr(error, 'strerror', None) or error or type(error).__name__}")
