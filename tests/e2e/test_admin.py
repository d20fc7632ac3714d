"""The admin port, the access log, and what the command says when it cannot start."""

import asyncio
import contextlib
import os
import re
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import orjson
import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock.bench.sim.server import SimServer
from tests.e2e.forked import Forked, run
from tests.e2e.process import ROOT, Penstock, Serve, Simulate

COMPLETIONS = "/v1/completions"
PROMPT: dict[str, Any] = {"prompt": "Once upon a time", "max_tokens": 5}


class Got(NamedTuple):
    status: int
    body: bytes

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)


async def fetch(url: str, method: str = "GET", **options: Any) -> Got:
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, url, **options) as answer,
    ):
        return Got(answer.status, await answer.read())


async def complete(penstock: Penstock, **fields: Any) -> Got:
    return await fetch(f"{penstock.url}{COMPLETIONS}", "POST", json=PROMPT | fields)


async def until_logged(penstock: Penstock, count: int) -> list[dict[str, Any]]:
    async with asyncio.timeout(2):
        while len(penstock.access_lines) < count:
            await asyncio.sleep(0.01)
    return penstock.access_lines


# Probes, metrics, state ------------------------------------------------------------------------


async def test_readiness_is_not_the_backends(simulate: Simulate, serve: Serve) -> None:
    """503 would have the proxy restarted, which would not help."""
    (server,) = await simulate()
    penstock = await serve([server])
    for path in ("/livez", "/readyz"):
        assert (await fetch(penstock.admin_url + path)).status == 200
    server.faults.set("refuse")
    await penstock.until(lambda listing: listing[0]["state"] == "ejected", 5)
    assert (await fetch(penstock.url + "/health")).status == 503
    for path in ("/livez", "/readyz"):
        assert (await fetch(penstock.admin_url + path)).status == 200


NAMES = {
    "penstock_requests_total": {"pool", "backend", "code"},
    "penstock_request_duration_seconds_bucket": {"pool", "le"},
    "penstock_time_to_first_token_seconds_bucket": {"pool", "le"},
    "penstock_inter_token_latency_seconds_bucket": {"pool", "le"},
    "penstock_overhead_seconds_bucket": {"le"},
    "penstock_event_loop_lag_seconds_bucket": {"le"},
    "penstock_token_estimate_error_ratio_bucket": {"le"},
    "penstock_backend_queued_prefill_tokens": {"backend"},
    "penstock_backend_active_decode_tokens": {"backend"},
    "penstock_backend_requests_in_flight": {"backend"},
    "penstock_backend_state": {"backend", "state"},
    "penstock_prompt_tokens_total": {"pool"},
    "penstock_completion_tokens_total": {"pool"},
    "penstock_cached_tokens_total": {"pool"},
    "penstock_attempts_total": {"reason"},
    "penstock_client_aborts_total": {"phase"},
    "penstock_stream_failures_total": {"reason"},
    "penstock_build_info": {"version", "build"},
}


async def test_metrics_tell_what_happened(simulate: Simulate, serve: Serve) -> None:
    (server,) = await simulate(profile="steady-50")
    penstock = await serve([server])
    for stream in (True, True, False):
        assert (await complete(penstock, stream=stream)).status == 200
    assert (await complete(penstock, model="none")).status == 404
    assert (await fetch(penstock.url + "/nowhere")).status == 404
    server.faults.set("cut_mid_stream", tokens=2, times=1)
    with pytest.raises(aiohttp.ClientPayloadError):
        await complete(penstock, stream=True)
    server.faults.set("hang_before_headers", times=1)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(complete(penstock), 0.05)
    families = list(text_string_to_metric_families(await penstock.metrics()))
    samples = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }
    labels = {sample.name: set(sample.labels) for f in families for sample in f.samples}
    for name, expected in NAMES.items():
        assert labels.get(name) == expected, name
    reference = (ROOT / "docs" / "metrics.md").read_text()
    for family in families:
        assert re.search(rf"`{family.name}(_total|_info)?`", reference), family.name
    pool = ("pool", "default")
    served = ("penstock_requests_total", ("backend", "b0"))
    assert samples[*served, ("code", "200"), pool] == 4
    assert samples[*served, ("code", "499"), pool] == 1
    unserved = sum(value for key, value in samples.items() if ("code", "404") in key)
    assert unserved == 2
    assert samples["penstock_completion_tokens_total", pool] == 15
    assert samples["penstock_prompt_tokens_total", pool] == 3 * 4
    assert samples["penstock_time_to_first_token_seconds_count", pool] == 3
    assert samples["penstock_inter_token_latency_seconds_count", pool] >= 4  # those read apart
    assert samples["penstock_attempts_total", ("reason", "ok")] == 3
    assert samples["penstock_stream_failures_total", ("reason", "cut")] == 1
    assert samples["penstock_client_aborts_total", ("phase", "prefill")] == 1
    state = ("penstock_backend_state", ("backend", "b0"))
    assert samples[*state, ("state", "ready")] == 1
    assert samples[*state, ("state", "ejected")] == 0
    for gauge in ("queued_prefill_tokens", "active_decode_tokens", "requests_in_flight"):
        assert samples[f"penstock_backend_{gauge}", ("backend", "b0")] == 0


async def test_the_listing_of_backends(simulate: Simulate, serve: Serve) -> None:
    (server,) = await simulate(profile="steady-50")
    penstock = await serve([server])
    asked = asyncio.create_task(complete(penstock, stream=True, max_tokens=30))
    await penstock.until(lambda listing: listing[0]["active_decode_tokens"] > 8, 2)
    (backend,) = await penstock.backends()
    assert {name: backend[name] for name in ("name", "url", "pool", "state", "reason")} == {
        "name": "b0",
        "url": server.url,
        "pool": "default",
        "state": "ready",
        "reason": "",
    }
    assert (backend["admin_state"], backend["weight"]) == ("ready", 1.0)
    assert (backend["requests_in_flight"], backend["streams"]) == (1, 1)
    assert backend["queued_prefill_tokens"] == 0
    assert 8 < backend["active_decode_tokens"] <= 40
    assert (backend["requests_total"], backend["failures_total"]) == (1, 0)
    for level in ("live", "ready"):
        assert backend["last_probe"][level]["passed"] is True
    assert (await asked).status == 200


async def test_the_ports_are_apart(simulate: Simulate, serve: Serve) -> None:
    (server,) = await simulate()
    penstock = await serve([server])
    for path in ("/metrics", "/livez", "/readyz", "/api/v1/backends", "/ui"):
        got = await fetch(penstock.url + path)
        assert (got.status, got.json["error"]["code"]) == (404, "unknown_path")
    assert (await fetch(penstock.admin_url + "/v1/models")).status == 404
    for path in (
        "/livez",
        "/metrics",
        "/api/v1/backends",
    ):  # changes by POST only, and of these none
        assert (await fetch(penstock.admin_url + path, "POST")).status == 405
    assert not server.seen


# Tokens ----------------------------------------------------------------------------------------


async def listening_line(stderr: asyncio.StreamReader) -> str:
    """The line that tells the ports; a warning about the machine's limits may come before."""
    async with asyncio.timeout(10):
        while "listening on" not in (line := (await stderr.readline()).decode()):
            assert line, "it ended"
    return line.strip()


@asynccontextmanager
async def guarded(
    tmp_path: Path, server: SimServer, host: str, token: str | None
) -> AsyncIterator[str]:
    """A proxy whose admin port may need a token; yields the admin port's address."""
    admin: dict[str, Any] = {"host": host, "port": 0}
    if token is not None:
        (tmp_path / "token").write_text(token + "\n")
        admin["token_file"] = "token"
    settings = {
        "listen": {"host": "127.0.0.1", "port": 0},
        "admin": admin,
        "pools": [{"name": "p", "backends": [{"name": "b0", "url": server.url}]}],
        "drain": {"grace_s": 0},
    }
    path = tmp_path / "penstock.yaml"
    path.write_bytes(orjson.dumps(settings))
    process = await Forked.start(("serve", "--config", str(path)))
    try:
        line = await listening_line(process.stderr)
        found = re.search(r"admin on .*:(\d+)$", line)
        assert found, line
        yield f"http://127.0.0.1:{found[1]}"
    finally:
        process.terminate()
        _, stderr = await process.communicate()
    assert process.returncode == 0
    assert token is None or token.encode() not in stderr


async def test_off_loopback_only_probes_and_metrics_are_open(
    simulate: Simulate, tmp_path: Path
) -> None:
    (server,) = await simulate()
    async with guarded(tmp_path, server, "0.0.0.0", "s3cret-token") as url:
        for path in ("/", "/livez", "/readyz", "/metrics"):
            assert (await fetch(url + path)).status in (200, 503)
        # The address, the version and the fleet are for who has the token.
        index = (await fetch(url + "/")).body
        assert b"/api/v1/backends" in index
        assert not any(word in index for word in (b"127.0.0.1", b"b0", b"0.1.0", b"s3cret"))
        for given in (None, "Bearer wrong", "s3cret-toke", "Bearer ", "Bearer s3cret-token x"):
            headers = {"authorization": given} if given else {}
            for path in ("/api/v1/backends", "/api/v1/proxy", "/nowhere", "//api/v1/backends"):
                got = await fetch(url + path, headers=headers)
                assert (got.status, got.json["error"]["code"]) == (401, "unauthorized")
        right = {"authorization": "Bearer s3cret-token"}
        assert len((await fetch(f"{url}/api/v1/backends", headers=right)).json) == 1


async def test_a_head_that_cannot_be_read_is_not_logged(simulate: Simulate, serve: Serve) -> None:
    """A token from a file with Windows line ends is a malformed head, and still a secret."""
    penstock = await serve(await simulate())
    for end in (b"\r", b"\x00", b"\x01"):
        reader, writer = await asyncio.open_connection("127.0.0.1", penstock.admin_port)
        secret = b"authorization: Bearer tok-canary" + end
        writer.write(b"GET /api/v1/backends HTTP/1.1\r\nhost: x\r\n%b\r\n\r\n" % secret)
        await asyncio.wait_for(reader.read(), 5)
        writer.close()
    assert (await fetch(f"{penstock.admin_url}/livez")).status == 200
    assert not any(b"canary" in line or b"Traceback" in line for line in penstock.log)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "penstock.example"])
async def test_off_loopback_it_does_not_start_without_a_token(tmp_path: Path, host: str) -> None:
    flags = ("--backend", "http://127.0.0.1:9", "--port", "0", "--admin-port", "0")
    ran = await run("serve", *flags, "--admin-host", host)
    assert ran.status == 2
    assert ran.err == (
        "flag --admin-host: admin.token: must be given, here or by token_file, while admin.host is"
        f" {host}: only a loopback address needs none\n"
    )


async def test_a_token_guards_on_loopback_too(simulate: Simulate, tmp_path: Path) -> None:
    (server,) = await simulate()
    async with guarded(tmp_path, server, "127.0.0.1", "s3cret-token") as url:
        assert (await fetch(f"{url}/api/v1/backends")).status == 401
        assert (await fetch(f"{url}/livez")).status == 200


# The access log --------------------------------------------------------------------------------


async def test_a_line_for_every_request(simulate: Simulate, serve: Serve) -> None:
    (server,) = await simulate()
    penstock = await serve([server])
    url, headers = penstock.url + COMPLETIONS, {"x-request-id": "id-1"}
    await fetch(f"{url}?key=k", "POST", json=PROMPT | {"stream": True}, headers=headers)
    await fetch(f"{penstock.url}/nowhere")
    await fetch(url, "POST", data=b"[]")
    server.faults.set("cut_mid_stream", tokens=2)
    with pytest.raises(aiohttp.ClientPayloadError):
        await complete(penstock, stream=True)
    served, unknown, bad, broken = await until_logged(penstock, 4)
    assert (served["request_id"], served["client"]) == ("id-1", "127.0.0.1")
    assert (served["method"], served["path"]) == ("POST", COMPLETIONS)
    assert (served["status"], served["whole"], served["error"]) == (200, True, None)
    assert (served["backend"], served["attempts"], served["stream"]) == ("b0", 1, True)
    assert (served["prompt_tokens"], served["completion_tokens"]) == (4, 5)
    assert 0 < served["ttft_ms"] <= served["duration_ms"] < 2_000
    assert served["bytes"] > 500
    assert (unknown["status"], unknown["error"], unknown["path"]) == (
        404,
        "unknown_path",
        None,  # a client's text: it may hold anything
    )
    assert (bad["status"], bad["error"]) == (400, "invalid_request")
    assert (broken["status"], broken["whole"], broken["error"]) == (200, False, "stream_broken")
    assert len({line["request_id"] for line in penstock.access_lines}) == 4


async def test_an_access_log_switched_off(simulate: Simulate, serve: Serve) -> None:
    penstock = await serve(await simulate(), log={"access": False})
    assert (await complete(penstock)).status == 200
    await penstock.until_at_rest()
    assert await penstock.stop() == 0
    assert not penstock.access_lines


async def test_an_access_log_that_nobody_reads_stops_nothing(
    simulate: Simulate, tmp_path: Path
) -> None:
    """A full pipe: lines are lost, requests are not."""
    (server,) = await simulate()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "proxy", "serve", "--backend", server.url),
        *("--host", "127.0.0.1", "--port", "0", "--admin-port", "0"),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=1,
    )
    assert process.stderr is not None
    try:
        lines = ""
        async with asyncio.timeout(30):
            while not (found := re.search(r"listening on [^ ]*:(\d+),", lines)):
                lines += (await process.stderr.read(200)).decode()
        url = f"http://127.0.0.1:{found[1]}/{'x' * 4_000}"
        async with asyncio.timeout(20), aiohttp.ClientSession() as session:
            for _ in range(400):
                async with session.get(url) as answer:
                    assert answer.status == 404
    finally:
        process.kill()
        await process.communicate()


def fill(pipe: int) -> None:
    """Leave no room in a pipe whose other writers may wait for it."""
    own = os.open(f"/proc/self/fd/{pipe}", os.O_WRONLY | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(own, b"x")
    os.close(own)


async def test_a_log_that_nobody_reads_stops_nothing(simulate: Simulate) -> None:
    (server,) = await simulate()
    reads, writes = os.pipe()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "proxy", "serve", "--backend", server.url),
        *("--host", "127.0.0.1", "--port", "0", "--admin-port", "0"),
        cwd=ROOT,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=writes,
    )
    try:
        lines = b""
        async with asyncio.timeout(30):
            while not (found := re.search(rb"listening on [^ ]*:(\d+), admin on .*:(\d+)", lines)):
                lines += await asyncio.to_thread(os.read, reads, 65_536)
        url, admin = (f"http://127.0.0.1:{int(port)}" for port in found.groups())
        fill(writes)
        async with asyncio.timeout(30):
            for state in ("drain", "ready") * 10:
                changed = await fetch(f"{admin}/api/v1/backends/b0/{state}", "POST")
                assert changed.status == 200
            assert (await fetch(f"{url}/health")).status == 200
        while b"backend set to ready" not in lines:
            lines = lines[-100:] + await asyncio.to_thread(os.read, reads, 65_536)
    finally:
        process.kill()
        await process.wait()
        os.close(reads)
        os.close(writes)


# What cannot start -----------------------------------------------------------------------------

BAD = """\
listen: {host: 0.0.0.0, port: 80800}
admin: {token: "s3cret token with spaces"}
pools:
  - name: chat
    policy: least_token
    backends:
      - {name: b, url: "ftp://10.0.0.1:8000"}
      - {name: b, url: "http://10.0.0.2:8000", wieght: 2}
timeouts: {connect_s: -1, frist_byte_s: 3}
limits: {body_bytes: "many"}
"""
COMPLAINTS = {
    1: "listen.port",
    2: "admin.token",
    5: "pools[0].policy",
    7: "pools[0].backends[0].url",
    8: "pools[0].backends[1].wieght",
    9: "timeouts.connect_s",
    10: "limits.body_bytes",
}


@pytest.mark.parametrize("command", [("serve", "--config"), ("check",)])
async def test_a_bad_configuration_is_told_whole(tmp_path: Path, command: tuple[str, ...]) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(BAD)
    status, _, said = await run(*command, str(path))
    assert status == 2
    for line, key in COMPLAINTS.items():
        assert f"{path}:{line}: {key}: " in said, said
    assert f"{path}:9: timeouts.frist_byte_s: unknown key; did you mean first_byte_s?" in said
    assert '"ftp://10.0.0.1:8000"' in said
    assert "80,800" in said or "80800" in said
    assert "did you mean least_tokens?" in said
    assert "s3cret" not in said


@pytest.mark.parametrize("content", [None, "pools: [", "", "- 1", "pools: \xff", "\x00"])
async def test_a_file_that_is_no_configuration(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "bad.yaml"
    if content is not None:
        path.write_bytes(content.encode("latin-1"))
    status, _, said = await run("serve", "--config", str(path))
    assert status == 2
    assert "bad.yaml" in said


@pytest.mark.parametrize("port", ["listen", "admin"])
async def test_a_port_that_is_taken(simulate: Simulate, tmp_path: Path, port: str) -> None:
    (server,) = await simulate()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = str(taken.getsockname()[1])
        ports = ["--port", "0", "--admin-port", number]
        if port == "listen":
            ports = ["--port", number, "--admin-port", "0"]
        hosts = ["--host", "127.0.0.1", "--admin-host", "127.0.0.1"]
        status, _, said = await run("serve", "--backend", server.url, *hosts, *ports)
    assert status == 1
    assert "in use" in said
    assert number in said, said
