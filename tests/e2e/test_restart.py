"""Restarts on a socket that the process inherits: no connection is lost between two processes."""

import asyncio
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import aiohttp
import orjson
import pytest

from penstock.bench.sim.server import SimServer
from tests.e2e.process import ROOT, Simulate
from tests.e2e.traffic import Traffic

# As many for the figures: `make reloads`.
RESTARTS = int(os.environ.get("TEST_RESTARTS", "3"))
GRACE_S: Final = 0.3

# What a service manager does between fork and exec (sd_listen_fds(3)).
HAND_OVER: Final = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1", LISTEN_FDNAMES="data")
os.execv(sys.executable, [sys.executable, "-m", "proxy", *sys.argv[2:]])
"""


class Manager:
    """Holds a listening socket and starts processes on it."""

    def __init__(self, config: Path, sock: socket.socket) -> None:
        self._config = config
        self.sock = sock
        self.url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        self.log = b""
        self._processes: list[asyncio.subprocess.Process] = []

    async def start(self) -> asyncio.subprocess.Process:
        """One more process, once it accepts."""
        process = await self.spawn()
        assert process.stderr is not None
        async with asyncio.timeout(30):
            while b"listening on" not in (line := await process.stderr.readline()):
                self.log += line
                assert line, self.log.decode()
        self.log += line
        return process

    async def spawn(self) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", HAND_OVER, str(self.sock.fileno())),
            *("serve", "--config", str(self._config)),
            cwd=ROOT,
            pass_fds=(self.sock.fileno(),),
            stderr=asyncio.subprocess.PIPE,
        )
        self._processes.append(process)
        return process

    async def stop(self, process: asyncio.subprocess.Process) -> None:
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(20):
            _, said = await process.communicate()
        self.log += said
        assert process.returncode == 0, self.log.decode()

    async def close(self) -> None:
        for process in self._processes:
            if process.returncode is None:
                process.kill()
                await process.wait()
        self.sock.close()


@pytest.fixture
async def servers(simulate: Simulate) -> list[SimServer]:
    return await simulate(2)


@pytest.fixture
async def manager(tmp_path: Path, servers: list[SimServer]) -> AsyncIterator[Manager]:
    backends = [{"name": f"b{i}", "url": server.url} for i, server in enumerate(servers)]
    settings = {
        "listen": {"port": 1},  # not asked for: the socket is there
        "admin": {"port": 0},
        "pools": [{"name": "default", "backends": backends}],
        "health": {"interval_s": 0.2, "deep": {"interval_s": 600}},
        "drain": {"grace_s": GRACE_S, "timeout_s": 10},
        "log": {"access": False},
    }
    path = tmp_path / "penstock.yaml"
    path.write_bytes(orjson.dumps(settings))
    sock = socket.create_server(("127.0.0.1", 0), backlog=4096)
    manager = Manager(path, sock)
    yield manager
    await manager.close()
    assert b"Traceback" not in manager.log, manager.log.decode()


async def test_restarts_under_load_lose_nothing(manager: Manager) -> None:
    """In turn: the next one starts before the last one ends, and only after it has ended."""
    process = await manager.start()
    async with Traffic(manager.url) as traffic:
        for number in range(RESTARTS):
            await traffic.until(traffic.whole + 50)
            if number % 2:
                await manager.stop(process)
                process = await manager.start()
            else:
                before, process = process, await manager.start()
                await manager.stop(before)
        await traffic.until(traffic.whole + 50)
    print(f"{RESTARTS} restarts, {traffic.whole} requests, {len(traffic.failed)} failed")
    assert not traffic.failed
    await manager.stop(process)
    assert f"listening on {manager.url.removeprefix('http://')}".encode() in manager.log


async def test_connections_wait_while_nobody_accepts(manager: Manager) -> None:
    """What came after the last process stopped accepting is answered by the next."""
    await manager.stop(await manager.start())
    async with aiohttp.ClientSession() as session:
        asked = asyncio.create_task(session.get(f"{manager.url}/v1/models"))
        await asyncio.sleep(0.2)
        assert not asked.done()
        process = await manager.start()
        async with await asyncio.wait_for(asked, 5) as answer:
            assert answer.status == 200
            assert b"sim-model" in await answer.read()  # it accepted after its first looks
    await manager.stop(process)


async def test_who_was_accepted_last_is_served(manager: Manager) -> None:
    """A connection made in the grace whose request comes after it."""
    process = await manager.start()
    port = manager.sock.getsockname()[1]
    kept, kept_writer = await asyncio.open_connection("127.0.0.1", port)
    kept_writer.write(b"HEAD /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b"connection: close" not in (await kept.readuntil(b"\r\n\r\n")).lower()
    process.send_signal(signal.SIGTERM)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    await asyncio.sleep(GRACE_S + 0.3)
    for each_reader, each_writer in ((reader, writer), (kept, kept_writer)):
        each_writer.write(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
        got = await asyncio.wait_for(each_reader.read(), 5)
        assert b"HTTP/1.1 200 OK" in got
        assert b"connection: close" in got
        each_writer.transport.abort()
    await asyncio.wait_for(process.communicate(), 5)
    assert process.returncode == 0


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_UNIX])
async def test_what_is_no_listening_socket_is_refused(
    manager: Manager, tmp_path: Path, family: socket.AddressFamily
) -> None:
    given = socket.socket(family)
    if family is socket.AF_UNIX:
        given.bind(str(tmp_path / "socket"))
        given.listen()
    held, manager.sock = manager.sock, given
    process = await manager.spawn()
    _, said = await asyncio.wait_for(process.communicate(), 20)
    manager.sock = held
    given.close()
    assert process.returncode == 1
    assert re.search(rb"inherited descriptor 3 is not a listening TCP socket", said), said
