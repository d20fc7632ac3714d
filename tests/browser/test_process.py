"""The page of a running process: sessions, changes, and other pages that try the same."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from playwright.async_api import Browser

from tests.browser.window import Window
from tests.e2e.process import Penstock, Serve, Simulate

ADMIN, VIEW = "an-admin-token-of-32-characters!", "a-readers-token-of-32-characters"
TOKENS = {"host": "127.0.0.1", "port": 0, "token": ADMIN, "view_token": VIEW}
ROWS = "#backends tbody tr"


async def states(penstock: Penstock, token: str = "") -> list[str]:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.get(f"{penstock.admin_url}/api/v1/backends") as answer,
    ):
        return [each["admin_state"] for each in await answer.json()]


async def sign_in(window: Window, penstock: Penstock, token: str) -> None:
    await window.page.goto(f"{penstock.admin_url}/ui")
    await window.page.fill("#token", token)
    await window.page.get_by_role("button", name="Show the page").click()
    await window.page.wait_for_selector(ROWS)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_drain_by_click_on_loopback(
    simulate: Simulate, serve: Serve, window: Window, host: str
) -> None:
    penstock = await serve(await simulate(2))
    page = window.page
    await page.goto(f"http://{host}:{penstock.admin_port}/ui")
    await page.wait_for_selector(ROWS)
    await page.get_by_role("button", name="Change b1", exact=True).click()
    assert "1 of 1 other backend of default can serve" in await window.text("#change-effect")
    await page.get_by_role("button", name="Drain b1").click()
    await page.wait_for_selector(f"{ROWS}[data-tone=drain]")
    assert await states(penstock) == ["ready", "drain"]
    await page.get_by_role("button", name="Change b1", exact=True).click()
    await page.get_by_role("button", name="Make b1 ready").click()
    await page.wait_for_selector(f"{ROWS}[data-tone=drain]", state="detached")
    assert await states(penstock) == ["ready", "ready"]


async def test_a_token_is_shown_once_and_kept_nowhere(
    simulate: Simulate, serve: Serve, window: Window
) -> None:
    penstock = await serve(await simulate(2), admin=TOKENS, ready=0, at_rest=False)
    page = window.page
    await page.goto(f"{penstock.admin_url}/ui")
    await page.fill("#token", "a wrong token")
    await page.get_by_role("button", name="Show the page").click()
    await page.wait_for_selector("#sign-in-error:not(:empty)")
    assert await window.text("#sign-in-error") == "This token is wrong."
    await sign_in(window, penstock, ADMIN)
    assert ADMIN not in page.url
    kept = "JSON.stringify([localStorage, sessionStorage, document.cookie, history.state])"
    assert ADMIN not in await page.evaluate(kept)
    assert await page.evaluate("document.cookie") == ""
    assert await page.evaluate("document.querySelector('#token').value") == ""
    await page.get_by_role("button", name="Change b1", exact=True).click()
    await page.get_by_role("button", name="Drain b1").click()
    await page.wait_for_selector(f"{ROWS}[data-tone=drain]")
    assert await states(penstock, ADMIN) == ["ready", "drain"]
    await page.reload()
    await page.wait_for_selector(ROWS)  # the session goes on
    await page.get_by_role("button", name="Sign out").click()
    await page.wait_for_selector("#sign-in:visible")


async def test_a_stolen_token_of_readers_changes_nothing(
    simulate: Simulate, serve: Serve, window: Window
) -> None:
    penstock = await serve(await simulate(2), admin=TOKENS, ready=0, at_rest=False)
    await sign_in(window, penstock, VIEW)
    assert await window.text("#reader") == "read only"
    told = await window.page.evaluate(
        """async () => {
          const found = [];
          for (const headers of [{}, {"x-penstock-page": "1"}]) {
            const answer = await fetch("api/v1/backends/b0/drain", {method: "POST", headers});
            found.push([answer.status, (await answer.json()).error.message]);
          }
          return found;
        }"""
    )
    assert [status for status, _ in told] == [403, 403]
    assert "may only read" in told[1][1]
    assert await states(penstock, ADMIN) == ["ready", "ready"]


@pytest.fixture
async def elsewhere() -> AsyncIterator[str]:
    """A page of another origin on this machine, which may do what pages can."""

    async def page(request: web.Request) -> web.Response:
        return web.Response(text="<title>elsewhere</title>", content_type="text/html")

    application = web.Application()
    application.router.add_get("/", page)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
    await runner.cleanup()


_TRY = """async (admin) => {
  const found = {};
  const attempt = async (name, path, options) => {
    try { found[name] = (await fetch(`${admin}${path}`, options)).type; }
    catch { found[name] = "refused"; }
  };
  const change = "/api/v1/backends/b0/drain";
  await attempt("read", "/api/v1/backends", {credentials: "include"});
  await attempt("events", "/api/v1/events", {credentials: "include"});
  await attempt("change", change, {method: "POST", credentials: "include"});
  await attempt("header", change,
    {method: "POST", credentials: "include", headers: {"x-penstock-page": "1"}});
  await attempt("blind", change, {method: "POST", mode: "no-cors", credentials: "include"});
  const form = document.createElement("form");
  form.method = "post"; form.action = `${admin}${change}`; form.target = "frame";
  const frame = document.createElement("iframe"); frame.name = "frame";
  document.body.append(frame, form); form.submit();
  const image = document.createElement("img"); image.src = `${admin}/api/v1/events`;
  document.body.append(image);
  await new Promise((go) => setTimeout(go, 1000));
  return found;
}"""


@pytest.mark.parametrize("admin", [None, TOKENS], ids=["loopback", "session"])
async def test_another_page_reads_and_changes_nothing(
    simulate: Simulate,
    serve: Serve,
    chromium: Browser,
    elsewhere: str,
    admin: dict[str, Any] | None,
) -> None:
    options = {"admin": admin, "ready": 0} if admin else {}
    penstock = await serve(await simulate(2), at_rest=False, **options)
    window = await Window.open(chromium, "elsewhere")
    if admin:
        await sign_in(window, penstock, ADMIN)
        await window.page.goto("about:blank")
    await window.page.goto(elsewhere)
    told = await window.page.evaluate(_TRY, penstock.admin_url)
    assert told == dict.fromkeys(("read", "events", "change", "header", "blind"), "refused")
    assert await states(penstock, ADMIN if admin else "") == ["ready", "ready"]
    window.faults.clear()  # the browser complains of what it refused, and is right
    await window.close()


async def test_a_restart_asks_for_the_token_again(
    simulate: Simulate, serve: Serve, window: Window
) -> None:
    penstock = await serve(await simulate(2), admin=TOKENS, ready=0, at_rest=False)
    await sign_in(window, penstock, ADMIN)
    penstock.configure(admin=TOKENS | {"token": "another-admin-token-of-32-chars!"})
    async with (
        aiohttp.ClientSession(headers={"authorization": f"Bearer {ADMIN}"}) as session,
        session.post(f"{penstock.admin_url}/api/v1/reload") as answer,
    ):
        assert answer.status == 200
    async with asyncio.timeout(20):
        await window.page.wait_for_selector("#sign-in:visible", timeout=20_000)
