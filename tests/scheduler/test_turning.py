"""A scheduler turns without sleep beside short rounds of a card: it makes log lines then, and still hears frontends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from services.scheduler.frontend_side import FrontendSide
from services.scheduler.loop import HEARD
from shared import logs
from tests.scheduler.conftest import Serve
from tests.scheduler.cores import manifest, mixing

PROMPT = list(range(20, 60))


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_lines_are_made_while_it_turns_which_it_does_beside_a_card_alone(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    idled: list[None] = []
    monkeypatch.setattr(logs, "idle", lambda: idled.append(None))
    served = serve(manifest())
    served.worker(mixing, round_s=0.002, device=device)
    frontend = served.frontend()
    frontend.submit("a", PROMPT, 40)
    frontend.wait_over("a")
    assert len(frontend.output["a"]) == 40
    assert bool(idled) == (device == "cuda")


def test_each_request_that_was_told_of_may_answer_before_the_device_has_its_turn(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a stop string each answers by a message of its own."""
    told: list[int] = []
    receive = FrontendSide.receive

    def noted(side: FrontendSide, now: float, least: int, hurried: Callable[[], bool]) -> Any:
        told.append(least - HEARD)
        return receive(side, now, least, hurried)

    monkeypatch.setattr(FrontendSide, "receive", noted)
    served = serve(manifest())
    worker = served.worker(mixing)
    worker.hold.set()
    frontend = served.frontend()
    for name in "abc":
        frontend.submit(name, PROMPT, 20)
    frontend.wait(lambda: len(served.roster.requests) == 3)
    worker.hold.clear()
    frontend.wait_over(*"abc")
    assert min(told) == 0
    assert max(told) >= 3, "a round of all three is one message"
