"""What people do with the page: sort, filter, open, change. And what it does not do meanwhile."""

from typing import Any

import pytest
from playwright.async_api import Page

from tests.browser import figures
from tests.browser.stage import Stage
from tests.browser.window import Window

ROWS = "#backends tbody tr"
NAMES = f"[...document.querySelectorAll('{ROWS} .name')].map((each) => each.textContent)"


async def opened(stage: Stage, window: Window, snapshot: dict[str, Any]) -> Page:
    stage.snapshot = snapshot
    await window.page.goto(stage.url)
    await window.page.wait_for_selector(ROWS)
    return window.page


async def test_two_hundred_backends_are_sorted_and_filtered(stage: Stage, window: Window) -> None:
    page = await opened(stage, window, figures.snapshot(200))
    assert await page.locator(ROWS).count() == 200
    assert (await page.evaluate(NAMES))[:3] == ["gpu-6", "gpu-3", "gpu-5"]
    await page.get_by_role("button", name="KV").click()
    assert await page.locator("th.of-kv").get_attribute("aria-sort") == "descending"
    full = [each["engine"]["kv_usage"] if each["engine"] else -1.0 for each in figures.fleet(200)]
    first = (await page.evaluate(NAMES))[0]
    assert full[int(first.removeprefix("gpu-"))] == max(full)
    await page.get_by_role("button", name="KV").click()
    await page.get_by_role("button", name="KV").click()  # and the worst first again
    assert (await page.evaluate(NAMES))[0] == "gpu-6"
    await page.fill("#filter", "drain")
    assert await page.evaluate(NAMES) == ["gpu-8"]
    await page.fill("#filter", "no such thing")
    assert "No backend fits" in await window.text("#backends-note")


async def test_backends_beyond_three_hundred_are_counted(stage: Stage, window: Window) -> None:
    page = await opened(stage, window, figures.snapshot(1_000))
    assert await page.locator(ROWS).count() == 300
    assert "700 more backends" in await window.text("#backends-note")


async def test_rows_are_used_again_and_nothing_flickers(stage: Stage, window: Window) -> None:
    page = await opened(stage, window, figures.snapshot(50))
    await page.wait_for_timeout(500)
    await page.evaluate(
        """() => { window.changed = [];
        new MutationObserver((all) => window.changed.push(...all.map((each) => each.target.className
          || each.target.parentNode?.className || each.type)))
        .observe(document.querySelector("main"),
          {subtree: true, childList: true, characterData: true, attributes: true}); }"""
    )
    await page.wait_for_timeout(1_500)  # fifteen equal snapshots
    changed = await page.evaluate("window.changed")
    assert {each for each in changed if "u-" not in each and each != "canvas"} == set()
    await page.evaluate(f"window.first = document.querySelector('{ROWS}')")
    busy = figures.snapshot(50)
    for backend in busy["backends"]:
        backend["active_decode_tokens"] += 1_000
    stage.snapshot = busy
    await page.wait_for_timeout(500)
    assert await page.evaluate(f"window.first === document.querySelector('{ROWS}')")


async def test_only_another_verdict_is_announced(stage: Stage, window: Window) -> None:
    page = await opened(stage, window, figures.snapshot(3, verdicts=[figures.verdict()]))
    assert await page.locator("#announcement").text_content() == ""
    stage.snapshot = figures.snapshot(3, verdicts=[figures.MEMORY])
    await window.until("document.querySelector('#announcement').textContent !== ''")
    told = await page.locator("#announcement").text_content() or ""
    assert told.startswith("chat: Memory-bound")
    fuller = figures.MEMORY | {"sentence": "Memory-bound: 98% full."}
    stage.snapshot = figures.snapshot(3, verdicts=[fuller])
    await page.wait_for_selector("text=98% full")
    assert await page.locator("#announcement").text_content() == told


@pytest.mark.parametrize("name", figures.HOSTILE)
async def test_hostile_names_are_text(stage: Stage, window: Window, name: str) -> None:
    told = figures.snapshot(12)
    for backend in told["backends"][:3]:
        backend |= {"name": f"{name}{backend['name']}", "pool": name, "reason": name}
    told["verdicts"] = [figures.MEMORY | {"pool": name, "sentence": name, "to_do": [name]}]
    told["slos"] = [figures.slo(name, "critical", 0.1, 3.0, name, name)]
    told["rates"] = {name: figures.rate(1.0, 0.0)}
    told["queue"]["tenants"] = [{"name": name, "requests": 3}]
    told["queue"]["classes"][0] |= {"name": name}
    odd = {"id": name, "tenant": name, "model": name, "error": name, "backend": name}
    told["requests"] = {"slow": [figures.request(1, **odd)], "failed": []}
    odd_too = {"class": name, "reason": name, "degraded": name, "client_behind_ms": 6_700.0}
    stage.parts = [figures.PARTS[0] | odd | odd_too]
    stage.parts[0]["parts"] = [{"part": name, "ms": 3.0, "backend": name, "why": name}]
    page = await opened(stage, window, told)
    await page.locator("#requests-table tbody tr").first.click()
    await page.wait_for_selector("#request table.parts")
    await window.shoot("request")
    assert name in (await page.locator("#request-title").text_content() or "")
    behind = page.locator("#request-body div", has_text="its client was behind for")
    assert "6.7" in (await behind.text_content() or "")
    await page.keyboard.press("Escape")
    await page.locator(".change").first.click()
    await window.shoot("change")
    await page.keyboard.press("Escape")
    assert await page.title() == "penstock"
    assert await page.locator("main img, main script, dialog img, dialog script").count() == 0
    assert name in (await page.locator("#verdicts").text_content() or "")
    wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert await page.evaluate(wide) == 0
    await window.shoot("page")


async def test_drain_with_the_keyboard_alone(stage: Stage, window: Window) -> None:
    page = await opened(stage, window, figures.snapshot(3))
    await page.get_by_role("button", name="Change gpu-1", exact=True).focus()
    await page.keyboard.press("Enter")
    assert "1 of 1 other backend of chat can serve" in await window.text("#change-effect")
    await page.keyboard.press("Escape")
    assert stage.asked == []
    focused = "document.activeElement.getAttribute('aria-label')"
    assert await page.evaluate(focused) == "Change gpu-1"
    await page.keyboard.press("Enter")
    await page.keyboard.press("ArrowDown")  # from drain to maint
    assert "no probes" in await page.locator("label:has(:checked)").inner_text()
    await page.keyboard.press("Enter")
    await page.wait_for_selector("#toast:visible")
    assert stage.asked == [("gpu-1", "maint")]
    assert "gpu-1: wanted maint" in await window.text("#toast")


async def test_the_last_one_is_drained_with_a_warning(stage: Stage, window: Window) -> None:
    alone = figures.snapshot(1)
    await opened(stage, window, alone)
    await window.page.get_by_role("button", name="Change gpu-0", exact=True).click()
    assert "new requests will get 503" in await window.text("#change-effect")


async def test_a_forgotten_request_is_reported_as_such(stage: Stage, window: Window) -> None:
    page = await opened(stage, window, figures.snapshot(3))
    await page.get_by_role("button", name="failed").click()
    await page.locator("#requests-table tbody tr").first.click()
    await page.wait_for_selector("#request .problem")
    assert "No request with this id is kept." in await window.text("#request-body")


@pytest.mark.timeout(170)
async def test_a_day_of_figures_takes_bounded_memory(stage: Stage, window: Window) -> None:
    """24 h at once a second, seen one second in twenty. Requests and backends come and go."""
    page = await opened(stage, window, figures.snapshot(20))
    stage.snapshot = None
    session = await page.context.new_cdp_session(page)

    async def day(hours: int, begin_h: int) -> tuple[float, int]:
        await page.evaluate(
            """async ([snapshot, begin, count]) => {
              const { show } = await import("/ui/page.js");
              let told;
              for (let number = begin; number < begin + count; number++) {
                const seen = number % 20 === 0;
                Object.defineProperty(document, "hidden", { configurable: true, value: !seen });
                if (seen) told = structuredClone(snapshot);
                told.at = snapshot.at + number;
                told.backends.forEach((each, at) => { each.name = `pod-${(number >> 6) + at}`; });
                told.requests.slow.forEach((each, at) => { each.id = `${number >> 3}-${at}`; });
                told.verdicts[0].since = snapshot.verdicts[0].since + (number >> 5);
                show(told);
                if (number % 200 === 0) await new Promise((go) => setTimeout(go));
              }
            }""",
            [figures.snapshot(20), begin_h * 3_600, hours * 3_600],
        )
        await session.send("HeapProfiler.collectGarbage")
        used = await session.send("Runtime.getHeapUsage")
        nodes = await page.evaluate("document.querySelectorAll('*').length")
        return used["usedSize"] / 1e6, nodes

    early_mb, early_nodes = await day(2, 0)
    late_mb, late_nodes = await day(22, 2)
    print(f"heap {early_mb:.1f} MB after 2 h, {late_mb:.1f} MB after 24 h; {late_nodes} nodes")
    assert late_mb < early_mb + 3.0
    assert late_nodes < early_nodes + 50
    await page.get_by_role("button", name="24 h").click()
    await page.wait_for_timeout(300)
    await window.shoot("day")


async def test_a_sentence_leads_to_its_row_and_to_the_runbook(stage: Stage, window: Window) -> None:
    link = "https://docs.example.com/runbook.html#kv-cache-full"
    stage.snapshot = figures.snapshot(12, verdicts=[figures.MEMORY | {"runbook": link}])
    page = window.page
    await page.goto(stage.url)
    await page.locator(".row-of", has_text="gpu-3").click()
    await page.wait_for_function("document.querySelectorAll('#backends tbody tr').length === 1")
    assert await page.evaluate(NAMES) == ["gpu-3"]
    assert await page.locator(".remedies a").get_attribute("href") == link


async def test_a_later_viewer_sees_the_past(stage: Stage, window: Window) -> None:
    stage.past = figures.past(600)
    stage.snapshot = figures.snapshot(12, at=figures.AT_S + 600)
    page = window.page
    await page.goto(stage.url)
    await page.locator("#past summary", has_text="Before: ").click()
    assert "gpu-4 takes 3.4 times" in await page.locator("#past-list li").first.inner_text()
    times = "(await import('/ui/rates.js')).histories.recent.columns[0].length"
    await page.wait_for_function(f"(async () => {times} > 100)()")


async def test_tenants_are_listed_with_what_is_left_of_their_budgets(
    stage: Stage, window: Window
) -> None:
    stage.snapshot = figures.snapshot(12)
    page = window.page
    await page.goto(stage.url)
    await page.get_by_role("button", name="tenants").click()
    row = page.locator("#tenants-table tbody tr").first
    assert (await row.inner_text()).split("\t") == [
        *("research", "55.8k (62%)", "19", "31% tokens/day", "12")
    ]
    await window.shoot()
