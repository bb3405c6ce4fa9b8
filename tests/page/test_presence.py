"""Whether the server is there: the lamp while nothing is asked, a late answer, and another model."""

from __future__ import annotations

import json
import re

from playwright.sync_api import Request, expect

from tests.frontend.conftest import Deployment
from tests.frontend.scripted_scheduler import Script
from tests.frontend.small_core import END, tokens_of
from tests.page.conftest import Open, Visit, url_of

ANSWER = Script((*tokens_of("fine"), END))
HIDE = """(hidden) => {
  Object.defineProperty(document, "hidden", { get: () => hidden, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}"""


def expect_lamp(seen: Visit, state: str, text: str) -> None:
    expect(seen.page.locator("#lamp")).to_have_attribute("data-state", state)
    expect(seen.page.locator("#model")).to_have_text(text)


def test_the_lamp_follows_the_server_though_nothing_is_asked(scripted: Deployment, visit: Open) -> None:
    seen = visit(url_of(scripted), refusals=(503,))
    expect_lamp(seen, "ready", "small")
    scripted.scheduler.tell(False)
    expect_lamp(seen, "waiting", "The server is not ready: no worker.")
    seen.page.route("**/ready", lambda route: route.abort("connectionrefused"))
    expect_lamp(seen, "absent", "The server cannot be reached.")
    seen.page.unroute("**/ready")
    scripted.scheduler.tell(True)
    expect_lamp(seen, "ready", "small")
    seen.faults = [fault for fault in seen.faults if "ERR_CONNECTION_REFUSED" not in fault]


def test_nobody_looks_while_the_page_cannot_be_seen(scripted: Deployment, visit: Open) -> None:
    scripted.scheduler.tell(False)
    seen = visit(url_of(scripted), refusals=(503,))
    expect_lamp(seen, "waiting", "The server is not ready: no worker.")
    looks: list[str] = []

    def note(request: Request) -> None:
        if request.url.endswith("/ready"):
            looks.append(request.url)

    seen.page.evaluate(HIDE, True)
    seen.page.wait_for_timeout(300)  # one may be under way
    seen.page.on("request", note)
    seen.page.wait_for_timeout(1500)
    assert looks == []
    scripted.scheduler.tell(True)
    seen.page.evaluate(HIDE, False)
    expect_lamp(seen, "ready", "small")
    assert looks


def test_an_answer_that_the_server_queues_says_what_it_waits_for(scripted: Deployment, visit: Open) -> None:
    scripted.scheduler.script = ANSWER
    seen = visit(url_of(scripted), refusals=(503,))
    expect_lamp(seen, "ready", "small")
    scripted.scheduler.tell(False)
    seen.ask("hi")  # is taken with status 200, and nothing comes
    expect(seen.note).to_have_text("The server is not ready: no worker. Waiting…")
    scripted.scheduler.tell(True)
    expect(seen.answer).to_have_text("fine")
    expect(seen.note).to_be_hidden()
    expect_lamp(seen, "ready", "small")


def test_another_model_is_learnt_and_asked_without_a_word(scripted: Deployment, visit: Open) -> None:
    scripted.scheduler.script = ANSWER
    former = json.dumps({"data": [{"id": "former"}]})
    seen = visit("about:blank", refusals=(404,))
    seen.url = url_of(scripted)
    seen.page.route("**/v1/models", lambda route: route.fulfill(body=former), times=1)
    seen.page.goto(seen.url)
    expect_lamp(seen, "ready", "former")
    assert seen.said("hi") == "fine"
    expect_lamp(seen, "ready", "small")
    expect(seen.page.locator(".answer")).to_have_count(1)
    expect(seen.page.locator(".answer .who")).to_have_text("small")
    expect(seen.note).to_be_hidden()


def test_an_answer_asked_for_before_the_model_is_known_gets_its_name(scripted: Deployment, visit: Open) -> None:
    scripted.scheduler.script = ANSWER
    seen = visit("about:blank", refusals=(404,))
    seen.url = url_of(scripted)
    seen.page.route(re.compile("/(ready|v1/models)$"), lambda route: route.fulfill(status=404, body="{}"))
    seen.page.goto(seen.url)
    seen.said("hi")
    expect(seen.page.locator(".answer .who")).to_have_text("small")
