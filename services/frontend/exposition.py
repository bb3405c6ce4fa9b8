"""The metrics and the readiness of a frontend, for its API port and for its metrics port. Read in any thread."""

from __future__ import annotations

import time
from collections.abc import Iterable

from prometheus_client.core import Metric

from services.frontend.state import FrontendState
from shared import metrics
from shared.exposition import Exposition, histogram, number, table


def expose(state: FrontendState) -> Exposition:
    """What this frontend shows of itself."""

    def collect() -> Iterable[Metric]:
        meters, link = state.meters, state.link
        yield number(metrics.REFUSED_FRAMES, link.refused)
        yield number(metrics.OPEN_REQUESTS, state.open_requests)
        for name, counter in (
            (metrics.REQUESTS_FINISHED, meters.finished),
            (metrics.REQUESTS_FAILED, meters.failed),
        ):
            samples = [sample for family in counter.collect() for sample in family.samples]
            yield table(name, [(tuple(s.labels.values()), s.value) for s in samples if s.name == f"{name}_total"])
        for name, values in (
            (metrics.TIME_TO_FIRST_TOKEN, link.firsts),
            (metrics.INTER_TOKEN_LATENCY, link.gaps),
            (metrics.TIME_PER_OUTPUT_TOKEN, meters.per_token),
            (metrics.REQUEST_LATENCY, meters.whole),
            (metrics.REQUEST_PROMPT_TOKENS, meters.prompt),
            (metrics.REQUEST_GENERATION_TOKENS, meters.generated),
        ):
            yield histogram(name, ((), values))

    return Exposition(
        collect,
        ready=lambda: state.unready(time.monotonic()) or "",
        model=lambda: state.core.model if state.core is not None else "",
    )
