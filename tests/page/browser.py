"""Headless Chromium for the tests of the chat page and for its screenshot: which binary, and how it is started.

`FLARE_CHROMIUM` names another binary. Nothing is downloaded: the machine has one, or there is none.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-proxy-server")
"""Without a sandbox, because as root, as in CI's container, there can be none; only our own server is visited."""


def binary() -> Path | None:
    """The browser, or None where there is none."""
    chosen = os.environ.get("FLARE_CHROMIUM")
    found = chosen or next((path for name in NAMES if (path := shutil.which(name))), None)
    return Path(found) if found else None


@contextmanager
def chromium(path: Path) -> Iterator[Browser]:
    """A running browser. While it runs, this thread's event loop is Playwright's."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()
