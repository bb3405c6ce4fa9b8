"""`python -m tests.page.screenshot OUT`: the picture of the chat page in the README, of the demo model's own answer.

It starts `flare run` (or looks at `--url`), asks for something of which much is copied, and waits for the answer. The
width of rounds is fixed, so that the picture does not follow what else the machine is doing.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Literal

import click
from playwright.sync_api import Page

from compose.bench.server import ServerUnderTest
from compose.demo import demo_core
from tests.page.browser import binary, chromium

WAIT_MS = 180_000
QUESTIONS = (
    "Write a Python function that adds up the even numbers of a list.",
    "Write a Python function that adds up the odd numbers of a list.",
)
"""Each in a conversation of its own; the last one is seen. Its answer resembles the first one's: history is copied."""


def _converse(page: Page, url: str, questions: tuple[str, ...]) -> None:
    """Opens the page and has the questions answered, greedily."""
    page.goto(url)
    page.get_by_text("Sampling", exact=True).click()
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Most tokens").fill("150")
    page.get_by_text("Sampling", exact=True).click()
    for question in questions:
        page.get_by_role("button", name="Clear").click()
        page.mouse.move(0, 0)
        page.get_by_label("Your message").fill(question)
        page.get_by_label("Your message").press("Enter")
        page.locator("#stop").wait_for(state="visible")
        page.locator("#send").wait_for(state="visible", timeout=WAIT_MS)


@click.command()
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--url", help="A server that runs already.")
@click.option("--theme", type=click.Choice(["light", "dark"]), default="light", show_default=True)
@click.option("--width", default=1200, show_default=True, help="In CSS pixels.")
@click.option("--height", default=800, show_default=True, help="In CSS pixels.")
@click.option("--question", "questions", multiple=True, default=QUESTIONS)
def main(
    out: Path, url: str | None, theme: Literal["light", "dark"], width: int, height: int, questions: tuple[str, ...]
) -> None:
    """Writes a PNG of the chat page to OUT."""
    path = binary()
    if path is None:
        raise click.ClickException("there is no Chromium here; FLARE_CHROMIUM names one elsewhere")
    with ExitStack() as stack:
        if url is None:
            core = demo_core(None, None)
            url = stack.enter_context(ServerUnderTest(core, "--no-mtp-adaptive-verification")).address.url
        browser = stack.enter_context(chromium(path))
        page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=theme)
        _converse(page, url, questions)
        page.screenshot(path=out)


if __name__ == "__main__":
    main()
