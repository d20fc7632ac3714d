"""`penstock status`: what an operator reads of a real process, once and again and again."""

import asyncio
import re
import signal
import time
from typing import Any

import aiohttp
import orjson

from penstock.bench.sim.server import SimServer
from tests.e2e.forked import Forked, run
from tests.e2e.process import Penstock, Serve, Simulate
from tests.e2e.request import ask
from tests.e2e.test_operations import stream

WIDE = {"COLUMNS": "0"}  # no limit, as in a pipe without this variable


async def proxy_of(penstock: Penstock) -> dict[str, Any]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{penstock.admin_url}/api/v1/proxy") as answer,
    ):
        told: dict[str, Any] = await answer.json()
        return told


async def test_figures_of_backends_come_from_what_happened(
    simulate: Simulate, serve: Serve
) -> None:
    servers: list[SimServer] = await simulate(2)
    penstock = await serve(servers, pool={"policy": "round_robin"})
    before = (await penstock.backends())[0]
    assert before["lately"] == {
        "first_tokens": 0,
        "ttft_p95_s": None,
        "failures": 0,
        "last_failure": None,
    }
    assert (before["token_ms"], before["slower"]) == (None, None)
    for _ in range(6):
        await stream(penstock, 32)
    servers[0].faults.set("cut_before_headers", path="/v1/completions")
    for _ in range(2):
        await stream(penstock, 32)  # b1 serves what b0 failed
    servers[0].faults.clear()
    await penstock.until(lambda each: all(b["engine"] and b["engine"]["fresh"] for b in each), 10)
    await penstock.until(lambda each: not any(b["engine"]["running"] for b in each), 10)
    await penstock.until(lambda each: all(b["slower"] for b in each), 10)
    first, second = await penstock.backends()
    assert first["lately"]["failures"] == first["failures_total"] >= 1
    assert first["lately"]["last_failure"]["reason"] == "reset"
    assert second["lately"]["last_failure"] is None
    assert first["lately"]["first_tokens"] + second["lately"]["first_tokens"] == 8
    assert 0.0 < second["lately"]["ttft_p95_s"] < 5.0
    assert second["token_ms"] > 0.0
    told = await run("status", "--admin", penstock.admin_url, environment=WIDE)
    (row,) = re.findall(r"^b0 .*$", told.out, re.M)
    assert "IN FLIGHT" in told.out
    assert re.search(r" reset \d+ s ago$", row), row
    (row,) = re.findall(r"^b1 .*$", told.out, re.M)
    assert re.search(r"ready +\d+% +0 +0 +\d+\.\d\d s +\d+\.\d +\d\.\dx ", row), row
    assert row.endswith(" -")


async def test_the_proxy_tells_its_own_state_and_what_it_refuses(
    simulate: Simulate, serve: Serve
) -> None:
    (server,) = await simulate(1, profile="steady-50")
    penstock = await serve([server], pool={"max_requests": 1}, admission={"enabled": False})
    told = await proxy_of(penstock)
    assert told["last_reload"] is None
    assert told["refused_lately"] == {}
    assert (told["state"], told["open_requests"]) == ("ready", 0)
    assert abs(time.time() - told["since"]) < 60.0
    running = asyncio.create_task(stream(penstock, 100))
    await penstock.until(lambda each: each[0]["streams"] == 1, 5)
    body = {"model": "sim-model", "prompt": "x", "max_tokens": 1}
    for _ in range(3):
        assert (await ask(penstock, "/v1/completions", body)).status == 429
    told = await proxy_of(penstock)
    assert (told["open_requests"], told["refused_lately"]) == (1, {"max_requests": 3})
    assert (await penstock.reload(log={"level": "debug"}))[0] == 200
    assert (await proxy_of(penstock))["last_reload"]["succeeded"] is True
    out = (await run("status", "--admin", penstock.admin_url)).out
    assert re.search(r"^Proxy ready, up \d+ s since .*, 1 open, 0 queued, lag \d+ ms$", out, re.M)
    assert "\nRefused in the last minutes: 3 (max_requests 3).\n" in out
    assert re.search(r"^The last reload succeeded \d+ s ago, \d", out, re.M)
    await running


async def test_a_narrow_terminal_has_whole_rows(simulate: Simulate, serve: Serve) -> None:
    penstock = await serve(await simulate(2))
    admin = ("--admin", penstock.admin_url)
    narrow = (await run("status", *admin, environment={"COLUMNS": "80"})).out
    begin = narrow.index("BACKEND")
    assert max(map(len, narrow[begin:].splitlines())) <= 80
    assert "QUEUED TOKENS" not in narrow
    assert "QUEUED TOKENS" in (await run("status", *admin, environment=WIDE)).out


async def block(watching: Forked) -> str:
    """The next block of a watch that is piped."""
    async with asyncio.timeout(10):
        return (await watching.stdout.readuntil(b"\n\n")).decode()


async def picture(watching: Forked) -> str:
    """All blocks of the next picture: one that begins with a time."""
    told = await block(watching)
    while "BACKEND" not in told and "no answer" not in told:
        told += await block(watching)
    return told


async def test_a_watch_goes_on_without_the_proxy_and_ends_by_ctrl_c(
    simulate: Simulate, serve: Serve
) -> None:
    penstock = await serve(await simulate(2))
    watching = await Forked.start(("status", "--watch", "--admin", penstock.admin_url))
    began_s = time.monotonic()
    first, second = [await picture(watching) for _ in range(2)]
    assert time.monotonic() - began_s > 1.5
    for told in (first, second):
        assert re.match(r"\n*\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\n", told), told
        assert "\n2 of 2 can serve\n" in told
        assert "\x1b" not in told
    assert await penstock.stop() == 0
    while "no answer" not in (told := await picture(watching)):
        pass
    assert len(told.splitlines()[-2:]) == 2
    assert f"\npenstock: no answer from the admin port {penstock.admin_url}" in told
    watching.send_signal(signal.SIGINT)
    async with asyncio.timeout(10):
        assert await watching.wait() == 130
    assert await watching.stderr.read() == b""


async def test_the_whole_listing_is_json_however_many_there_are(serve: Serve) -> None:
    """More than one slice of them, and none answers."""
    urls = [f"http://127.0.1.{number}:9" for number in range(70)]
    penstock = await serve(urls, ready=0)
    out = (await run("status", "--json", "--admin", penstock.admin_url)).out
    assert [each["name"] for each in orjson.loads(out)] == [f"b{number}" for number in range(70)]
    told = await run("status", "--admin", penstock.admin_url)
    assert (told.status, "\n0 of 70 can serve\n" in told.out) == (1, True)
    assert len(re.findall(r"^b\d+ ", told.out, re.M)) == 70


async def test_a_watch_and_json_exclude_each_other() -> None:
    told = await run("status", "--watch", "--json")
    assert (told.status, "not allowed with argument" in told.err) == (2, True)
