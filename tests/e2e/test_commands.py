"""The commands against a running proxy: status, drain, ready, maint."""

import asyncio
import re
import signal
import time
from pathlib import Path

import aiohttp
import orjson
import pytest

from tests.e2e.forked import Forked, run
from tests.e2e.process import Fleet, Penstock, Serve, Simulate

pytestmark = pytest.mark.once

CHAT = "/v1/chat/completions"


async def stream(
    penstock: Penstock, tokens: int, path: str = "/v1/completions", address: str = "127.0.0.1"
) -> tuple[str, str]:
    """One streamed completion: who served it, and its text."""
    body = {"model": "sim-model", "max_tokens": tokens, "stream": True}
    hello = {"messages": [{"role": "user", "content": "hello"}]}
    body |= hello if path == CHAT else {"prompt": "hello"}
    connector = aiohttp.TCPConnector(local_addr=(address, 0))
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.post(f"{penstock.url}{path}", json=body) as answer,
    ):
        assert answer.status == 200
        return answer.headers["x-penstock-backend"], await answer.text()


async def test_status_shows_whether_the_fleet_serves(fleet: Fleet, serve: Serve) -> None:
    servers, penstock = await fleet(2)
    admin = ("--admin", penstock.admin_url)
    told = await run("status", *admin)
    assert told.status == 0
    assert re.search(r"^b0 +default +ready +\S", told.out, re.M)
    assert "\n2 of 2 can serve\nBACKEND " in told.out
    listing = orjson.loads((await run("status", "--json", *admin)).out)
    assert [backend["name"] for backend in listing] == ["b0", "b1"]
    for server in servers:
        server.faults.set("refuse")
    await penstock.until(lambda each: all(b["state"] == "ejected" for b in each), 5)
    told = await run("status", *admin)
    assert told.status == 1
    assert "ejected (unreachable)" in told.out
    assert "\n0 of 2 can serve\nBACKEND " in told.out


async def test_a_suspected_backend_serves_as_a_last_resort(fleet: Fleet, serve: Serve) -> None:
    """It takes requests when nobody else can, so that is what status and /health tell."""
    servers, penstock = await fleet(2, pool={"policy": "round_robin"})
    # Of chats only: deep probes, which two failures in a row bring, pass.
    servers[0].faults.set("cut_before_headers", path=CHAT)
    for number in range(12):  # of several clients: one alone is not believed
        address = f"127.0.0.{1 + number // 2 % 3}"
        assert "[DONE]" in (await stream(penstock, 2, CHAT, address))[1]
    servers[0].faults.clear()
    servers[1].faults.set("refuse")
    await penstock.until(lambda each: all(b["state"] == "ejected" for b in each), 5)
    assert [each["reason"] for each in await penstock.backends()] == ["failing", "unreachable"]
    told = await run("status", "--admin", penstock.admin_url)
    line = "0 of 2 can serve, 1 more only as a last resort"
    assert (told.status, line in told.out.splitlines()) == (0, True)
    async with aiohttp.ClientSession() as session, session.get(f"{penstock.url}/health") as health:
        assert health.status == 200
    assert (await stream(penstock, 2))[0] == "b0"


async def test_drain_waits_and_sends_nothing_new(fleet: Fleet) -> None:
    _, penstock = await fleet(2, profile="steady-50", pool={"policy": "round_robin"})
    admin = ("--admin", penstock.admin_url)
    running = [asyncio.create_task(stream(penstock, 120)) for _ in range(2)]
    await penstock.until(lambda each: all(b["streams"] == 1 for b in each), 5)
    short = await run("drain", "b0", "--wait", "--timeout", "0.1", *admin)
    assert short.status == 1
    assert "not within 0.1 s" in short.err
    waited = await run("drain", "b0", "--wait", *admin)
    assert waited.status == 0
    assert waited.out.endswith("b0: wanted drain, state ready, 0 in flight\n")
    assert all("[DONE]" in text for _, text in await asyncio.gather(*running))
    assert {(await stream(penstock, 2))[0] for _ in range(4)} == {"b1"}
    assert (await run("ready", "b0", "--wait", *admin)).status == 0
    assert {(await stream(penstock, 2))[0] for _ in range(4)} == {"b0", "b1"}


async def test_draining_the_last_backend_warns(fleet: Fleet, serve: Serve) -> None:
    _, penstock = await fleet(2)
    admin = ("--admin", penstock.admin_url)
    assert (await run("drain", "b0", *admin)).err == ""
    for state in ("drain", "maint"):
        told = await run(state, "b1", "--wait", *admin)
        assert told.status == 0
        assert told.err == (
            "penstock: warning: no backend of the pool default can serve now, and new requests "
            "get 503; to go on, run: penstock ready b1\n"
        )
    assert b"".join(penstock.log).count(b"no backend of the pool can serve pool=default") == 1
    told = await run("ready", "b0", "--wait", *admin)
    assert (told.out, told.err) == ("b0: wanted ready, state ready, 0 in flight\n", "")
    assert (await run("drain", "b1", *admin)).err == ""


async def test_wrong_arguments_print_the_commands_usage() -> None:
    for arguments in (("drain", "b0", "b1"), ("status", "b1"), ("config", "schema", "b1")):
        command = " ".join(("penstock", *arguments[:-1])).removesuffix(" b0")
        told = await run(*arguments)
        assert told.status == 2
        assert told.err.startswith(f"usage: {command} [-h]")
        assert told.err.endswith(f"{command}: error: unrecognized arguments: b1\n")


async def test_a_backend_in_maintenance_is_not_probed(fleet: Fleet) -> None:
    servers, penstock = await fleet(2)
    admin = ("--admin", penstock.admin_url)
    await penstock.until(lambda each: each[0]["engine"] is not None, 5)
    assert (await run("maint", "b0", "--wait", *admin)).status == 0
    await asyncio.sleep(0.3)  # for a probe that is on its way
    connections = servers[0].connections_total
    await asyncio.sleep(2.5)  # a dozen intervals, and one of reading its metrics
    assert servers[0].connections_total == connections
    servers[0].faults.set("refuse")
    backend = (await penstock.backends())[0]
    assert (backend["state"], backend["admin_state"]) == ("ready", "maint")
    # Back only as an unknown server is: by a probe.
    short = await run("ready", "b0", "--wait", "--timeout", "0.5", *admin)
    assert short.status == 1
    assert "b0: wanted ready, state starting (unreachable), 0 in flight" in short.err
    servers[0].faults.clear()
    assert (await run("ready", "b0", "--wait", *admin)).status == 0
    assert any(b"backend set to maint name=b0" in line for line in penstock.log)


async def test_errors_of_commands(simulate: Simulate, serve: Serve, tmp_path: Path) -> None:
    (server,) = await simulate()
    (tmp_path / "token").write_text("right\n")
    (tmp_path / "lines").write_text("right\nx-other: 1\n")
    admin = {"host": "127.0.0.1", "port": 0, "token": "right"}
    penstock = await serve([server], admin=admin)
    url = ("--admin", penstock.admin_url)
    for arguments, said in (
        (("status", "--admin", "http://127.0.0.1:9"), "Connection refused"),
        (("status", "--admin", "nonsense://x"), "--admin must be a URL such as"),
        (("status", "--admin", "http://me:s3cret@127.0.0.1:x"), "got '127.0.0.1:x'"),
        (
            ("status", "--admin", "http://me:s3cret@127.0.0.1:9"),
            "port http://127.0.0.1:9: ",
        ),
        (("status", "--admin", penstock.url), "not an admin port of penstock"),
        (("status", "--admin", server.url), "not an admin port of penstock"),
        (("status", *url), "token is missing or wrong"),
        (("status", *url, "--token-file", str(tmp_path / "none")), "cannot read"),
        (("status", *url, "--token-file", str(tmp_path / "lines")), "one line of printable"),
    ):
        told = await run(*arguments)
        assert told.status == 1, arguments
        assert said in told.err, arguments
        assert told.err.count("\n") == 1
        assert "s3cret" not in told.err
    token = ("--token-file", str(tmp_path / "token"))
    unknown = await run("drain", "b7", *url, *token)
    assert unknown.status == 1
    assert "backends: b0." in unknown.err
    port = {"PENSTOCK_ADMIN__PORT": str(penstock.admin_port)}
    for environment in (
        {"PENSTOCK_ADMIN__TOKEN": "right"},
        {"PENSTOCK_ADMIN__TOKEN_FILE": str(tmp_path / "token")},
    ):
        assert (await run("status", environment=port | environment)).status == 0


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


async def test_a_watch_survives_the_proxy(fleet: Fleet, serve: Serve) -> None:
    _, penstock = await fleet(2)
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
