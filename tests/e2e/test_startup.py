"""What a process says when it starts, cannot start, or nobody reads its logs."""

import asyncio
import contextlib
import json
import os
import re
import socket
import sys
from pathlib import Path

import aiohttp
import pytest

from penstock.bench.sim.server import SimServer
from tests.e2e.forked import Forked, run
from tests.e2e.process import ROOT, Fleet, Serve, Simulate
from tests.e2e.request import fetch
from tests.e2e.told import FakeExporter

pytestmark = pytest.mark.once


async def test_off_loopback_a_token_is_required() -> None:
    flags = ("--backend", "http://127.0.0.1:9", "--port", "0", "--admin-port", "0")
    for host in ("0.0.0.0", "::", "192.0.2.1", "penstock.example"):
        ran = await run("serve", *flags, "--admin-host", host)
        assert (ran.status, ran.err) == (
            2,
            "flag --admin-host: admin.token: must be given, here or by token_file, while admin.host"
            f" is {host}: only a loopback address needs none\n",
        )


async def test_an_unread_access_log_stops_nothing(simulate: Simulate) -> None:
    """A full pipe: lines are lost, requests are not."""
    process = await Forked.start(serve_flags(await simulate()))
    try:
        lines = b""
        async with asyncio.timeout(30):
            while not (found := LISTENING.search(lines)):
                lines += await process.stderr.readline()
        url = f"http://127.0.0.1:{int(found[1])}/{'x' * 4_000}"
        async with asyncio.timeout(20), aiohttp.ClientSession() as session:
            for _ in range(400):
                async with session.get(url) as answer:
                    assert answer.status == 404
    finally:
        process.kill()
        await process.communicate()


LISTENING = re.compile(rb"listening on [^ ]*:(\d+), admin on .*:(\d+)")


def serve_flags(servers: list[SimServer]) -> tuple[str, ...]:
    ports = ("--host", "127.0.0.1", "--port", "0", "--admin-port", "0")
    return ("serve", "--backend", servers[0].url, *ports)


def fill(pipe: int) -> None:
    """Leave no room in a pipe whose other writers may wait for it."""
    own = os.open(f"/proc/self/fd/{pipe}", os.O_WRONLY | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(own, b"x")
    os.close(own)


async def test_an_unread_log_stops_nothing(simulate: Simulate) -> None:
    reads, writes = os.pipe()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "proxy", *serve_flags(await simulate())),
        cwd=ROOT,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=writes,
    )
    try:
        lines = b""
        async with asyncio.timeout(30):
            while not (found := LISTENING.search(lines)):
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


async def test_a_port_that_is_taken(simulate: Simulate) -> None:
    command = (*serve_flags(await simulate()), "--admin-host", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = str(taken.getsockname()[1])
        for flag in ("--port", "--admin-port"):
            ran = await run(*command, flag, number)
            assert ran.status == 1
            assert "in use" in ran.err
            assert number in ran.err


async def test_systemd_is_notified(simulate: Simulate, serve: Serve, tmp_path: Path) -> None:
    servers, path = await simulate(), str(tmp_path / "notify")
    for bound, told in ((path, path), ("\0" + path, "@" + path)):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(bound)
            manager.setblocking(False)
            penstock = await serve(servers, environment={"NOTIFY_SOCKET": told})
            ready = manager.recv(4_096).decode().split("\n")
            assert ready[0] == "READY=1"
            assert f"port {penstock.port}," in ready[1]
            assert await penstock.stop() == 0
            assert manager.recv(4_096).startswith(b"STOPPING=1\nSTATUS=")


async def test_a_missing_service_manager_stops_nothing(fleet: Fleet) -> None:
    environment = {"NOTIFY_SOCKET": "/nowhere/notify"}
    _, penstock = await fleet(environment=environment)
    assert (await penstock.ask_admin("/readyz"))[0] == 200
    assert any(b"systemd not notified error=ENOENT" in line for line in penstock.log)


async def test_log_lines_begin_with_their_time(fleet: Fleet) -> None:
    _, penstock = await fleet()
    assert len(penstock.log) > 1
    for line in penstock.log:
        assert re.match(
            rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (INFO|WARNING) [a-z_.]+ ", line
        ), line
        assert b" penstock." not in line  # every module's name would begin with it


async def test_far_too_few_descriptors_stop_the_start() -> None:
    process = await Forked.start(
        ("serve", "--port", "0", "--backend", "http://127.0.0.1:9"), None, 64
    )
    _, said = await process.communicate()
    assert process.returncode == 1
    assert b"64 file descriptors are too few to serve anybody; raise the limit to" in said
    assert b"Traceback" not in said


async def healthcheck(admin_port: int, **environment: str) -> int:
    """Run the image's own HEALTHCHECK; returns its exit status."""
    found = re.search(r"^HEALTHCHECK[^[]*CMD (\[.*\])$", (ROOT / "Dockerfile").read_text(), re.M)
    assert found
    python, *arguments = json.loads(found[1])
    assert python == "python"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *arguments),
        env=os.environ | {"PENSTOCK_ADMIN__PORT": str(admin_port)} | environment,
        stderr=asyncio.subprocess.DEVNULL,
    )
    return await process.wait()


async def test_the_images_health_check_ignores_the_fleet(fleet: Fleet) -> None:
    (server,), penstock = await fleet()
    assert await healthcheck(penstock.admin_port) == 0
    # A container's proxy for outgoing requests is not for this one.
    assert await healthcheck(penstock.admin_port, http_proxy="http://127.0.0.1:9") == 0
    await server.stop()
    await penstock.until_ready(0)
    assert await healthcheck(penstock.admin_port) == 0


async def test_the_images_health_check_needs_a_200(exporter: FakeExporter) -> None:
    for exporter.answer in (b"", b"HTTP/1.1 503 Service Unavailable\r\n\r\n"):
        assert await healthcheck(int(exporter.url.rpartition(":")[2])) != 0
