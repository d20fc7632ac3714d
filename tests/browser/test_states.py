"""Every state of the page, as somebody sees it: opened, looked at by axe, and without a fault."""

from typing import Any

import pytest
from playwright.async_api import Browser

from tests.browser import figures
from tests.browser.stage import Stage
from tests.browser.window import Window

FINE = figures.snapshot(
    3,
    verdicts=[figures.verdict(), figures.verdict(pool="embed")],
    slos=[figures.slo("ttft_p95", "ok", 0.97, 0.2, "chat", None)],
)
MANY_POOLS = figures.snapshot(
    40, verdicts=[figures.MEMORY | {"pool": f"pool-{number}"} for number in range(30)]
)
SNAPSHOTS = {
    "trouble": figures.snapshot(12),
    "fine": FINE,
    "empty": figures.EMPTY,
    "huge": figures.snapshot(200),
    "many-pools": MANY_POOLS,
}
SIZES: dict[str, dict[str, Any]] = {
    "light": {},
    "small-phone, dark": {
        "viewport": {"width": 320, "height": 568},
        "is_mobile": True,
        "color_scheme": "dark",
    },
}
LIVE = "[data-feed=live]"


@pytest.mark.parametrize("size", SIZES)
async def test_every_state_is_legible(stage: Stage, chromium: Browser, size: str) -> None:
    window = await Window.open(chromium, f"state-{size}", **SIZES[size])
    page = window.page
    await page.goto(stage.url)
    assert "Waiting for the first figures" in await window.text("#verdicts")
    assert await window.axe() == []
    for name, snapshot in SNAPSHOTS.items():
        stage.snapshot = snapshot
        await page.wait_for_selector(LIVE)
        await page.wait_for_timeout(600)
        await window.shoot(name, whole="phone" in size)
        assert await window.axe() == [], name
        too_wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert await page.evaluate(too_wide) == 0, name
    stage.snapshot, stage.parts = SNAPSHOTS["trouble"], figures.PARTS
    await window.until("document.querySelectorAll('#backends tbody tr').length === 12")
    await page.locator("#requests-table tbody tr").first.click()
    await page.wait_for_selector("#request table.parts")
    await window.shoot("request")
    assert await window.axe() == []
    await page.keyboard.press("Escape")
    await page.get_by_role("button", name="Change gpu-4", exact=True).click()
    await window.shoot("change")
    assert await window.axe() == []
    await page.keyboard.press("Escape")
    stage.status = 503
    stage.cut()
    await page.wait_for_selector("[data-feed=lost]")
    await window.shoot("lost")
    assert await window.axe() == []
    stage.status = 401
    await page.reload()
    await page.wait_for_selector("#sign-in:visible")
    await window.shoot("sign-in")
    assert await window.axe() == []
    await window.close()


async def test_at_1280_by_720_all_is_on_one_screen(stage: Stage, window: Window) -> None:
    stage.snapshot = SNAPSHOTS["huge"]
    await window.page.goto(stage.url)
    await window.page.wait_for_selector("#backends tbody tr")
    height = "document.documentElement.scrollHeight"
    assert await window.page.evaluate(height) <= 720
    rows = window.page.locator("#backends tbody tr")
    boxes = [await rows.nth(number).bounding_box() for number in range(4)]
    assert all(box is not None and box["y"] + box["height"] < 720 for box in boxes)


async def test_figures_are_put_into_words(stage: Stage, window: Window) -> None:
    stage.snapshot = SNAPSHOTS["trouble"]
    await window.page.goto(stage.url)
    await window.page.wait_for_selector("#backends tbody tr")
    told = await window.text("#verdicts")
    assert told.index("Memory-bound") < told.index("Cap long answers")
    assert "since " in told
    assert "Nothing is wrong there." in told
    assert "critical" in await window.text("#slos")
    assert "versions: 0 % to chat-next" in await window.text("#canaries")
    assert "worse: errors 2.1 % of 480" in await window.text("#canaries")
    assert "no room in the KV cache" in await window.text("#queue")
    first = await window.page.locator("#backends tbody tr").first.inner_text()
    assert "ejected (unreachable)" in first  # the worst first
    assert "12 × connect" in first
    assert "9 of 12 can serve" in await window.text("#backends-count")


async def test_backends_that_are_not_ready_are_told_though_nothing_waits(
    stage: Stage, window: Window
) -> None:
    told = {"detail": "warming", "sentence": "Nothing is queued, but gpu-1 is warming."}
    stage.snapshot = FINE | {"verdicts": [figures.verdict(**told), figures.verdict(pool="embed")]}
    await window.page.goto(stage.url)
    await window.page.get_by_text("but gpu-1 is warming").wait_for()
    assert "Nothing is wrong there." in await window.text("#verdicts")


async def test_a_lost_stream_says_since_when_and_comes_back(stage: Stage, window: Window) -> None:
    stage.snapshot = SNAPSHOTS["fine"]
    await window.page.goto(stage.url)
    await window.page.wait_for_selector(LIVE)
    await window.page.wait_for_selector("#backends tbody tr")
    stage.status = 503
    stage.cut()
    await window.page.wait_for_selector("[data-feed=lost]")
    assert (await window.text("#feed")).startswith("no news since ")
    grey = "getComputedStyle(document.querySelector('main')).filter"
    assert await window.page.evaluate(grey) == "grayscale(1)"
    assert await window.page.locator("#backends tbody tr").count() == 3  # old figures stay
    stage.status = 200
    await window.page.wait_for_selector(LIVE, timeout=20_000)
    assert await window.text("#feed") == "live"


async def test_a_stream_that_is_silent_is_lost(stage: Stage, window: Window) -> None:
    stage.snapshot = SNAPSHOTS["fine"]
    await window.page.goto(stage.url)
    await window.page.wait_for_selector(LIVE)
    stage.snapshot = None
    await window.page.wait_for_selector("[data-feed=lost]", timeout=15_000)


async def test_readers_see_no_way_to_change(stage: Stage, window: Window) -> None:
    stage.access, stage.snapshot = "view", SNAPSHOTS["fine"]
    await window.page.goto(stage.url)
    await window.page.wait_for_selector("#backends tbody tr")
    assert await window.page.locator("#reader").is_visible()
    assert await window.page.locator(".change").first.is_hidden()


async def test_the_picture_of_the_readme(stage: Stage, window: Window) -> None:
    """docs/pictures/page.png is this one, with fewer colours."""
    stage.past = figures.past(600)
    await window.page.goto(stage.url)
    stage.snapshot = figures.snapshot(12, at=figures.AT_S + 600, verdicts=[figures.MEMORY])
    await window.page.wait_for_selector("#backends tbody tr")
    await window.page.wait_for_timeout(800)
    await window.shoot()
