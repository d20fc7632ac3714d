"""A window of a browser that notes each fault of the page in it."""

import asyncio
import os
import re
from pathlib import Path
from typing import Any

import orjson
from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page

# Notes what the content security policy has kept from the page.
_WATCH = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) =>
  window.violations.push(`${event.violatedDirective} ${event.blockedURI}`));
"""
# A browser logs each answer of 401 or 503 and each broken stream. The page cannot help that.
_OF_THE_NETWORK = re.compile("Failed to load resource")
WITHIN_S = 15.0
_AXE_TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


class Window:
    """`page` is Playwright's."""

    def __init__(self, context: BrowserContext, page: Page, name: str) -> None:
        self._context = context
        self._name = re.sub(r"\W+", "-", name)
        self.page = page
        self.faults: list[str] = []
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.faults.append(str(error)))

    @staticmethod
    async def open(browser: Browser, name: str, **options: Any) -> "Window":
        options = {"viewport": {"width": 1280, "height": 720}} | options
        context = await browser.new_context(**options)
        await context.add_init_script(_WATCH)
        return Window(context, await context.new_page(), name)

    async def close(self) -> None:
        self.faults += await self.page.evaluate("window.violations ?? []")
        await self._context.close()
        assert not self.faults

    async def shoot(self, name: str = "", *, whole: bool = False) -> Path:
        """A picture for people, below the folder of the tools."""
        folder = Path(os.environ.get("TEST_BROWSER", ".browser"), "shots")
        path = folder / f"{'-'.join(filter(None, (self._name, name)))}.png"
        await self.page.screenshot(path=path, full_page=whole)
        return path

    async def axe(self) -> list[str]:
        """What an accessibility checker finds."""
        folder = Path(os.environ.get("TEST_BROWSER", ".browser"))
        await self.page.evaluate((folder / "node_modules/axe-core/axe.min.js").read_text())
        found = await self.page.evaluate(
            "(tags) => axe.run(document, {runOnly: {type: 'tag', values: tags}})", _AXE_TAGS
        )
        return [
            f"{each['id']}: {node['target']} {node['failureSummary']}"
            for each in orjson.loads(orjson.dumps(found["violations"]))
            for node in each["nodes"]
        ]

    async def until(self, holds: str) -> None:
        """Wait for an expression. Playwright's own way breaks the policy of the page."""
        async with asyncio.timeout(WITHIN_S):
            while not await self.page.evaluate(holds):
                await asyncio.sleep(0.05)

    async def text(self, selector: str) -> str:
        return str(await self.page.locator(selector).inner_text()).strip()

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not _OF_THE_NETWORK.search(message.text):
            self.faults.append(message.text)
