"""A conversation over time: kept across reloads, what is not sent again, and what is offered when it cannot go on."""

from __future__ import annotations

import json
from typing import Any

import pytest
from playwright.sync_api import expect

from shared.errors import ContextOverflow, InvalidRequest, StateLost
from shared.messages.scheduler import Submit
from tests.frontend.conftest import Deployment
from tests.frontend.scripted_scheduler import Script
from tests.frontend.small_core import END, tokens_of
from tests.page.conftest import Open, Visit, url_of

ANSWER = Script((*tokens_of("fine"), END))
NARROW = {"width": 360, "height": 640}
FILL = """async (count) => {
  const { keep, recall } = await import("/page/memory.js");
  const view = { pieces: [["y".repeat(20_000), "sampled"]] };
  const messages = [...Array(count).keys()].flatMap((n) => [
    { role: "user", content: `${n}` }, { role: "assistant", content: "y".repeat(20_000), view }]);
  keep(messages, false);
  const found = recall();
  return [found.messages.length, found.messages[0].content, found.messages.at(-2).content, found.cut];
}"""


def contents(visit: Visit, text: str) -> list[Any]:
    """What the conversation is to the server when this is asked."""
    with visit.page.expect_request("**/v1/chat/completions") as request:
        visit.said(text)
    return [message["content"] for message in json.loads(request.value.post_data or "")["messages"]]


def expect_aligned(visit: Visit) -> None:
    """The text of what is offered begins where the answer's heading begins."""
    button = visit.page.locator(".answer footer button").evaluate(
        "e => e.getBoundingClientRect().left + e.clientLeft + parseFloat(getComputedStyle(e).paddingLeft)"
    )
    heading = visit.page.locator(".answer .who").evaluate("e => e.getBoundingClientRect().left")
    assert button == pytest.approx(heading, abs=3)


def test_a_reload_keeps_the_conversation_and_clear_forgets_it(scripted: Deployment, visit: Open) -> None:
    scripted.scheduler.script = Script((*tokens_of("some **bold** text"), END), (1, 4))
    seen = visit(url_of(scripted))
    seen.said("one")
    shown = seen.page.locator(".turn").all_inner_texts()
    marked = seen.page.locator(".answer .token.prompt").all_text_contents()
    seen.page.reload()
    expect(seen.page.locator(".turn")).to_have_count(2)
    assert seen.page.locator(".turn").all_inner_texts() == shown
    assert "".join(seen.page.locator(".answer .token.prompt").all_text_contents()) == "".join(marked)
    assert contents(seen, "two") == ["one", "some **bold** text", "two"]
    seen.page.get_by_role("button", name="Clear", exact=True).click()
    seen.page.reload()
    expect(seen.page.locator(".turn")).to_have_count(0)
    assert contents(seen, "three") == ["three"]


def test_a_reload_keeps_what_there_was_of_a_running_answer(scripted: Deployment, visit: Open) -> None:
    scripted.scheduler.script = Script(tuple(b"half an answer"), (7,), hang_after=1)
    seen = visit(url_of(scripted))
    seen.ask("hi")
    expect(seen.answer).to_have_text("half an")
    seen.page.reload()
    expect(seen.answer).to_have_text("half an")
    expect(seen.note).to_have_text("The page was left before it ended.")
    scripted.scheduler.script = ANSWER
    seen.page.get_by_role("button", name="Regenerate").click()
    expect(seen.answer).to_have_text("fine")


def test_what_is_kept_is_bounded_and_begins_with_a_question(scripted: Deployment, visit: Open) -> None:
    seen = visit(url_of(scripted))
    length, first, last, cut = seen.page.evaluate(FILL, 30)
    assert 2 < length < 60
    assert (length % 2, int(first), int(last), cut) == (0, 30 - length // 2, 29, True)
    assert seen.page.evaluate("sessionStorage['flare.conversation'].length") <= 400_000
    # What nobody could have kept is no conversation.
    seen.page.evaluate('sessionStorage[\'flare.conversation\'] = \'{"messages": [{"role": "user"}]}\'')
    seen.page.reload()
    expect(seen.page.locator("#model")).to_have_text("small")
    expect(seen.page.locator(".turn")).to_have_count(0)


def test_a_question_without_an_answer_says_that_it_is_not_sent_again(scripted: Deployment, visit: Open) -> None:
    scripted.scheduler.script = Script(tuple(b"x"), hang_after=0)
    seen = visit(url_of(scripted))
    seen.ask("never mind")
    expect(seen.page.locator("#stop")).to_be_visible()
    seen.page.keyboard.press("Escape")
    expect(seen.note).to_have_text("Stopped.")
    seen.page.reload()
    expect(seen.note).to_have_text("Not answered yet.")
    expect(seen.page.get_by_role("button", name="Try again")).to_be_visible()
    scripted.scheduler.script = ANSWER
    assert contents(seen, "hi") == ["hi"]
    first = seen.page.locator(".question").first
    expect(first).to_contain_text("Not answered, not sent again")
    assert first.locator(".body").evaluate("e => getComputedStyle(e).textDecorationLine") == "none"


@pytest.mark.parametrize(
    ("code", "param", "said", "offered"),
    [
        (StateLost.code, None, "The worker restarted while it was answering. Try again.", "Try again"),
        (ContextOverflow.code, "messages", "longer than the model can read", "Clear the conversation"),
        (InvalidRequest.code, "top_k", "does not accept one of the sampling values", "Show the setting"),
    ],
)
def test_a_fault_is_told_in_a_sentence_with_what_can_help(
    scripted: Deployment, visit: Open, code: str, param: str | None, said: str, offered: str
) -> None:
    scripted.scheduler.script = Script((), failure=(code, "as the script says"), param=param)
    if code == StateLost.code:
        scripted.scheduler.script = Script(tuple(b"begun"), (2,), hang_after=1)
    seen = visit(url_of(scripted), refusals=(400,), viewport=NARROW)
    seen.ask("hi")
    if code == StateLost.code:
        expect(seen.answer).to_have_text("be")
        scripted.scheduler.fail(scripted.scheduler.of(Submit)[-1].request, code)
    expect(seen.note).to_contain_text(said)
    expect(seen.page.locator(".answer .detail p")).to_contain_text("as t")
    offers = seen.page.locator(".answer footer .again")
    expect(offers).to_have_text([offered])
    if code != StateLost.code:  # no figures, no text to copy: it stands alone, at the left edge
        expect_aligned(seen)
    offers.click()
    if offered == "Show the setting":
        expect(seen.page.get_by_label("Top k")).to_be_focused()
    elif offered == "Clear the conversation":
        expect(seen.page.locator(".turn")).to_have_count(0)
    else:
        expect(seen.page.locator(".answer")).to_have_count(2)


@pytest.mark.parametrize("narrow", [False, True], ids=["wide", "narrow"])
def test_an_impossible_value_leads_to_its_control(scripted: Deployment, visit: Open, narrow: bool) -> None:
    scripted.scheduler.script = ANSWER
    seen = visit(url_of(scripted), **({"viewport": NARROW} if narrow else {}))
    field = seen.page.get_by_label("Top p")
    seen.page.evaluate("document.querySelector('[name=top_p]').value = '7'")  # typed a while ago, out of sight
    seen.ask("hi")
    expect(field).to_be_focused()
    expect(field).to_be_in_viewport()
    assert field.get_attribute("aria-invalid") == "true"
    alert = seen.page.locator("#composer-fault")
    expect(alert).to_contain_text("Top p")
    expect(alert).to_have_attribute("role", "alert")
    expect(seen.page.locator("#settings-fault")).to_be_visible()
    assert seen.question.input_value() == "hi"
    assert not scripted.scheduler.of(Submit)
    field.fill("0.7")
    expect(seen.page.locator("#settings-fault")).to_be_hidden()
    if narrow:
        seen.page.keyboard.press("Escape")
    expect(alert).to_be_hidden()
    seen.question.press("Enter")
    expect(seen.answer).to_have_text("fine")


def test_an_impossible_value_is_not_restored(scripted: Deployment, visit: Open) -> None:
    scripted.scheduler.script = ANSWER
    seen = visit(url_of(scripted))
    seen.page.evaluate("localStorage['flare.sampling'] = JSON.stringify({ temperature: '9', top_k: '5' })")
    seen.page.reload()
    assert seen.said("hi") == "fine"
    assert scripted.scheduler.of(Submit)[-1].sampling.top_k == 5
