"""A browser, two servers, and visits that tolerate no surprise: every one of them ends by looking for errors.

Package scope, so that Playwright's event loop is gone before other tests need one of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, Request, expect

from tests.fixtures.harness import Server
from tests.fixtures.scripted.recipe import make_core
from tests.frontend.conftest import Deployment, deploy
from tests.frontend.scripted_scheduler import Script
from tests.frontend.small_core import write_core
from tests.page.browser import binary, chromium

Core = tuple[Path, str]
PATIENCE_MS = 15_000
"""For a busy machine; nothing here measures time."""
expect.set_options(timeout=PATIENCE_MS)
_REFUSED = "Failed to load resource: the server responded with a status of "


@dataclass
class Visit:
    """One page in a browser of its own. `refusals` are HTTP statuses that this visit provokes."""

    page: Page
    url: str
    refusals: set[int] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)

    def watch(self) -> None:
        """Notes what must not happen."""
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        self.page.on("request", self._request)

    def _console(self, message: ConsoleMessage) -> None:
        text = message.text
        expected = text.startswith(_REFUSED) and int(text.removeprefix(_REFUSED)[:3]) in self.refusals
        if message.type in ("error", "warning") and not expected:
            self.faults.append(f"console: {text}")

    def _request(self, request: Request) -> None:
        if urlsplit(request.url)[:2] != urlsplit(self.url)[:2]:
            self.faults.append(f"a request elsewhere: {request.url}")

    @property
    def question(self) -> Locator:
        """Where one asks."""
        return self.page.get_by_label("Your message")

    @property
    def answer(self) -> Locator:
        """The newest answer's text."""
        return self.page.locator(".answer .body").last

    @property
    def note(self) -> Locator:
        """What is said under the newest answer."""
        return self.page.locator(".answer .note").last

    def ask(self, text: str) -> None:
        """Asks by keyboard."""
        self.question.fill(text)
        self.question.press("Enter")

    def wait_answered(self) -> None:
        """Waits until no answer is running."""
        self.page.locator("article[aria-busy]").wait_for(state="detached")
        self.page.locator("#send").wait_for(state="visible")

    def said(self, text: str) -> str:
        """Asks and returns the whole answer."""
        self.ask(text)
        self.page.locator(".answer").last.wait_for()
        self.wait_answered()
        return self.answer.text_content() or ""


Open = Callable[..., Visit]


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Chromium, headless; without one these tests are skipped."""
    path = binary()
    if path is None:
        pytest.skip("there is no Chromium here (Debian: apt-get install chromium; FLARE_CHROMIUM names one elsewhere)")
    with chromium(path) as running:
        yield running


@pytest.fixture
def visit(browser: Browser) -> Iterator[Open]:
    """Opens the page of a server; keyword arguments are those of a browser context."""
    opened: list[Visit] = []

    def open_page(url: str, refusals: tuple[int, ...] = (), **context: Any) -> Visit:
        page = browser.new_context(**context).new_page()
        page.set_default_timeout(PATIENCE_MS)
        opened.append(Visit(page, url, set(refusals)))
        opened[-1].watch()
        page.goto(url)
        return opened[-1]

    yield open_page
    for seen in opened:
        seen.page.context.close()
    assert not [fault for seen in opened for fault in seen.faults]


@pytest.fixture(scope="package")
def small_core(tmp_path_factory: pytest.TempPathFactory) -> Core:
    """The core of the frontend's tests, whose scheduler is a script."""
    folder = tmp_path_factory.mktemp("core")
    return folder, write_core(folder)


@pytest.fixture(scope="package")
def deployment(small_core: Core, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A frontend whose scheduler says what a test tells it to."""
    with deploy(small_core, tmp_path_factory.mktemp("run")) as running:
        yield running


@pytest.fixture
def scripted(deployment: Deployment) -> Iterator[Deployment]:
    """The same, with a fresh record and a fresh script."""
    deployment.scheduler.received.clear()
    deployment.scheduler.script = Script(tokens=tuple(b"hello"))
    yield deployment
    deployment.scheduler.tell(True)


def url_of(deployment: Deployment) -> str:
    """Where its page is."""
    return str(deployment.chat.client.base_url).rstrip("/") + "/"


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A whole server of T1, whose drafts D1 offers as the prompt directs; nothing is copied."""
    arguments = ("--no-mtp-adaptive-verification", "--no-history-drafts", "--no-prompt-drafts")
    core = make_core(tmp_path_factory.mktemp("scripted"))
    with Server(core, arguments, environment={"T1_FORWARD_SECONDS": "0.02"}) as running:
        running.wait_ready()
        yield running
