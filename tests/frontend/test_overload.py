"""The frontend's own bound on open requests: 429 beyond it, and room again as soon as somebody is gone."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from services.frontend import state
from shared.messages.scheduler import Submit
from tests.frontend.conftest import Deployment
from tests.frontend.scripted_scheduler import SOON_S, Script
from tests.frontend.small_core import END

BOUND = 3


def test_requests_beyond_the_bound_are_told_to_come_again(served: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "MAXIMUM_REQUESTS", BOUND)
    served.scheduler.script = Script(tuple(b"x"), hang_after=0)
    with ThreadPoolExecutor(BOUND) as pool:
        held = [pool.submit(served.chat.post) for _ in range(BOUND)]
        submits = served.scheduler.wait_for(Submit, BOUND)
        refused = served.chat.post()
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "overloaded"
        assert int(refused.headers["retry-after"]) >= 1
        assert len(served.scheduler.of(Submit)) == BOUND, "the scheduler never hears of it"
        for submit in submits:
            served.scheduler.fail(submit.request, "round_failed")
        assert [future.result(SOON_S).status_code for future in held] == [500] * BOUND
    served.scheduler.script = Script((*b"on", END))
    deadline = time.monotonic() + SOON_S
    while (answer := served.chat.post()).status_code == 429 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert answer.json()["choices"][0]["message"]["content"] == "on"
