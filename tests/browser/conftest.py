"""A real browser before the page: one with made-up figures, or one of a running process."""

import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, async_playwright

from tests.browser.stage import Stage
from tests.browser.window import Window
from tests.e2e.conftest import serve, simulate

__all__ = ["serve", "simulate"]  # fixtures

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium")
# Chromium's own sandbox needs rights that a container has not. It opens our page only.
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
# Playwright's own choice is to hide scroll bars. People have them, and they take room.
LEFT_OUT = ["--hide-scrollbars"]


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    stage = Stage()
    await stage.start()
    yield stage
    await stage.stop()


@pytest.fixture
async def chromium() -> AsyncIterator[Browser]:
    assert CHROMIUM, "there is no chromium: install Debian's package, or set CHROMIUM"
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM, args=FLAGS, ignore_default_args=LEFT_OUT
        )
        yield browser
        await browser.close()


@pytest.fixture
async def window(chromium: Browser, request: pytest.FixtureRequest) -> AsyncIterator[Window]:
    """A window of 1280x720. When the test is over, the page must have had no fault."""
    window = await Window.open(chromium, request.node.name)
    yield window
    await window.close()


@pytest.fixture
def tools() -> Path:
    """Where `make test-browser` installs what is no Python package."""
    return Path(os.environ.get("TEST_BROWSER", ".browser")).resolve()
