"""Restarts on an inherited socket and under the supervisor: no client notices."""

import asyncio
import contextlib
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import aiohttp
import orjson
import pytest

from penstock.bench.sim.server import SimServer
from tests.e2e.forked import run
from tests.e2e.process import ROOT, Fleet, Penstock, Simulate, pool_of, until
from tests.e2e.request import fetch
from tests.e2e.traffic import Traffic

# As many for the figures: `make reloads`.
RESTARTS = int(os.environ.get("TEST_RESTARTS", "3"))
# What a service manager does between fork and exec (sd_listen_fds(3)).
HAND_OVER: Final = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1", LISTEN_FDNAMES="data")
os.execv(sys.executable, [sys.executable, "-m", "proxy", *sys.argv[2:]])
"""


SERVES: Final = re.compile(rb"process (\d+) serves")
FLAGS: Final = ("-m", "proxy", "serve", "--supervised", "--config")


async def spawn(*arguments: str, **options: Any) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, *arguments, cwd=ROOT, stderr=asyncio.subprocess.PIPE, **options
    )


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
        command = ("-c", HAND_OVER, str(self.sock.fileno()), "serve", "--config", str(self._config))
        self._processes.append(await spawn(*command, pass_fds=(self.sock.fileno(),)))
        return self._processes[-1]

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
async def backends(simulate: Simulate) -> dict[str, SimServer]:
    return {f"b{i}": server for i, server in enumerate(await simulate(2))}


def written(folder: Path, backends: dict[str, SimServer], port: int) -> Path:
    settings = {
        "listen": {"host": "127.0.0.1", "port": port},
        "admin": {"port": 0},
        "pools": [pool_of("default", backends)],
        "health": {"interval_s": 0.2, "deep": {"interval_s": 600}},
        "drain": {"grace_s": 0.3, "timeout_s": 20},
        "log": {"access": False},
        "state": {"dir": str(folder / "state")},
    }
    path = folder / "penstock.yaml"
    path.write_bytes(orjson.dumps(settings))
    return path


@pytest.fixture
async def manager(tmp_path: Path, backends: dict[str, SimServer]) -> AsyncIterator[Manager]:
    config = written(tmp_path, backends, 1)  # not asked for: the socket is there
    manager = Manager(config, socket.create_server(("127.0.0.1", 0), backlog=4096))
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


async def test_connections_wait_for_the_next_process(manager: Manager) -> None:
    """What came after the last process stopped accepting is answered by the next."""
    await manager.stop(await manager.start())
    asked = asyncio.create_task(fetch(f"{manager.url}/v1/models"))
    await asyncio.sleep(0.2)
    assert not asked.done()
    process = await manager.start()
    answer = await asyncio.wait_for(asked, 5)
    assert answer.status == 200
    assert b"sim-model" in answer.body  # it accepted after its first looks
    await manager.stop(process)


async def test_descriptors_that_do_not_listen_are_refused(manager: Manager, tmp_path: Path) -> None:
    held = manager.sock
    for family in (socket.AF_INET, socket.AF_UNIX):
        with socket.socket(family) as manager.sock:
            if family is socket.AF_UNIX:
                manager.sock.bind(str(tmp_path / "socket"))
                manager.sock.listen()
            process = await manager.spawn()
            _, said = await asyncio.wait_for(process.communicate(), 20)
        assert process.returncode == 1
        assert re.search(rb"inherited descriptor 3 is not a listening TCP socket", said), said
    manager.sock = held


SUPERVISED_RESTARTS: Final = int(os.environ.get("TEST_RESTARTS", "2"))
LONG: Final = {"prompt": "Of gates", "max_tokens": 5_000, "stream": True}


class Supervised(Penstock):
    """The supervisor; `log` has what its processes say, too."""

    reading: asyncio.Task[None]

    @classmethod
    async def start(cls, config: Path) -> "Supervised":
        """Once its process serves."""
        supervised = cls(await spawn(*FLAGS, str(config)), 0, 0, config=config)
        listening = asyncio.Event()
        supervised.reading = asyncio.create_task(supervised.read_log(listening))
        async with asyncio.timeout(30):
            await listening.wait()
        await supervised.until_said(SERVES)
        ports = {"listen": supervised.port, "admin": supervised.admin_port}
        supervised.configure(
            **{name: {"host": "127.0.0.1", "port": port} for name, port in ports.items()}
        )
        await supervised.until_ready(2, within_s=20)
        return supervised

    async def until_said(self, pattern: re.Pattern[bytes], times: int = 1) -> None:
        """Wait until the log has said this so often."""
        await until(lambda: len(pattern.findall(b"".join(self.log))) >= times, 30)

    @property
    def worker(self) -> int:
        """The process that serves."""
        return int(SERVES.findall(b"".join(self.log))[-1])

    async def restart(self) -> tuple[int, str]:
        """`penstock restart`: its exit status, and what it said."""
        ran = await run("restart", "--admin", self.admin_url, within_s=60)
        return ran.status, ran.out + ran.err

    async def until_status(self, text: str) -> None:
        """Wait until `penstock status` says this."""
        async with asyncio.timeout(20):
            while text not in (await run("status", "--admin", self.admin_url)).out:
                await asyncio.sleep(0.1)

    async def stop(self) -> int:
        """SIGTERM; returns the exit status, once the last process has closed stderr."""
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(self.reading, 20)
        return await self.process.wait()


@pytest.fixture
async def supervised(tmp_path: Path, backends: dict[str, SimServer]) -> AsyncIterator[Supervised]:
    supervised = await Supervised.start(written(tmp_path, backends, 0))
    yield supervised
    await supervised.stop()
    assert b"Traceback" not in b"".join(supervised.log), b"".join(supervised.log).decode()


@contextlib.asynccontextmanager
async def streaming(
    supervised: Supervised, **fields: Any
) -> AsyncIterator[tuple[aiohttp.ClientSession, aiohttp.ClientResponse]]:
    """A long stream, past its first line."""
    url = f"{supervised.url}/v1/completions"
    async with aiohttp.ClientSession() as session, session.post(url, json=LONG | fields) as stream:
        await stream.content.readline()
        yield session, stream


async def test_supervised_restarts_under_load_keep_streams(supervised: Supervised) -> None:
    async with Traffic(supervised.url) as traffic:
        async with streaming(supervised) as (_, stream):
            reading = asyncio.create_task(stream.content.read())
            for number in range(SUPERVISED_RESTARTS):
                await traffic.until(traffic.whole + 50)
                before = supervised.worker
                status, said = await supervised.restart()
                assert (status, "restarted: penstock" in said) == (0, True), said
                await supervised.until_said(SERVES, number + 2)
                assert supervised.worker != before
                await traffic.until(traffic.whole + 50)
            got = await reading
        assert got.endswith(b"data: [DONE]\n\n"), (got[-300:], stream.status)
    print(f"{RESTARTS} restarts, {traffic.whole} requests, {len(traffic.failed)} failed")
    assert not traffic.failed
    assert await supervised.stop() == 0


async def test_the_next_process_shows_the_formers_requests(supervised: Supervised) -> None:
    former = supervised.worker
    async with streaming(supervised, max_tokens=50_000):
        assert (await supervised.restart())[0] == 0
        await supervised.until_status(
            f"Process {former}, from before the restart, still has 1 requests."
        )
    await supervised.until_said(re.compile(rb"former process %d has ended" % former))
    await supervised.until_status("Proxy ready")


async def test_a_failed_restart_changes_nothing(supervised: Supervised) -> None:
    before = supervised.worker
    whole = supervised.config.read_bytes()
    supervised.config.write_bytes(whole.replace(b'"pools"', b'"poools"'))
    async with Traffic(supervised.url) as traffic:
        status, said = await supervised.restart()
        assert (status, "ended with status 2" in said) == (1, True), said
        await traffic.until(traffic.whole + 50)
        supervised.config.write_bytes(whole)
        status, said = await supervised.restart()
        assert status == 0, said
        await traffic.until(traffic.whole + 50)
    assert not traffic.failed
    assert supervised.worker != before


async def test_a_killed_process_is_replaced(supervised: Supervised) -> None:
    os.kill(supervised.worker, signal.SIGKILL)
    for _ in range(3):
        assert (await fetch(f"{supervised.url}/v1/models")).status == 200
    await supervised.until_said(SERVES, 2)


async def test_sigterm_ends_all_after_their_streams(supervised: Supervised) -> None:
    async with streaming(supervised) as (session, stream):
        supervised.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(aiohttp.ClientConnectorError):
            while True:  # in its grace it still serves
                async with session.get(f"{supervised.url}/v1/models") as answer:
                    assert answer.status == 200
        assert not stream.content.at_eof()
        assert (await stream.content.read()).endswith(b"data: [DONE]\n\n")


async def test_a_process_survives_its_supervisor(supervised: Supervised) -> None:
    worker = supervised.worker
    supervised.process.kill()
    await supervised.until_said(re.compile(rb"the supervisor has ended"))
    assert (await fetch(f"{supervised.url}/v1/models")).status == 200
    status, said = await supervised.restart()
    assert (status, "no supervisor" in said) == (1, True), said
    os.kill(worker, signal.SIGTERM)


async def test_restart_needs_a_supervisor(fleet: Fleet) -> None:
    _, penstock = await fleet()
    status, told = await penstock.ask_admin("/api/v1/restart", "POST")
    assert (status, "serve --supervised" in told["error"]["message"]) == (409, True)
