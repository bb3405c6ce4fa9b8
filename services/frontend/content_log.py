"""The text of prompts and answers in the log. Called only when the operator asked for it by `--log-content`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import structlog

from services.frontend.core import Core
from services.frontend.flight import Flight

log = structlog.get_logger()


def tell_prompts(core: Core, request: str, prompts: Iterable[Sequence[int]]) -> None:
    """The text of a request's prompts, as the model gets it. Blocking; from a worker thread."""
    for prompt in prompts:
        log.info("request.prompt", request=request, text=core.tokenization.decode(prompt))


def tell_output(flights: Iterable[Flight]) -> None:
    """The text of a request's choices, as its client got it."""
    for flight in flights:
        log.info("request.output", request=flight.request, text="".join(flight.transcript or ()))
