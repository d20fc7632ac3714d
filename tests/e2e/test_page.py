"""The page's paths, as a running process serves them: the stream, sessions, and who may write."""

import asyncio
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import aiohttp
import orjson
import pytest

from penstock.bench.meter import cpu_ns
from tests.e2e.process import Fleet, Penstock, Serve, Simulate, until
from tests.e2e.request import BODIES
from tests.e2e.traffic import going_on

pytestmark = pytest.mark.once

ADMIN, VIEW = "an-admin-token-of-32-characters!", "a-readers-token-of-32-characters"
TOKENS = {"host": "127.0.0.1", "port": 0, "token": ADMIN, "view_token": VIEW}
WITHIN_S = 10.0


def page_headers(penstock: Penstock, **fields: str) -> dict[str, str]:
    """What our own page sends with a change."""
    return {"Origin": penstock.admin_url, "x-penstock-page": "1", **fields}


async def event(stream: aiohttp.ClientResponse) -> dict[str, Any]:
    """The next snapshot."""
    async with asyncio.timeout(WITHIN_S):
        data = await stream.content.readuntil(b"\n\n")
    assert data.startswith(b"data: ")
    told: dict[str, Any] = orjson.loads(data[6:])
    return told


@asynccontextmanager
async def browser(penstock: Penstock, token: str = "") -> AsyncIterator[aiohttp.ClientSession]:
    """A client that keeps cookies, signed in if there is a token."""
    jar = aiohttp.CookieJar(unsafe=True)  # of an address, too
    async with aiohttp.ClientSession(penstock.admin_url, cookie_jar=jar) as session:
        if token:
            async with session.post(
                "/ui/session", json={"token": token}, headers=page_headers(penstock)
            ) as answer:
                assert answer.status == 200, await answer.text()
        yield session


async def status_of(
    session: aiohttp.ClientSession, method: str, path: str, **options: Any
) -> tuple[int, str]:
    async with session.request(method, path, **options) as answer:
        if answer.content_type != "application/json":
            return answer.status, ""
        told = await answer.json()
        return answer.status, told["error"]["code"] if "error" in told else ""


async def test_the_stream_agrees_with_the_other_paths(fleet: Fleet) -> None:
    _, penstock = await fleet(2, slo=[{"ttft_s": {"p95": 1}}])
    async with browser(penstock) as session:
        async with session.post(
            f"{penstock.url}/v1/completions", json=BODIES["/v1/completions"] | {"stream": True}
        ) as answer:
            await answer.read()
        async with session.get("/api/v1/events") as stream:
            assert stream.status == 200
            assert stream.content_type == "text/event-stream"
            assert stream.headers["Cache-Control"] == "no-store"
            first, second = await event(stream), await event(stream)
        assert 0.5 < second["at"] - first["at"] < 3.0
        assert {each["name"] for each in first["backends"]} == {"b0", "b1"}
        assert set(first) >= {"version", "proxy", "verdicts", "slos", "queue", "rates", "requests"}
        assert second["rates"]["default"]["streams"] == 1
        assert len(second["requests"]["slow"]) == 1
        assert second["requests"]["failed"] == []
        async with session.get("/api/v1/backends") as answer:
            listed = (await answer.json())[0]
        row = second["backends"][0]
        assert {name for name in row if name != "engine"} <= set(listed)
        assert set(row["engine"] or {}) <= set(listed["engine"] or {})
        assert "url" not in row


@pytest.mark.timeout(120)
async def test_a_viewer_that_reads_nothing_is_dropped(simulate: Simulate, serve: Serve) -> None:
    servers = await simulate()
    backends = [{"name": f"b{number}", "url": servers[0].url} for number in range(150)]
    penstock = await serve(
        servers, pool={"backends": backends}, ready=150, health={"interval_s": 2}, at_rest=False
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", penstock.admin_port, limit=1)
    writer.write(b"GET /api/v1/events HTTP/1.1\r\nhost: localhost\r\n\r\n")
    before = penstock.resident_bytes
    await until(lambda: any(b"took nothing" in line for line in penstock.log), 60)
    assert penstock.resident_bytes - before < 32 * 1024 * 1024
    writer.close()
    del reader


async def test_shutdown_ends_the_stream(fleet: Fleet) -> None:
    _, penstock = await fleet()
    async with (
        aiohttp.ClientSession(penstock.admin_url) as session,
        session.get("/api/v1/events") as stream,
    ):
        await event(stream)
        stopping = asyncio.create_task(penstock.stop())
        async with asyncio.timeout(WITHIN_S):
            await stream.content.read()  # its proper end: no exception
        assert await stopping == 0


async def test_sessions_need_a_token(fleet: Fleet) -> None:
    _, penstock = await fleet(admin=TOKENS, ready=0, at_rest=False)
    async with browser(penstock) as session:
        for path in ("/api/v1/events", "/api/v1/backends"):
            assert await status_of(session, "GET", path) == (401, "unauthorized")
        async with session.get("/ui/session") as answer:
            assert await answer.json() == {"kind": None, "access": "none", "message": None}
        async with session.post(
            "/ui/session", json={"token": ADMIN}, headers=page_headers(penstock)
        ) as answer:
            assert await answer.json() == {"kind": "page", "access": "full"}
            (cookie,) = answer.headers.getall("Set-Cookie")
        name = f"penstock_{penstock.admin_port}"
        assert re.fullmatch(
            rf"{name}=[\w-]{{43}}; HttpOnly; Max-Age=43200; Path=/; SameSite=Strict", cookie
        ), cookie
        assert ADMIN not in cookie
        async with session.get("/api/v1/events") as stream:
            assert len((await event(stream))["backends"]) == 1
        drain = "/api/v1/backends/b0/drain"
        # A cookie alone changes nothing: not by a program, nor by another page.
        for headers in (
            {},
            {"x-penstock-page": "1"},
            {"Origin": penstock.admin_url},
            page_headers(penstock, Origin="http://127.0.0.1:1"),
            page_headers(penstock, Origin="https://evil.example"),
            page_headers(penstock) | {"Sec-Fetch-Site": "cross-site"},
        ):
            assert await status_of(session, "POST", drain, headers=headers) == (403, "forbidden")
        assert await status_of(session, "POST", drain, headers=page_headers(penstock)) == (200, "")
        headers = page_headers(penstock)
        assert (await status_of(session, "DELETE", "/ui/session", headers=headers))[0] == 204
        assert await status_of(session, "GET", "/api/v1/backends") == (401, "unauthorized")
    log = await penstock.until_logged(
        "backend set to drain name=b0 was=ready by=page from=127.0.0.1"
    )
    assert ADMIN not in log
    assert cookie.partition("=")[2][:43] not in log


async def test_readers_change_nothing(fleet: Fleet) -> None:
    _, penstock = await fleet(admin=TOKENS, ready=0, at_rest=False)
    bearer = {"authorization": f"Bearer {VIEW}"}
    paths = ("backends", "proxy", "verdict", "queue", "slo", "requests", "tenants", "config")
    async with browser(penstock, VIEW) as session:
        async with session.get("/ui/session") as got:
            assert (await got.json())["access"] == "view"
        async with aiohttp.ClientSession(penstock.admin_url) as program:
            changes = ("backends/b0/drain", "backends/b0/maint", "backends/b0/ready", "reload")
            page = page_headers(penstock)
            asked: Any = (("GET", paths, {}, 200), ("POST", changes, page, 403))
            for method, each, own, answer in asked:
                for path in (f"/api/v1/{name}" for name in each):
                    assert (await status_of(session, method, path, headers=own))[0] == answer
                    assert (await status_of(program, method, path, headers=bearer))[0] == answer
            explain = {"json": BODIES["/v1/completions"], "headers": bearer}
            assert (await status_of(program, "POST", "/api/v1/explain", **explain))[0] == 200
        async with session.get("/api/v1/backends", headers=bearer) as got:
            (backend,) = await got.json()
        assert backend["admin_state"] == "ready"
        async with session.get("/api/v1/config") as got:
            assert VIEW not in await got.text()


async def test_another_token_ends_sessions_and_streams(fleet: Fleet) -> None:
    _, penstock = await fleet(admin=TOKENS, ready=0, at_rest=False)
    async with browser(penstock, ADMIN) as admin, browser(penstock, VIEW) as reader:
        stream, stays = await admin.get("/api/v1/events"), await reader.get("/api/v1/events")
        await event(stream)
        penstock.configure(admin=TOKENS | {"token": "another-admin-token-of-32-chars!"})
        headers = page_headers(penstock)
        assert (await status_of(admin, "POST", "/api/v1/reload", headers=headers))[0] == 200
        async with asyncio.timeout(WITHIN_S):
            await stream.content.read()  # it ends properly
        assert (await status_of(admin, "GET", "/api/v1/backends"))[0] == 401
        await event(stays)
        assert (await status_of(reader, "GET", "/api/v1/backends"))[0] == 200
        stays.close()


async def test_the_page_loads_its_own_files_only(fleet: Fleet) -> None:
    _, penstock = await fleet(admin=TOKENS, ready=0, at_rest=False)
    async with aiohttp.ClientSession(penstock.admin_url) as session:
        async with session.get("/ui") as answer:
            assert (answer.status, answer.content_type) == (200, "text/html")
            text = await answer.text()
            policy = answer.headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "frame-ancestors 'none'" in policy
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert answer.headers["Referrer-Policy"] == "no-referrer"
        for name in re.findall(r'(?:src|href)="ui/([^"]+)"', text):
            async with session.get(f"/ui/{name}") as answer:
                assert answer.status == 200, name
                tag = answer.headers["ETag"]
            async with session.get(f"/ui/{name}", headers={"If-None-Match": tag}) as answer:
                assert (answer.status, await answer.read()) == (304, b"")
        for path in ("/ui/nothing.js", "/ui/..%2fshell.py", "/ui/%2e%2e/shell.py", "/ui/shell.py"):
            assert (await status_of(session, "GET", path))[0] in (401, 404)


async def test_long_heads_are_refused(fleet: Fleet) -> None:
    _, penstock = await fleet(admin=TOKENS, ready=0, at_rest=False)
    async with aiohttp.ClientSession(penstock.admin_url) as session:
        assert (await status_of(session, "GET", "/a" * 2_000))[0] == 400
        cookies = {"Cookie": "a;" * 3_000}
        assert (await status_of(session, "GET", "/ui/session", headers=cookies))[0] == 400
        cookies = {"Cookie": "a;" * 2_000}
        assert (await status_of(session, "GET", "/ui/session", headers=cookies))[0] == 200


MEASURED_S: Final = float(os.environ.get("TEST_VIEWERS_S", "3"))


async def cpu_share(penstock: Penstock) -> float:
    """The share of a core that the process takes now."""
    before_ns = cpu_ns(penstock.process.pid)
    await asyncio.sleep(MEASURED_S)
    return (cpu_ns(penstock.process.pid) - before_ns) / 1e9 / MEASURED_S


@pytest.mark.alone
async def test_ten_viewers_cost_little_cpu(fleet: Fleet) -> None:
    """Less than a fiftieth of a core, and nothing once nobody looks."""
    # Probes as rare as they are by default: the rest of the process shall be quiet.
    _, penstock = await fleet(3, health={"interval_s": 2})
    nobody = await cpu_share(penstock)

    async def look(session: aiohttp.ClientSession) -> None:
        async with session.get("/api/v1/events") as stream:
            async for _ in stream.content.iter_any():
                pass

    async with (
        aiohttp.ClientSession(penstock.admin_url) as session,
        going_on(*(look(session) for _ in range(10))),
    ):
        await asyncio.sleep(1.0)
        ten = await cpu_share(penstock)
    await asyncio.sleep(1.5)
    again = await cpu_share(penstock)
    print(f"CPU of a core: nobody {nobody:.2%}, ten viewers {ten:.2%}, nobody again {again:.2%}")
    assert ten - nobody < 0.02
    assert again < nobody + 0.01
