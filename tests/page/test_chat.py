"""A conversation on the page: text as it streams, what is sent, how it is stopped, and what is told about it."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import httpx
import pytest
from playwright.sync_api import expect

from shared import metrics
from shared.messages.scheduler import Cancel, Submit
from tests.fixtures.harness import Server, wait_until
from tests.frontend.conftest import Deployment
from tests.frontend.scripted_scheduler import Script
from tests.frontend.small_core import END, tokens_of
from tests.page.conftest import Open, Visit, url_of

PLACES = """(table) => [...table.rows].map((row) => [row.offsetTop, row.offsetHeight,
  ...[...row.cells].slice(1).map((cell) => Math.round(cell.getBoundingClientRect().right))])"""
SLOW = Script(tuple(b"slow answer " * 40), pause_s=0.02)


def script(text: str, rounds: tuple[int, ...] = (1,), pause_s: float = 0.0) -> Script:
    return Script((*tokens_of(text), END), rounds, pause_s)


def sent(visit: Visit, text: str) -> dict[str, Any]:
    """The body of the request that a question makes."""
    with visit.page.expect_request("**/v1/chat/completions") as request:
        visit.ask(text)
    visit.page.locator(".answer").last.wait_for()
    visit.wait_answered()
    body: dict[str, Any] = json.loads(request.value.post_data or "")
    return body


def test_text_is_shown_while_the_answer_still_runs(scripted: Deployment, visit: Open) -> None:
    scripted.scheduler.script = Script(tuple(b"Streamed in parts."), (1, 4), hang_after=2)
    seen = visit(url_of(scripted))
    seen.ask("hi")
    expect(seen.answer).to_have_text("Strea")
    expect(seen.page.locator("#stop")).to_be_visible()
    expect(seen.page.locator("#send")).to_be_hidden()
    seen.ask("not while one runs")
    expect(seen.page.locator(".question")).to_have_count(1)
    seen.page.keyboard.press("Escape")
    scripted.scheduler.wait_for(Cancel)


def test_an_answer_tells_its_speed_and_where_it_came_from(scripted: Deployment, visit: Open) -> None:
    scripted.scheduler.script = script("Streamed in parts.", (1, 4), pause_s=0.05)
    seen = visit(url_of(scripted))
    expect(seen.page.locator("#model")).to_have_text("small")
    seen.said("hi")
    assert seen.answer.text_content() == "Streamed in parts."
    assert seen.page.locator(".question .body").text_content() == "hi"
    assert float(seen.page.locator("#rate").inner_text()) > 0
    assert seen.page.locator("#first").inner_text().endswith("s")
    assert int(seen.page.locator("#count").inner_text()) == len("Streamed in parts.") + 1
    copied = "".join(seen.page.locator(".answer .token.prompt").all_text_contents())
    assert copied == "tre" + "med" + "in " + "art" + "."  # all but the last token of a round, the end token too
    assert re.search(r"tokens/s .* [\d.]+ tokens a round", seen.page.locator(".answer footer").inner_text())


def test_the_chart_shows_each_round_and_the_panel_what_was_accepted(scripted: Deployment, visit: Open) -> None:
    scripted.scheduler.script = script("abcdefghijklmno", (1, 4))
    seen = visit(url_of(scripted))
    assert seen.page.locator("#chart rect").count() == 0
    table = seen.page.locator("#legend")
    places = table.evaluate(PLACES)
    seen.said("hi")
    assert table.evaluate(PLACES) == places  # nothing has moved
    assert seen.page.locator("#chart rect.sampled").count() == 5
    assert seen.page.locator("#chart rect.prompt").count() == 4
    assert seen.page.locator("#chart").get_attribute("aria-label") == "16 tokens in 5 rounds"
    expect(seen.page.locator("#accepted")).to_contain_text("11 of 35 drafts accepted (31 %)")
    row = seen.page.get_by_role("row").filter(has_text="Copied from the chat")
    expect(row).to_contain_text("11 of 35")
    assert seen.page.locator("#share .prompt").bounding_box() is not None


def test_every_turn_carries_the_conversation(scripted: Deployment, visit: Open) -> None:
    scripted.scheduler.script = script("first")
    seen = visit(url_of(scripted))
    seen.said("one")
    scripted.scheduler.script = script("second")
    body = sent(seen, "two")
    assert [message["content"] for message in body["messages"]] == ["one", "first", "two"]
    assert body["model"] == "small"
    seen.page.get_by_role("button", name="Regenerate").click()
    seen.wait_answered()
    prompts = [submit.prompt for submit in scripted.scheduler.wait_for(Submit, 3)]
    assert prompts[1] == prompts[2]


def test_clear_forgets_the_conversation(scripted: Deployment, visit: Open) -> None:
    seen = visit(url_of(scripted))
    scripted.scheduler.script = script("gone")
    seen.said("one")
    seen.page.get_by_role("button", name="Clear").click()
    expect(seen.page.locator(".turn")).to_have_count(0)
    assert [message["content"] for message in sent(seen, "two")["messages"]] == ["two"]


def test_clear_while_an_answer_runs_stops_it(scripted: Deployment, visit: Open) -> None:
    seen = visit(url_of(scripted))
    scripted.scheduler.script = SLOW
    seen.ask("one")
    expect(seen.answer).to_contain_text("slow")
    seen.page.get_by_role("button", name="Clear").click()
    scripted.scheduler.wait_for(Cancel)
    scripted.scheduler.script = script("fresh")
    assert seen.said("two") == "fresh"
    expect(seen.page.locator(".turn")).to_have_count(2)


CONTROLS = {
    "Temperature": ("temperature", "0.35", 0.35),
    "Top p": ("top_p", "0.8", 0.8),
    "Top k": ("top_k", "40", 40),
    "Min p": ("min_p", "0.02", 0.02),
    "Most tokens": ("max_tokens", "17", 17),
    "Seed": ("seed", "9007199254740991", 9007199254740991),
}


def test_sampling_controls_reach_the_scheduler_and_are_kept(scripted: Deployment, visit: Open) -> None:
    scripted.scheduler.script = script("ok")
    seen = visit(url_of(scripted))
    assert not sent(seen, "plain").keys() & {field for field, _, _ in CONTROLS.values()}
    seen.page.get_by_text("Sampling", exact=True).click()
    for label, (_, typed, _) in CONTROLS.items():
        seen.page.get_by_label(label).fill(typed)
    seen.page.get_by_label("System prompt").fill("be brief")
    seen.page.get_by_label("Stop strings").fill("END\n\\n\\n")
    seen.page.reload()
    body = sent(seen, "again")
    assert {field: body[field] for field, _, _ in CONTROLS.values()} == {f: value for f, _, value in CONTROLS.values()}
    assert body["stop"] == ["END", "\n\n"]
    assert body["messages"][0] == {"role": "system", "content": "be brief"}
    assert body["messages"][-1] == {"role": "user", "content": "again"}
    submit = scripted.scheduler.of(Submit)[-1]
    assert submit.max_tokens == 17
    assert (submit.sampling.temperature, submit.sampling.top_k, submit.sampling.seed) == (0.35, 40, 9007199254740991)
    seen.page.get_by_text("Sampling", exact=True).click()
    seen.page.get_by_role("button", name="Back to the defaults").click()
    assert not sent(seen, "default").keys() & {field for field, _, _ in CONTROLS.values()}


def test_an_impossible_value_is_named_and_not_sent(scripted: Deployment, visit: Open) -> None:
    seen = visit(url_of(scripted))
    seen.page.get_by_text("Sampling", exact=True).click()
    seen.page.get_by_label("Temperature").fill("7")
    seen.ask("hi")
    expect(seen.page.locator("#settings-fault")).to_contain_text("Temperature")
    assert seen.page.get_by_label("Temperature").get_attribute("aria-invalid") == "true"
    assert seen.question.input_value() == "hi"
    assert not scripted.scheduler.of(Submit)


def test_what_the_model_says_is_text_and_never_markup(scripted: Deployment, visit: Open) -> None:
    wicked = '<img src=x onerror="document.title=1">\n```html\n<script>document.title=2</script>\n```\n<b>&amp;</b>'
    scripted.scheduler.script = script(wicked, (3,))
    seen = visit(url_of(scripted))
    asked = "<i>question</i>"
    assert seen.said(asked) == wicked
    assert seen.page.locator(".question .body").text_content() == asked
    assert seen.page.locator("#transcript").locator("img, script, b, i").count() == 0
    assert seen.page.locator("pre.code").text_content() == "```html\n<script>document.title=2</script>\n```\n"
    assert seen.page.title() == "Flare"


def gauges(server: Server) -> tuple[float, float]:
    """Requests that run in the scheduler, and requests that are open in the frontend."""
    notice = json.loads((server.run_dir / "scheduler.metrics.json").read_bytes())
    found = []
    for url, name in (
        (f"http://{notice['host']}:{notice['port']}/metrics", metrics.REQUESTS_RUNNING),
        (f"{server.url}/metrics", metrics.OPEN_REQUESTS),
    ):
        lines = httpx.get(url, trust_env=False).text.splitlines()
        found += [float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name}{{")]
    running, still_open = found
    return running, still_open


def be_greedy(visit: Visit) -> None:
    """T1 says what its prompt directs at temperature 0."""
    visit.page.get_by_text("Sampling", exact=True).click()
    visit.page.get_by_label("Temperature").fill("0")


@pytest.mark.parametrize("way", ["button", "escape"])
def test_stopping_frees_the_server_and_the_text_stays(server: Server, visit: Open, way: str) -> None:
    seen = visit(server.url)
    be_greedy(seen)
    seen.ask("say:" + "never ending " * 30)
    expect(seen.answer).to_contain_text("never ending")
    assert gauges(server) == (1, 1)
    if way == "button":
        seen.page.get_by_role("button", name="Stop").click()
    else:
        seen.page.keyboard.press("Escape")
    expect(seen.note).to_have_text("Stopped.")
    wait_until(lambda: gauges(server) == (0, 0), 5, "nothing runs")
    kept = seen.answer.text_content() or ""
    assert kept.startswith("never ending")
    assert len(kept) < len("never ending " * 30)
    time.sleep(0.1)
    assert seen.answer.text_content() == kept
    body = sent(seen, "say:ok")
    assert body["messages"][1] == {"role": "assistant", "content": kept}
    assert seen.answer.text_content() == "ok"


def test_tokens_are_marked_as_the_drafter_had_them_accepted(server: Server, visit: Open) -> None:
    said = "QWRYUFGJKZXCVBMQWRYUFGJKZXC"  # nothing in it is a merged token
    seen = visit(server.url)
    be_greedy(seen)
    assert seen.said(f"d1:4/2,7/7,0/0;say:{said}") == said
    # Prefill draws one token, then rounds of two drafts, seven drafts and none, each with a token drawn behind them.
    drawn = ("s" + ("lls" + "lllllll" + "s" + "s") * 3)[: len(said)]
    spans = seen.page.locator(".answer .body span")
    assert spans.all_text_contents() == list(said)
    marks = spans.evaluate_all("all => all.map((span) => span.classList.contains('learned') ? 'l' : 's').join('')")
    assert marks == drawn
    row = seen.page.get_by_role("row").filter(has_text="Learned draft")
    expect(row).to_contain_text(f"{drawn.count('l')} · ")
    assert seen.page.locator("#chart rect.learned").count() == len(re.findall("l+", drawn))


def test_marks_can_be_switched_off(server: Server, visit: Open) -> None:
    seen = visit(server.url)
    be_greedy(seen)
    seen.said("d1:7/7;say:QWRYUFGJKZXC")
    token = seen.page.locator(".answer .token.learned").first
    style = "span => [getComputedStyle(span).textDecorationLine, getComputedStyle(span).backgroundColor]"
    line, ground = token.evaluate(style)
    assert line == "underline"
    seen.page.get_by_label("Mark them in the text").uncheck()
    assert token.evaluate(style) == ["none", "rgba(0, 0, 0, 0)"]
    assert ground != "rgba(0, 0, 0, 0)"
