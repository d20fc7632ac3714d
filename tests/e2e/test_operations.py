"""What operators do: the commands against a running proxy, changes by POST, systemd, metrics."""

import asyncio
import re
import shutil
import socket
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from penstock.bench.sim.server import SimServer
from tests.e2e.forked import run
from tests.e2e.process import Penstock, Serve, Simulate


async def ask(
    penstock: Penstock, path: str, method: str = "GET", **headers: str
) -> tuple[int, Any]:
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, penstock.admin_url + path, headers=headers) as answer,
    ):
        return answer.status, orjson.loads(await answer.read())


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


# Commands --------------------------------------------------------------------------------------


async def test_status_tells_the_fleet_and_whether_it_serves(
    simulate: Simulate, serve: Serve
) -> None:
    servers: list[SimServer] = await simulate(2)
    penstock = await serve(servers)
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


async def test_status_tells_that_the_last_reload_failed(simulate: Simulate, serve: Serve) -> None:
    penstock = await serve(await simulate())
    good = penstock.config.read_bytes()
    assert (await penstock.reload(log={"level": "loud"}))[0] == 422
    told = await run("status", "--admin", penstock.admin_url)
    assert told.status == 0
    failed = r"^The last reload failed \d+ s ago, .*; the previous configuration is still in use:$"
    assert re.search(failed, told.out, re.M)
    assert re.search(r"^  \S+:1: log.level: must be one of .*got \"loud\"$", told.out, re.M)
    penstock.config.write_bytes(good)
    assert (await penstock.reload())[0] == 200
    told = await run("status", "--admin", penstock.admin_url)
    assert re.search(r"^The last reload succeeded \d+ s ago, \d", told.out, re.M)
    assert "log.level" not in told.out


async def test_status_tells_that_the_proxy_drains(simulate: Simulate, serve: Serve) -> None:
    (server,) = await simulate(profile="default")
    penstock = await serve([server], drain={"grace_s": 30, "timeout_s": 5})
    penstock.process.terminate()
    async with asyncio.timeout(5):
        while (await ask(penstock, "/readyz"))[0] == 200:
            await asyncio.sleep(0.02)
    told = await run("status", "--admin", penstock.admin_url)
    assert told.status == 1
    assert re.search(r"^Proxy draining, up \d+ s since ", told.out, re.M)
    assert "\nThis proxy is draining: it is not ready" in told.out
    assert (await ask(penstock, "/api/v1/proxy"))[1]["state"] == "draining"
    assert await penstock.stop() == 0  # a second signal ends the grace


async def test_a_backend_out_on_suspicion_can_serve(simulate: Simulate, serve: Serve) -> None:
    """It takes requests when nobody else can, so that is what status and /health tell."""
    servers: list[SimServer] = await simulate(2)
    penstock = await serve(servers, pool={"policy": "round_robin"})
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
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{penstock.url}/health") as health,
    ):
        assert health.status == 200
    assert (await stream(penstock, 2))[0] == "b0"


async def test_drain_waits_for_what_runs_and_sends_nothing_new(
    simulate: Simulate, serve: Serve
) -> None:
    servers: list[SimServer] = await simulate(2, profile="steady-50")
    penstock = await serve(servers, pool={"policy": "round_robin"})
    admin = ("--admin", penstock.admin_url)
    running = [asyncio.create_task(stream(penstock, 250)) for _ in range(2)]
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


async def test_who_waits_is_told_that_somebody_else_set_it(
    simulate: Simulate, serve: Serve
) -> None:
    penstock = await serve(await simulate(2, profile="steady-50"), pool={"policy": "round_robin"})
    admin = ("--admin", penstock.admin_url)
    running = [asyncio.create_task(stream(penstock, 250)) for _ in range(2)]
    await penstock.until(lambda each: all(b["streams"] == 1 for b in each), 5)
    waiting = asyncio.create_task(run("drain", "b0", "--wait", *admin))
    await penstock.until(lambda each: each[0]["admin_state"] == "drain", 10)
    await ask(penstock, "/api/v1/backends/b0/ready", "POST")
    waited = await waiting
    assert waited.status == 1
    assert "somebody else has set it: b0: wanted ready" in waited.err
    await asyncio.gather(*running)


async def test_draining_the_last_backend_of_a_pool_warns(simulate: Simulate, serve: Serve) -> None:
    penstock = await serve(await simulate(2))
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


async def test_a_wrong_argument_is_told_with_the_commands_own_usage() -> None:
    for arguments in (("drain", "b0", "b1"), ("status", "b1"), ("config", "schema", "b1")):
        command = " ".join(("penstock", *arguments[:-1])).removesuffix(" b0")
        told = await run(*arguments)
        assert told.status == 2
        assert told.err.startswith(f"usage: {command} [-h]")
        assert told.err.endswith(f"{command}: error: unrecognized arguments: b1\n")


async def test_maintenance_is_not_probed(simulate: Simulate, serve: Serve) -> None:
    servers: list[SimServer] = await simulate(2)
    penstock = await serve(servers)
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


async def test_what_goes_wrong_is_said(
    simulate: Simulate, serve: Serve, tmp_path: Path, unused_tcp_port: int
) -> None:
    (server,) = await simulate()
    (tmp_path / "token").write_text("right\n")
    (tmp_path / "lines").write_text("right\nx-other: 1\n")
    admin = {"host": "127.0.0.1", "port": 0, "token": "right"}
    penstock = await serve([server], admin=admin)
    url = ("--admin", penstock.admin_url)
    for arguments, said in (
        (("status", "--admin", f"http://127.0.0.1:{unused_tcp_port}"), "Connection refused"),
        (("status", "--admin", "nonsense://x"), "--admin must be a URL such as"),
        (("status", "--admin", "http://127.0.0.1:x"), "--admin must be a URL such as"),
        (("status", "--admin", "http://[::1"), "--admin must be a URL such as"),
        (("status", "--admin", "http://me:s3cret@127.0.0.1:x"), "got '127.0.0.1:x'"),
        (
            ("status", "--admin", f"http://me:s3cret@127.0.0.1:{unused_tcp_port}"),
            f"port http://127.0.0.1:{unused_tcp_port}: ",
        ),
        (("status", "--admin", penstock.url), "not an admin port of penstock"),
        (("status", "--admin", server.url), "not an admin port of penstock"),
        (("status", *url), "token is missing or wrong"),
        (("status", *url), f"is {penstock.admin_url} the admin port?)"),
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


@pytest.fixture
def unused_tcp_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


# Changes by POST -------------------------------------------------------------------------------


async def test_no_web_page_changes_or_reads_anything(simulate: Simulate, serve: Serve) -> None:
    """A browser on this machine shows pages of others; they must not reach the admin port."""
    penstock = await serve(await simulate())
    drain = "/api/v1/backends/b0/drain"
    for path, method, headers in (
        (drain, "POST", {"Origin": "http://evil.example"}),
        (drain, "POST", {"Origin": "null"}),
        (drain, "POST", {"Host": "evil.example"}),
        ("/api/v1/config", "GET", {"Host": "evil.example:9321"}),
        ("/api/v1/backends", "GET", {"Origin": penstock.admin_url}),
    ):
        status, said = await ask(penstock, path, method, **headers)
        assert (status, said["error"]["code"]) == (403, "forbidden"), (path, headers)
    assert (await penstock.backends())[0]["admin_state"] == "ready"
    assert (await ask(penstock, "/livez", Host="evil.example"))[0] == 200


async def test_only_post_changes_and_refusals_are_json(simulate: Simulate, serve: Serve) -> None:
    penstock = await serve(await simulate())
    status, said = await ask(penstock, "/api/v1/backends/b0/drain")
    assert (status, said["error"]) == (
        405,
        {
            "message": "This path takes POST.",
            "type": "invalid_request_error",
            "param": None,
            "code": "method_not_allowed",
        },
    )
    status, said = await ask(penstock, "/api/v1/backends/b0/explode", "POST")
    assert (status, said["error"]["code"]) == (404, "unknown_path")
    status, said = await ask(penstock, "/api/v1/backends/b9/drain", "POST")
    assert (status, said["error"]["code"]) == (404, "unknown_backend")
    status, said = await ask(penstock, "/api/v1/backends/b0/drain", "POST")
    assert (status, said["admin_state"]) == (200, "drain")


async def test_the_configuration_is_told_without_its_secrets(
    simulate: Simulate, serve: Serve, tmp_path: Path
) -> None:
    (tmp_path / "key").write_text("sk-canary")
    penstock = await serve(
        await simulate(), pool={"api_key_file": str(tmp_path / "key"), "policy": "round_robin"}
    )
    status, config = await ask(penstock, "/api/v1/config")
    assert status == 200
    assert config["settings"]["pools"][0]["policy"] == "round_robin"
    assert config["origins"]["drain.timeout_s"] == "file:1"
    assert config["origins"]["timeouts.idle_s"] == "default"
    assert "sk-canary" not in orjson.dumps(config).decode()


# systemd, logs, metrics ------------------------------------------------------------------------


@pytest.mark.parametrize("abstract", [False, True])
async def test_systemd_is_told(
    simulate: Simulate, serve: Serve, tmp_path: Path, abstract: bool
) -> None:
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + path if abstract else path)
        manager.setblocking(False)
        environment = {"NOTIFY_SOCKET": "@" + path if abstract else path}
        penstock = await serve(await simulate(), environment=environment)
        ready = manager.recv(4_096).decode().split("\n")
        assert ready[0] == "READY=1"
        assert f"port {penstock.port}," in ready[1]
        assert await penstock.stop() == 0
        assert manager.recv(4_096).startswith(b"STOPPING=1\nSTATUS=")


async def test_no_service_manager_is_in_the_way(simulate: Simulate, serve: Serve) -> None:
    environment = {"NOTIFY_SOCKET": "/nowhere/notify"}
    penstock = await serve(await simulate(), environment=environment)
    assert (await ask(penstock, "/readyz"))[0] == 200
    assert any(b"systemd not notified error=ENOENT" in line for line in penstock.log)


async def test_log_lines_begin_with_their_time(simulate: Simulate, serve: Serve) -> None:
    penstock = await serve(await simulate())
    assert len(penstock.log) > 1
    for line in penstock.log:
        assert re.match(
            rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (INFO|WARNING) [a-z_.]+ ", line
        ), line
        assert b" penstock." not in line  # every module's name would begin with it


async def test_sheds_are_counted(simulate: Simulate, serve: Serve) -> None:
    penstock = await serve(await simulate(), limits={"body_bytes": 1024, "bodies_bytes": 1024})
    body = b'{"prompt":"%b"}' % (b"x" * 900)
    async with aiohttp.ClientSession() as session:

        async def halves() -> Any:
            yield body[:900]
            async with session.post(f"{penstock.url}/v1/completions", data=body) as second:
                assert second.status == 429
            yield body[900:]

        async with session.post(
            f"{penstock.url}/v1/completions",
            data=halves(),
            headers={"content-type": "application/json"},
        ) as first:
            assert first.status == 200
    metrics = await penstock.metrics()
    assert 'penstock_shed_total{priority="0",reason="bodies"} 1.0' in metrics
    assert "penstock_config_reload_success 1.0" in metrics
    assert "# TYPE penstock_queue_wait_seconds histogram" in metrics
    assert 'penstock_backend_admin_state{admin_state="ready",backend="b0"} 1.0' in metrics


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool (Debian: prometheus)")
async def test_promtool_finds_no_fault(simulate: Simulate, serve: Serve) -> None:
    penstock = await serve(await simulate())
    for _ in range(3):
        await stream(penstock, 4)
    process = await asyncio.create_subprocess_exec(
        *("promtool", "check", "metrics"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await process.communicate((await penstock.metrics()).encode())
    assert (process.returncode, out.decode()) == (0, "")
