"""The cards above the tables: who waits is seen, and an empty card gives its place away."""

from tests.browser import figures
from tests.browser.stage import Stage
from tests.browser.window import Window

OUTSIDE = """(selector) => [...document.querySelectorAll(selector)].filter((each) => {
  const inside = each.getBoundingClientRect();
  const room = each.closest(".card").getBoundingClientRect();
  return !inside.height || inside.bottom > room.bottom || inside.right > room.right;
}).length"""


async def test_waiting_requests_are_seen_without_scrolling(stage: Stage, window: Window) -> None:
    stage.snapshot = figures.snapshot(4)
    await window.page.goto(stage.url)
    await window.page.wait_for_selector("#tenants:visible")
    assert "research" in await window.text("#tenants")
    assert await window.page.evaluate(OUTSIDE, "#tenants > span") == 0


async def test_tenants_beyond_the_first_are_counted(stage: Stage, window: Window) -> None:
    stage.snapshot = figures.snapshot(4)
    many = [{"name": f"tenant-{number}", "requests": 9 - number} for number in range(9)]
    stage.snapshot["queue"]["tenants"] = many
    await window.page.goto(stage.url)
    await window.page.wait_for_selector("#tenants:visible")
    told = await window.text("#tenants")
    assert "tenant-3" in told
    assert "tenant-4" not in told
    assert "and 5 more" in told
    assert await window.page.evaluate(OUTSIDE, "#tenants > span") == 0


async def test_other_cards_take_the_room_of_absent_service_levels(
    stage: Stage, window: Window
) -> None:
    stage.snapshot = figures.snapshot(4, canaries=[], slos=[])
    await window.page.goto(stage.url)
    await window.page.wait_for_selector("#backends tbody tr")
    assert await window.page.locator("#promises").is_hidden()
    card = await window.page.locator(".cards .card:visible").first.bounding_box()
    last = await window.page.locator(".cards .card:visible").last.bounding_box()
    assert card is not None
    assert last is not None
    assert (card["x"], round(last["x"] + last["width"])) == (14, 1_266)
    assert card["y"] == last["y"]
    await window.shoot()
    stage.snapshot = figures.snapshot(4, slos=[])
    await window.page.wait_for_selector("#promises:visible")
    assert "Canaries" in await window.text("#promises")
