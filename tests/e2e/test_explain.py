"""Why a request goes where it goes, from the outside."""

import asyncio
import os
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from tests.e2e.forked import Ran, run
from tests.e2e.process import Penstock, Serve, Simulate
from tests.e2e.request import ask

SECRET = "a prompt that must be seen nowhere"
LONG: dict[str, Any] = {
    "model": "sim-model",
    "messages": [{"role": "user", "content": f"{SECRET}, again and again. " * 100}],
    "max_tokens": 4,
}
HALF_BYTES = 8_388_608
CHAT = "/v1/chat/completions"


async def explained(penstock: Penstock, body: bytes, query: str = "", **headers: str) -> Any:
    async with (
        aiohttp.ClientSession() as session,
        session.post(
            f"{penstock.admin_url}/api/v1/explain{query}", data=body, headers=headers
        ) as answer,
    ):
        text = await answer.read()
        assert SECRET.encode() not in text
        return answer.status, orjson.loads(text)


async def command(*arguments: str) -> Ran:
    return await run("explain", *arguments)


async def test_it_tells_beforehand_where_a_turn_goes_and_why(
    simulate: Simulate, serve: Serve
) -> None:
    penstock = await serve(await simulate(3))
    first = await ask(penstock, CHAT, LONG)
    home = first.headers["x-penstock-backend"]
    status, told = await explained(penstock, orjson.dumps(LONG))
    assert status == 200
    assert told["chosen"] == [home]
    assert (told["pool"], told["policy"], told["reason"]) == ("default", "token_cost", "cost")
    cached = {each["name"]: each["cached_tokens"] for each in told["candidates"]}
    assert cached.pop(home) > 0.8 * told["request"]["prompt_tokens"]
    assert set(cached.values()) == {0}
    for each in told["candidates"]:
        assert each["eligible"]
        assert each["cost_s"] == pytest.approx(sum(each["terms"].values()), abs=1e-5)
        assert bool(each["to_win"]) == (each["name"] != home)
    again = await ask(penstock, CHAT, LONG)
    assert again.headers["x-penstock-backend"] == home


async def test_a_dry_run_leaves_nothing(simulate: Simulate, serve: Serve) -> None:
    servers = await simulate(2)
    penstock = await serve(servers)
    before = await penstock.backends()
    for _ in range(5):
        await explained(penstock, orjson.dumps(LONG))
    after = await penstock.backends()
    for one, other in zip(before, after, strict=True):
        assert one["requests_total"] == other["requests_total"] == 0
        assert other["prefix_cache"]["blocks"] == 0
    assert not any(server.seen for server in servers)


async def test_a_session_that_stays_is_told(simulate: Simulate, serve: Serve) -> None:
    penstock = await serve(await simulate(2))
    first = await ask(penstock, CHAT, LONG, x_session_id="s-1")
    second = await ask(penstock, CHAT, LONG, x_session_id="s-1")
    assert first.headers["x-penstock-reason"] == "cost"
    assert second.headers["x-penstock-reason"] == "affinity"
    _, told = await explained(penstock, orjson.dumps(LONG), **{"x-session-id": "s-1"})
    assert (told["reason"], told["request"]["session"]) == ("affinity", True)


async def test_who_cannot_take_it_says_why(simulate: Simulate, serve: Serve) -> None:
    penstock = await serve(await simulate(2))
    async with aiohttp.ClientSession() as session:
        await session.post(f"{penstock.admin_url}/api/v1/backends/b0/drain")
    _, told = await explained(penstock, orjson.dumps(LONG))
    assert told["chosen"] == ["b1"]
    assert told["candidates"][0]["why_not"] == "set to drain by the operator"
    assert told["candidates"][0]["cost_s"] is None


@pytest.mark.parametrize(
    ("body", "query", "status", "code"),
    [
        (b"", "", 400, "invalid_request"),
        (b"[", "", 400, "invalid_request"),
        (b'{"model": "nobody-has-it", "prompt": "x"}', "", 404, "model_not_found"),
        (b"{}", "?path=/v1/nothing", 404, "not_proxied"),
        (b'{"model": 7}', "?path=/v1/completions", 400, "invalid_request"),
        (b'{"prompt":' + b"[" * 100_000, "", 400, "invalid_request"),
        (b"{}", "?tenant=nobody", 404, "unknown_tenant"),
    ],
)
async def test_what_cannot_be_explained_is_said(
    simulate: Simulate, serve: Serve, body: bytes, query: str, status: int, code: str
) -> None:
    penstock = await serve(await simulate(1))
    got, told = await explained(penstock, body, query)
    assert (got, told["error"]["code"]) == (status, code)


async def test_the_command_prints_the_costs(
    simulate: Simulate, serve: Serve, tmp_path: Path
) -> None:
    penstock = await serve(await simulate(2))
    file = tmp_path / "request.json"
    file.write_bytes(orjson.dumps(LONG))
    status, out, err = await command(str(file), "--admin", penstock.admin_url)
    assert (status, err) == (0, "")
    assert "policy token_cost" in out
    assert "PREFILL" in out
    assert "-> b0 or b1 (cost)" in out
    assert SECRET not in out
    status, out, _ = await command(str(file), "--admin", penstock.admin_url, "--json")
    assert status == 0
    assert orjson.loads(out)["policy"] == "token_cost"
    status, _, err = await command(str(tmp_path / "none.json"), "--admin", penstock.admin_url)
    assert status == 1
    assert "cannot read" in err
    for header in ("x", "x y: z", ": z", "x: a\r\nhost: b", "x: \u00e9"):
        arguments = (str(file), "--admin", penstock.admin_url, "--header", header)
        status, _, err = await command(*arguments)
        assert status == 1
        assert "--header must look like" in err


async def test_a_tenants_sessions_are_its_own(
    simulate: Simulate, serve: Serve, tmp_path: Path
) -> None:
    tenants = [{"name": name, "keys": [{"key": f"sk-{name}"}]} for name in ("one", "two")]
    penstock = await serve(await simulate(2), tenants=tenants)
    await ask(penstock, CHAT, LONG, x_session_id="s-1", authorization="Bearer sk-one")
    file = tmp_path / "request.json"
    file.write_bytes(orjson.dumps(LONG))
    arguments = (str(file), "--admin", penstock.admin_url, "--header", "x-session-id: s-1")
    for tenant, reason in (("one", "affinity"), ("two", "cost")):
        status, out, _ = await command(*arguments, "--tenant", tenant)
        assert (status, f"({reason})\n" in out) == (0, True), out
    status, _, err = await command(*arguments, "--tenant", "three")
    assert status == 1
    assert "No tenant of this name" in err


async def test_other_policies_have_no_costs(
    simulate: Simulate, serve: Serve, tmp_path: Path
) -> None:
    servers = await simulate(2)
    penstock = await serve(servers, pool={"policy": "session"})
    file = tmp_path / "request.json"
    file.write_bytes(orjson.dumps(LONG))
    header = ("--header", "x-session-id: s-1")
    _, out, _ = await command(str(file), "--admin", penstock.admin_url, *header)
    answer = await ask(penstock, CHAT, LONG, x_session_id="s-1")
    home = answer.headers["x-penstock-backend"]
    assert f"{home} comes first on the ring for this session" in out
    assert f"-> {home} (affinity)" in out
    other = await serve(servers, pool={"policy": "random"})
    _, out, _ = await command(str(file), "--admin", other.admin_url)
    assert "random draws at random" in out


async def test_bodies_that_do_not_end_are_not_all_held(simulate: Simulate, serve: Serve) -> None:
    """One is read at a time, for three seconds; others are refused, and hold no connection."""
    penstock = await serve(await simulate(1))
    before_bytes = memory_bytes(penstock)
    head = b"POST /api/v1/explain HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n"
    host, port = penstock.admin_url.removeprefix("http://").split(":")
    writers: list[asyncio.StreamWriter] = []
    for _ in range(70):  # more than the port has places
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(head % (HALF_BYTES + 1) + b"x" * (HALF_BYTES if len(writers) < 8 else 1))
        writers.append(writer)
    status, told = await explained(penstock, orjson.dumps(LONG))
    assert (status, told["error"]["code"]) == (429, "overloaded")
    async with asyncio.timeout(20):
        while status == 429:
            await asyncio.sleep(0.2)
            status, _ = await explained(penstock, orjson.dumps(LONG))
    assert status == 200
    assert memory_bytes(penstock) - before_bytes < 3 * HALF_BYTES
    for writer in writers:
        writer.transport.abort()


def memory_bytes(penstock: Penstock) -> int:
    pages = Path(f"/proc/{penstock.process.pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
