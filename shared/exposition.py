"""What a service shows of itself: its metrics in Prometheus' text format, whether it is alive, whether it is ready.

Imported by the three services. Numbers are read when somebody asks, in whatever thread asks; nothing is counted here.
Threads that ask at once wait for one rendering, so that many scrapers take no more of the interpreter than one.
Alive means that the main loop turns (`shared/pulse.py`); ready, that the service can do its part. Both are kept apart:
an orchestrator restarts what is not alive, and merely sends nothing to what is not ready.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from shared import metrics
from shared.histogram import Histogram
from shared.pulse import PULSE

ALIVE_S = 10.0
"""A main loop that has not turned for so long is not alive; each of them turns several times a second."""
FRESH_S = 0.5
"""For so long after its making a text serves whoever asks."""
MODEL = "model_name"
_DISTRIBUTION = "flare-server"

Labelled = Iterable[tuple[tuple[str, ...], float]]
"""Label values, in the order of the family's labels, each with its number."""


def number(name: str, value: float) -> Metric:
    """A counter or gauge without labels of its own."""
    return table(name, [((), value)])


def table(name: str, values: Labelled) -> Metric:
    """A counter or gauge with one sample for each combination of labels."""
    declared = metrics.BY_NAME[name]
    kind = CounterMetricFamily if declared.type == "counter" else GaugeMetricFamily
    family = kind(name, declared.meaning, labels=declared.labels)
    for labels, value in values:
        family.add_metric(labels, value)
    return family


def histogram(name: str, *found: tuple[tuple[str, ...], Histogram]) -> Metric:
    """A histogram with one set of buckets for each combination of labels."""
    declared = metrics.BY_NAME[name]
    family = HistogramMetricFamily(name, declared.meaning, labels=declared.labels)
    for labels, values in found:
        family.add_metric(labels, values.cumulative(), values.total)
    return family


def standing(now: float) -> str:
    """Why this process's main loop is not alive; empty if it turns. `now` is of the monotonic clock, in seconds."""
    at = PULSE.at
    if at is None or now - at <= ALIVE_S:
        return ""
    return f"the main loop has stood still for {now - at:.0f} s"


def _turns() -> str:
    return standing(time.monotonic())


@cache
def package_version() -> str:
    """The version of this distribution; "unknown" when it runs from files that nobody installed."""
    try:
        return version(_DISTRIBUTION)
    except PackageNotFoundError:
        return "unknown"


@dataclass(slots=True)
class _Rendering:
    """The last text, until when it is fresh, and who may replace it."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    text: bytes = b""
    until: float = float("-inf")


@dataclass(frozen=True, slots=True)
class Exposition:
    """One service's. `alive` and `ready` say why not, or nothing; `model` is the label, empty while it is unknown."""

    collect: Callable[[], Iterable[Metric]]
    ready: Callable[[], str]
    model: Callable[[], str]
    alive: Callable[[], str] = _turns
    registry: CollectorRegistry = field(default_factory=lambda: CollectorRegistry(auto_describe=False))
    _last: _Rendering = field(default_factory=_Rendering, init=False, compare=False)

    def __post_init__(self) -> None:
        ProcessCollector(registry=self.registry)
        self.registry.register(_Labelling(self))

    def unready(self) -> str:
        """Why `/ready` says 503; what is not alive is not ready either."""
        return self.alive() or self.ready()

    def render(self) -> bytes:
        """All metrics, as text, at most FRESH_S old. Waits while others render; raises what `collect` does."""
        with self._last.lock:
            if time.monotonic() >= self._last.until:
                self._last.text = generate_latest(self.registry)
                self._last.until = time.monotonic() + FRESH_S
            return self._last.text


@dataclass(frozen=True, slots=True)
class _Labelling:
    """Adds the model's name to all samples and leaves out when counters began, which is no metric of ours."""

    exposition: Exposition

    def collect(self) -> Iterable[Metric]:
        exposition, model = self.exposition, self.exposition.model()
        own = (
            table(metrics.BUILD, [((package_version(),), 1)]),
            number(metrics.READY, not exposition.unready()),
        )
        for family in (*own, *exposition.collect()):
            family.samples = [
                sample._replace(labels={MODEL: model, **sample.labels})
                for sample in family.samples
                if not sample.name.endswith("_created")
            ]
            yield family
