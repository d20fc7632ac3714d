"""Nothing that an operator reads is cut on a small screen."""

from typing import Any

import pytest
from playwright.async_api import Browser

from tests.browser import figures
from tests.browser.stage import Stage
from tests.browser.window import Window

# As long as usual figures become.
LONG_BACKEND: dict[str, Any] = {
    "slower": 25.3,
    "slower_in": "prefill",
    "queued_prefill_tokens": 12_345,
    "active_decode_tokens": 123_456,
    "engine": {"running": 256, "waiting": 128, "kv_usage": 1.0, "prefix_hit_rate": 1.0},
    "lately": figures.lately(
        ttft_p95_s=119.9, failures=84, last_failure={"reason": "idle", "age_s": 3.0}
    ),
}
LONG_REQUEST: dict[str, Any] = {"status": 200, "error": "stream_broken", "failed": True}
LONG_REQUEST |= {"ago_s": 3_599.0, "ttft_ms": 119_900.0, "duration_ms": 599_000.0}
MODEL = "llama-3.3-70b-instruct-x"  # 24 characters
# The cells of both tables that are cut, and tables wider than their room.
CUT = """(names) => {
  const cells = [...document.querySelectorAll(".lists th, .lists td")]
    .filter((each) => !each.matches(names) && each.scrollWidth > each.clientWidth)
    .map((each) => `${each.className}: ${each.innerText}`);
  const tables = [...document.querySelectorAll(".lists .scrolls")]
    .filter((each) => each.scrollWidth > each.clientWidth)
    .map((each) => `${each.firstElementChild.id} has ${each.scrollWidth} in ${each.clientWidth}`);
  return [...cells, ...tables];
}"""
NAMES = ".of-what, .of-whose, [data-pools] .of-backend"


def long_figures(pools: int = 1, **request: Any) -> dict[str, Any]:
    told = figures.snapshot(12)
    for backend in told["backends"]:
        backend["pool"] = "embed" if pools > 1 and backend["name"] == "gpu-6" else "chat"
    told["backends"][4] |= LONG_BACKEND
    told["requests"]["slow"][0] |= LONG_REQUEST
    told["requests"]["slow"][1] |= {"ttft_ms": 9.31, "duration_ms": 99.0}
    told["requests"]["failed"][0] |= {"status": 429, "error": "overloaded"}
    told["requests"]["failed"][1] |= {"status": 400, "error": "context_length_exceeded"}
    told["requests"]["failed"][2] |= {"ago_s": 3_599.0}
    for each in [*told["requests"]["slow"], *told["requests"]["failed"]]:
        each |= {"model": MODEL} | request
    return told


SNAPSHOTS = {
    "tenants": long_figures(tenant="research"),
    "no-tenants": long_figures(tenant=None),
    "no-errors": figures.snapshot(12),
    "pools": long_figures(2, tenant="research"),
}


@pytest.mark.parametrize("width", [320, 390, 1270, 1280])
async def test_no_figure_is_cut(stage: Stage, chromium: Browser, width: int) -> None:
    phone = width < 720
    options: dict[str, Any] = {"viewport": {"width": width, "height": 720}, "is_mobile": phone}
    window = await Window.open(chromium, f"room-{width}", **options)
    names = f"{NAMES}, .of-state, .of-status" if phone else NAMES
    await window.page.goto(stage.url)
    cut = {}
    for name, told in SNAPSHOTS.items():
        stage.snapshot = told | {"verdicts": [figures.MEMORY | {"sentence": f"These are {name}."}]}
        await window.page.get_by_text(f"These are {name}.").wait_for()
        for kind in ("slow", "failed"):
            await window.page.locator(f"button[data-list={kind}]").click()
            await window.shoot(f"{name}-{kind}")
            cut[name, kind] = await window.page.evaluate(CUT, names)
    assert {key: found for key, found in cut.items() if found} == {}
    await window.close()


async def test_a_request_shows_its_tenant(stage: Stage, window: Window) -> None:
    stage.snapshot = long_figures(tenant="research")
    await window.page.goto(stage.url)
    await window.page.wait_for_selector("#requests-table tbody tr")
    heads = await window.text("#requests-table thead")
    assert "Tenant" in heads
    first = window.page.locator("#requests-table tbody tr").first
    assert "research" in await first.inner_text()
    assert await first.locator(".of-what").get_attribute("title") == MODEL
    stage.snapshot = long_figures(tenant=None)
    await window.page.wait_for_selector("#requests-table .of-whose", state="hidden")
    assert MODEL[:8] in await first.inner_text()
    assert await first.locator(".of-what").is_visible()
