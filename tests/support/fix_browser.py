"""Chromium, driven by Playwright: a page that reports everything that a page must not do.

The Chromium is the system's: nothing is downloaded. Where there is none the tests are skipped.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import pytest

from tests.support.fix_node import packages
from tests.support.patience import PATIENCE_SECONDS

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, Request

NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS: Final = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-proxy-server"]
WATCHING: Final = """
    window.violations = [];
    document.addEventListener("securitypolicyviolation", (event) =>
      window.violations.push(`${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}:${event.lineNumber}`));
    window.visits = sessionStorage.visits = Number(sessionStorage.visits ?? 0) + 1;
"""


@dataclass(slots=True)
class Misdeeds:
    """The forbidden actions of a page."""

    host: str
    errors: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    allowed: tuple[str, ...] = ()

    def of(self, page: Page) -> None:
        """Notes what this page does from now on."""
        page.on("console", lambda message: self._said(message))  # noqa: PLW0108  Playwright marks what it calls
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self._asked(request))  # noqa: PLW0108

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"} and not any(text in message.text for text in self.allowed):
            self.errors.append(f"{message.text} {message.location.get('url', '')}")

    def _asked(self, request: Request) -> None:
        url = urlsplit(request.url)
        if url.netloc != self.host and url.scheme not in {"blob", "data"}:
            self.others.append(request.url)


@dataclass(slots=True)
class Viewer:
    """A person at the console of the gateway at `url`."""

    browser: Browser
    url: str
    misdeeds: Misdeeds
    contexts: list[BrowserContext] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)

    async def opens(self, page_name: str = "", **options: Any) -> Page:
        """A new window at a page of the console, such as "tasks?state=RUNNING"."""
        context = await self.browser.new_context(
            viewport={"width": 1360, "height": 860}, locale="en-US", **self.options, **options
        )
        self.contexts.append(context)
        context.set_default_timeout(PATIENCE_SECONDS * 1000)
        await context.add_init_script(WATCHING)
        page = await context.new_page()
        self.misdeeds.of(page)
        await page.goto(f"{self.url}/console/#/{page_name}")
        return page

    async def check(self) -> None:
        """No script failed, no other host was asked, no policy was violated."""
        violations = [
            violation
            for context in self.contexts
            for page in context.pages
            for violation in await page.evaluate("window.violations")
        ]
        assert (self.misdeeds.errors, self.misdeeds.others, violations) == ([], [], [])


def chromium() -> Path:
    """The system's Chromium. Skips the test where there is none."""
    found = next((path for path in map(shutil.which, NAMES) if path), None)
    if found is None:
        pytest.skip("no Chromium is installed, so the console is not tested; `apt-get install chromium` installs it")
    return Path(found)


@asynccontextmanager
async def viewer_of(url: str) -> AsyncIterator[Viewer]:
    """A person who looks at the console of this gateway, and who is checked at the end."""
    executable = chromium()
    playwright = pytest.importorskip("playwright.async_api", reason="Playwright is not installed: run `make setup`")
    async with playwright.async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=executable, args=ARGUMENTS)
        viewer = Viewer(browser, url, Misdeeds(urlsplit(url).netloc))
        try:
            yield viewer
            await viewer.check()
        finally:
            await browser.close()


@pytest.fixture(scope="session")
def axe_core() -> str:
    """The source of axe-core, which examines pages for people who see, hear or move otherwise."""
    return (packages() / "axe-core" / "axe.min.js").read_text()
