"""The page for everybody: by keyboard alone, light and dark, on a narrow screen, with a screen reader."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.fixtures.harness import wait_until
from tests.frontend.conftest import Deployment
from tests.frontend.scripted_scheduler import SOON_S, Script
from tests.frontend.small_core import END, tokens_of
from tests.page.conftest import Open, Visit, url_of

NARROW = {"width": 360, "height": 640}
TEXT = (
    "A long_unbroken_word_that_is_wider_than_any_telephone_is_and_must_break_somewhere.\n```\n"
    + "x = 1; " * 12
    + "\n```\n"
)
LONG = Script((*tokens_of(TEXT), END), (1, 4))
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
AUDIT = """async (rules) => {
  const { violations } = await axe.run({ runOnly: rules });
  return violations.map((one) => [one.id, one.nodes.map((node) => node.html.slice(0, 120))]);
}"""
REMARK = """(kinds) => kinds.forEach((kind, index) => {
  document.querySelectorAll(".token")[index].className = `token ${kind}`;
})"""
LISTEN = """() => {
  window.heard = [];
  const region = document.getElementById("spoken");
  const listener = new MutationObserver(() => heard.push(region.textContent));
  listener.observe(region, { childList: true, characterData: true, subtree: true });
}"""
MOVING = """() => getComputedStyle(document.querySelector(".waiting .body"), "::after").animationName"""
LUMINANCE = "span => getComputedStyle(span).backgroundColor.match(/[0-9.]+/g).slice(0, 3).reduce((a, b) => a + +b, 0)"


def audit(visit: Visit) -> list[Any]:
    """What axe-core finds wrong, with contrasts of at least AA."""
    source = files("axe_playwright_python").joinpath("axe.min.js").read_text()
    visit.page.evaluate(source + "\n;0")
    found: list[Any] = visit.page.evaluate(
        AUDIT,
        RULES,
    )
    return found


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_in_either_theme(scripted: Deployment, visit: Open, theme: str) -> None:
    scripted.scheduler.script = LONG
    seen = visit(url_of(scripted), color_scheme=theme)
    assert audit(seen) == []
    seen.said("hi")
    seen.page.get_by_text("Sampling", exact=True).click()
    seen.page.get_by_label("Temperature").fill("9")
    expect(seen.page.locator("#settings-fault")).to_be_visible()
    # Every kind of token, though this model has but one.
    seen.page.evaluate(REMARK, ["learned", "history"])
    assert audit(seen) == []


def test_a_chat_needs_no_mouse(scripted: Deployment, visit: Open) -> None:
    scripted.scheduler.script = Script((*tokens_of("typed"), END))
    seen = visit(url_of(scripted))
    keys = seen.page.keyboard
    expect(seen.question).to_be_focused()
    keys.type("first line")
    keys.press("Shift+Enter")
    keys.type("second")
    keys.press("Enter")
    expect(seen.answer).to_have_text("typed")
    seen.wait_answered()
    expect(seen.page.locator(".question .body")).to_have_text("first line\nsecond", use_inner_text=True)
    expect(seen.question).to_be_focused()
    expect(seen.question).to_have_value("")
    keys.press("Enter")
    expect(seen.page.locator(".question")).to_have_count(1)  # nothing is no question
    keys.press("Shift+Tab")
    expect(seen.page.get_by_role("button", name="Regenerate")).to_be_focused()
    outline = seen.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    keys.press("Enter")
    seen.wait_answered()
    expect(seen.page.locator(".answer")).to_have_count(2)


def test_everything_can_be_reached_by_tabulator_in_reading_order(scripted: Deployment, visit: Open) -> None:
    seen = visit(url_of(scripted))
    seen.page.get_by_text("Sampling", exact=True).click()
    seen.page.locator(".skip").focus()
    reached = ["skip"]
    for _ in range(40):
        seen.page.keyboard.press("Tab")
        name = seen.page.evaluate(
            "(e => e.id || e.name || e.className || e.textContent.trim())(document.activeElement)"
        )
        if name in reached:
            break
        reached.append(name)
    order = [
        "skip",
        "clear",
        "theme",
        "transcript",
        "question",
        "send",
        "side",
        "marks",
        "system",
        "temperature",
        "seed",
    ]
    assert [name for name in reached if name in order] == [name for name in order if name in reached]
    assert set(order) - {"side"} <= set(reached)


def test_the_theme_follows_the_system_until_it_is_chosen(scripted: Deployment, visit: Open) -> None:
    seen = visit(url_of(scripted), color_scheme="dark")
    body = seen.page.locator("body")
    button = seen.page.get_by_role("button", name="Dark theme")
    wait_until(lambda: body.evaluate(LUMINANCE) < 150, SOON_S, "a dark page")
    seen.page.emulate_media(color_scheme="light")
    wait_until(lambda: body.evaluate(LUMINANCE) > 600, SOON_S, "a light page")
    expect(button).to_have_attribute("aria-pressed", "false")
    button.click()
    wait_until(lambda: body.evaluate(LUMINANCE) < 150, SOON_S, "a dark page")
    seen.page.reload()
    expect(button).to_have_attribute("aria-pressed", "true")
    wait_until(lambda: body.evaluate(LUMINANCE) < 150, SOON_S, "a dark page")


def test_a_narrow_screen_scrolls_in_one_direction_only(scripted: Deployment, visit: Open) -> None:
    scripted.scheduler.script = LONG
    seen = visit(url_of(scripted), viewport=NARROW, has_touch=True)

    def overflow() -> int:
        found: int = seen.page.evaluate(
            """() => Math.max(...["html", "body", "#transcript", "#side"].map((name) => document.querySelector(name))
            .map((one) => one.scrollWidth - one.clientWidth))"""
        )
        return found

    assert overflow() <= 0
    hint = seen.page.locator("#hint")
    assert hint.evaluate("e => !e.checkVisibility() || e.clientHeight < 2 * parseFloat(getComputedStyle(e).fontSize)")
    seen.said("an_unbroken_question_that_is_wider_than_any_telephone_and_must_break_somewhere_too")
    assert overflow() <= 0
    expect(seen.page.locator("#side")).to_be_hidden()
    seen.page.get_by_role("button", name="Details").click()
    expect(seen.page.locator("#chart")).to_be_visible()
    seen.page.get_by_text("Sampling", exact=True).click()
    assert overflow() <= 0
    assert audit(seen) == []
    seen.page.keyboard.press("Escape")
    expect(seen.page.locator("#side")).to_be_hidden()
    expect(seen.page.locator("#send")).to_be_in_viewport()


def test_a_screen_reader_hears_the_answer_once(scripted: Deployment, visit: Open) -> None:
    scripted.scheduler.script = Script((*tokens_of("Short and done."), END), (4,))
    seen = visit(url_of(scripted))
    spoken = seen.page.locator("#spoken")
    assert spoken.get_attribute("aria-live") == "polite"
    seen.page.evaluate(LISTEN)
    seen.said("hi")
    assert seen.page.evaluate("heard") == ["Answering.", "Short and done. The answer is complete."]
    assert seen.page.locator("#transcript [aria-live]").count() == 0


def test_nothing_moves_for_who_wants_it_still(scripted: Deployment, visit: Open) -> None:
    scripted.scheduler.script = Script(tuple(b"x"), hang_after=0)
    seen = visit(url_of(scripted), reduced_motion="reduce")
    seen.ask("hi")
    expect(seen.page.locator(".waiting")).to_be_visible()
    assert seen.page.evaluate(MOVING) == "none"
    seen.page.emulate_media(reduced_motion="no-preference")
    assert seen.page.evaluate(MOVING) == "wait"
    seen.page.keyboard.press("Escape")
    expect(seen.note).to_have_text("Stopped.")
