"""A user asks where the time of requests went, of a real process before simulated servers."""

import asyncio
import re
from typing import Any

import aiohttp
import orjson

from tests.e2e.forked import run
from tests.e2e.process import Penstock, Serve, Simulate
from tests.e2e.request import CHAT, ask
from tests.e2e.test_admission import ONE_PLACE, PROFILE, longer, until_waiting
from tests.e2e.test_admission import stream as long_stream
from tests.e2e.wire import Guard

SECRET = "canary prompt 91c2"
KEYS = {name: f"sk-canary-{name}-0123456789abcdef" for name in ("victim", "attacker")}
TENANTS = [{"name": name, "keys": [{"key": key}]} for name, key in KEYS.items()]
PATH = "/v1/chat/completions"
BODY = CHAT | {"messages": [{"role": "user", "content": SECRET}]}
TOKEN = "t-canary-0123456789abcdef"


async def kept(penstock: Penstock, query: str = "", token: str = "") -> tuple[int, Any]:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.get(f"{penstock.admin_url}/api/v1/requests{query}") as answer,
    ):
        return answer.status, orjson.loads(await answer.read())


async def until_kept(penstock: Penstock, request_id: str) -> dict[str, Any]:
    async with asyncio.timeout(5):
        while True:
            status, told = await kept(penstock, f"/{request_id}")
            if status == 200 and told[0]["state"] == "ended":
                entry: dict[str, Any] = told[0]
                return entry
            await asyncio.sleep(0.02)


def key(name: str) -> str:
    return f"Bearer {KEYS[name]}"


async def test_a_failover_is_told_and_nothing_secret_is(simulate: Simulate, serve: Serve) -> None:
    servers = await simulate(2, profile="steady-50")
    penstock = await serve(servers, pool={"policy": "round_robin"}, tenants=TENANTS)
    outputs = []
    for number in range(4):
        if number == 2:
            servers[0].faults.set("cut_before_headers", times=1)
            servers[0].drop_connections()
        got = await ask(
            penstock,
            PATH,
            BODY | {"stream": True},
            authorization=key("victim"),
            x_penstock_timing="1",
            x_request_id=f"id-{number}",
        )
        assert got.status == 200
        timing = got.headers["server-timing"]
        assert re.fullmatch(r"(\w+;dur=[\d.]+(, )?)+", timing)
        assert ("failed;dur=" in timing) == (got.headers["x-penstock-attempts"] == "2")
        outputs.append(timing)
    assert sum("failed;dur=" in each for each in outputs) == 1
    wrong = await ask(penstock, PATH, BODY, authorization="Bearer sk-canary-wrong")
    assert wrong.status == 401

    for arguments in (("requests",), ("requests", "--slow"), ("requests", "--failed", "--json")):
        status, out, _ = await run(*arguments, "--admin", penstock.admin_url)
        assert status == 0
        outputs.append(out)
    assert "tokens" in outputs[4]
    assert "401 unauthorized" in outputs[4]
    assert orjson.loads(outputs[-1])[0]["error"] == "unauthorized"
    (lost,) = [each for each in (await kept(penstock))[1] if each["attempts"] == 2]
    status, out, _ = await run("trace", lost["id"], "--admin", penstock.admin_url)
    assert status == 0
    assert "The attempt at b0 failed: reset." in out
    assert "tenant victim" in out
    status, _, err = await run("trace", "nobody/knows?it", "--admin", penstock.admin_url)
    assert (status, "No request with this id is kept" in err) == (1, True)
    outputs += [out, orjson.dumps((await kept(penstock, "?limit=500"))[1]).decode()]
    async with asyncio.timeout(3):
        while len(penstock.access_lines) < 5:
            await asyncio.sleep(0.02)
    (line,) = [each for each in penstock.access_lines if each.get("attempts") == 2]
    assert (line["pool"], line["class"]) == ("default", "standard")
    assert line["failed"][0]["failure"] == "reset"
    assert 0 <= line["overhead_ms"] <= line["sent_ms"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", line["at"])
    outputs.append(str(penstock.access_lines))
    for secret in ("canary", *[server.url for server in servers]):
        assert not [each for each in outputs if secret in each]


async def test_a_wait_and_who_still_waits_are_told(simulate: Simulate, serve: Serve) -> None:
    servers = await simulate(1, profile=PROFILE)
    penstock = await serve(servers, admission={"enabled": True})
    await asyncio.gather(*(long_stream(penstock, n, x_request_id=f"id-{n}") for n in range(6)))
    entries = [await until_kept(penstock, f"id-{number}") for number in range(6)]
    queued = [part for each in entries for part in each["parts"] if part["part"] == "queue"]
    assert len(queued) >= 3
    assert {part["why"] for part in queued} <= {"prompts", "turn", "kv_cache"}
    for each in entries:
        spent_ms = sum(part["ms"] for part in each["parts"])
        assert abs(spent_ms - each["duration_ms"]) < 1
        assert each["class"] == "standard"
    _, out, _ = await run("requests", "--slow", "--admin", penstock.admin_url)
    assert "IN LINE" in out
    assert "waiting in line (" in out or "queue and prefill" in out
    async with asyncio.timeout(3):
        while len(penstock.access_lines) < 6:
            await asyncio.sleep(0.02)
    waits = [line["waits_for"] for line in penstock.access_lines if "waits_for" in line]
    assert sorted(waits) == sorted(part["why"] for part in queued)


async def test_a_client_that_leaves_while_it_waits_is_told(
    simulate: Simulate, serve: Serve
) -> None:
    servers = await simulate(1, profile=PROFILE)
    penstock = await serve(servers, admission={"enabled": True}, pool=ONE_PLACE)
    first = asyncio.create_task(longer(penstock, 0, max_tokens=100))
    await asyncio.sleep(0.05)
    others = [
        asyncio.create_task(long_stream(penstock, number, x_request_id=f"left-{number}"))
        for number in range(1, 5)
    ]
    await until_waiting(penstock, 4)
    for other in others:
        other.cancel()
    await until_waiting(penstock, 0)
    for number in range(1, 5):
        entry = await until_kept(penstock, f"left-{number}")
        assert (entry["status"], entry["backend"], entry["failed"]) == (499, None, True)
        assert entry["parts"][-1]["part"] == "queue"
    _, out, _ = await run("trace", "left-1", "--admin", penstock.admin_url)
    assert "Its client left before the answer began." in out
    await first


async def test_a_flood_under_a_victims_ids_hides_nothing(simulate: Simulate, serve: Serve) -> None:
    (server,) = await simulate(1)
    penstock = await serve([server], tenants=TENANTS)
    server.faults.set("cut_before_headers", times=1)
    got = await ask(penstock, PATH, BODY, authorization=key("victim"), x_request_id="mine")
    assert got.status == 503 or got.status == 502

    async def floods(number: int) -> None:
        name = key("attacker") if number % 2 else "Bearer sk-canary-wrong"
        for _ in range(30):
            await ask(penstock, PATH, BODY, authorization=name, x_request_id="mine")

    for _ in range(5):
        await asyncio.gather(*(floods(number) for number in range(8)))
    _, told = await kept(penstock, "/mine")
    assert [each["tenant"] for each in told if each["tenant"]].count("victim") == 1
    assert len(told) == 3  # the attacker's, and one for all without a key
    _, failed = await kept(penstock, "?failed=1&tenant=victim")
    assert [each["id"] for each in failed] == ["mine"]


async def test_only_who_has_the_token_is_told(simulate: Simulate, serve: Serve) -> None:
    penstock = await serve(await simulate(1), ready=0, at_rest=False, admin={
        "host": "127.0.0.1", "port": 0, "token": TOKEN,
    })  # fmt: skip
    assert (await kept(penstock))[0] == (await kept(penstock, "/x"))[0] == 401
    assert await kept(penstock, token=TOKEN) == (200, [])
    for limit in ("many", "501", "0000000000501", "1" * 1_500):
        assert (await kept(penstock, f"?limit={limit}", token=TOKEN))[0] == 400
    environment = {"PENSTOCK_ADMIN__TOKEN": TOKEN}
    arguments = ("requests", "--admin", penstock.admin_url)
    status, out, _ = await run(*arguments, environment=environment)
    assert (status, out) == (0, "No such request is kept.\n")


async def test_a_log_for_people(simulate: Simulate, serve: Serve) -> None:
    penstock = await serve(await simulate(1), log={"format": "text"})
    await ask(penstock, PATH, BODY, x_request_id="id-7")
    async with asyncio.timeout(3):
        while not penstock.access_lines:
            await asyncio.sleep(0.02)
    line = penstock.access_lines[0]["text"]
    assert re.match(r"\d{4}-\d\d-\d\dT[\d:.]+Z 200 +[\d.]+ms +[\d.]+ms b0 ", line)
    assert line.endswith(" reason=only id=id-7\n")
    assert SECRET not in line


async def test_no_output_tells_a_prompt_or_a_key(guard: Guard) -> None:
    """The guard's own prompt and key, which its end looks for in the log and metrics, too."""
    server, penstock = await guard()
    await ask(server, "/v1/models", method="GET")
    async with aiohttp.ClientSession() as session:
        headers = {"authorization": "Bearer sk-canary-7f3a"}
        body = {"model": "sim-model", "prompt": SECRET, "max_tokens": 4}
        for path in ("/v1/completions", f"/{SECRET}"):
            async with session.post(penstock.url + path, json=body, headers=headers) as answer:
                await answer.read()
    _, told = await kept(penstock)
    assert len(told) == 2
    for command in (["requests"], ["requests", "--json"], ["trace", told[0]["id"]]):
        _, out, _ = await run(*command, "--admin", penstock.admin_url)
        assert SECRET not in out
        assert "sk-canary" not in out
