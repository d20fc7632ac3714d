"""`penstock serve --supervised`: one process takes over from another, and no client notices."""

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import aiohttp
import orjson
import pytest

from tests.e2e.process import ROOT, Simulate
from tests.e2e.traffic import Traffic

RESTARTS: Final = int(os.environ.get("TEST_RESTARTS", "2"))
LISTENING: Final = re.compile(rb"listening on [^ \n]*:(\d+), admin on [^ \n]*:(\d+)")
SERVES: Final = re.compile(rb"process (\d+) serves")


class Supervised:
    """The supervisor, and what it and its processes have logged."""

    def __init__(self, config: Path) -> None:
        self.config = config
        self.log = b""
        self.port = self.admin_port = 0
        self._more = asyncio.Event()

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "proxy", "serve", "--supervised"),
            *("--config", str(self.config)),
            cwd=ROOT,
            stderr=asyncio.subprocess.PIPE,
        )
        self._reading = asyncio.create_task(self._read())
        await self.until(LISTENING)
        await self.until(SERVES)
        self.port, self.admin_port = map(int, LISTENING.findall(self.log)[-1])
        settings = orjson.loads(self.config.read_bytes())
        settings["listen"]["port"], settings["admin"]["port"] = self.port, self.admin_port
        self.config.write_bytes(orjson.dumps(settings))

    async def _read(self) -> None:
        assert self.process.stderr is not None
        while line := await self.process.stderr.readline():
            self.log += line
            self._more.set()

    async def until(self, pattern: re.Pattern[bytes], times: int = 1) -> None:
        """Wait until the log has said this so often."""
        async with asyncio.timeout(30):
            while len(pattern.findall(self.log)) < times:
                self._more.clear()
                await self._more.wait()

    async def until_ready(self) -> None:
        async with asyncio.timeout(20), aiohttp.ClientSession() as session:
            url = f"http://127.0.0.1:{self.admin_port}/readyz"
            while True:
                async with session.get(url) as answer:
                    if answer.status == 200:
                        return
                await asyncio.sleep(0.05)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def worker(self) -> int:
        """The process that serves."""
        return int(SERVES.findall(self.log)[-1])

    async def restart(self) -> tuple[int, str]:
        """`penstock restart`: its exit status, and what it said."""
        command = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "proxy", "restart"),
            *("--admin", f"http://127.0.0.1:{self.admin_port}"),
            cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await asyncio.wait_for(command.communicate(), 60)
        assert command.returncode is not None
        return command.returncode, said.decode()

    async def told(self, text: str) -> None:
        """Wait until `penstock status` says this."""
        async with asyncio.timeout(20):
            while True:
                command = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "proxy", "status"),
                    *("--admin", f"http://127.0.0.1:{self.admin_port}"),
                    cwd=ROOT,
                    stdout=asyncio.subprocess.PIPE,
                )
                said, _ = await command.communicate()
                if text in said.decode():
                    return

    async def stop(self) -> None:
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(self._reading, 20)  # until the last process has closed stderr
        await self.process.wait()


@pytest.fixture
async def supervised(tmp_path: Path, simulate: Simulate) -> AsyncIterator[Supervised]:
    backends = [{"name": f"b{i}", "url": each.url} for i, each in enumerate(await simulate(2))]
    settings = {
        "listen": {"host": "127.0.0.1", "port": 0},
        "admin": {"port": 0},
        "pools": [{"name": "default", "backends": backends}],
        "health": {"interval_s": 0.2, "deep": {"interval_s": 600}},
        "drain": {"grace_s": 0.3, "timeout_s": 20},
        "log": {"access": False},
        "state": {"dir": str(tmp_path / "state")},
    }
    path = tmp_path / "penstock.yaml"
    path.write_bytes(orjson.dumps(settings))
    supervised = Supervised(path)
    await supervised.start()
    await supervised.until_ready()
    yield supervised
    await supervised.stop()
    assert b"Traceback" not in supervised.log, supervised.log.decode()


async def test_restarts_under_load_lose_nothing_and_keep_streams(supervised: Supervised) -> None:
    body: Any = {"prompt": "Of gates", "max_tokens": 5_000, "stream": True}
    async with aiohttp.ClientSession() as session, Traffic(supervised.url) as traffic:
        async with session.post(f"{supervised.url}/v1/completions", json=body) as stream:
            first = await stream.content.readline()
            for number in range(RESTARTS):
                await traffic.until(traffic.whole + 50)
                before = supervised.worker
                status, said = await supervised.restart()
                assert (status, "restarted: penstock" in said) == (0, True), said
                await supervised.until(SERVES, number + 2)
                assert supervised.worker != before
                await traffic.until(traffic.whole + 50)
            got = await stream.content.read()
        assert got.endswith(b"data: [DONE]\n\n"), (first, got[-300:], stream.status)
    print(f"{RESTARTS} restarts, {traffic.whole} requests, {len(traffic.failed)} failed")
    assert not traffic.failed
    await supervised.stop()
    assert supervised.process.returncode == 0


async def test_the_next_process_tells_what_the_former_one_still_has(supervised: Supervised) -> None:
    body: Any = {"prompt": "Of gates", "max_tokens": 50_000, "stream": True}
    former = supervised.worker
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{supervised.url}/v1/completions", json=body) as stream,
    ):
        await stream.content.readline()
        assert (await supervised.restart())[0] == 0
        await supervised.told(f"Process {former}, from before the restart, still has 1 requests.")
    await supervised.until(re.compile(rb"former process %d has ended" % former))
    await supervised.told("Proxy ready")


async def test_what_cannot_start_leaves_the_present_process_serving(supervised: Supervised) -> None:
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


async def test_a_process_that_is_killed_is_replaced_while_clients_wait(
    supervised: Supervised,
) -> None:
    os.kill(supervised.worker, signal.SIGKILL)
    async with aiohttp.ClientSession() as session:
        for _ in range(3):
            async with session.get(f"{supervised.url}/v1/models") as answer:
                assert answer.status == 200
    await supervised.until(SERVES, 2)


async def test_after_sigterm_no_client_waits_for_nobody(supervised: Supervised) -> None:
    body: Any = {"prompt": "Of gates", "max_tokens": 5_000, "stream": True}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{supervised.url}/v1/completions", json=body) as stream,
    ):
        await stream.content.readline()
        supervised.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(aiohttp.ClientConnectorError):
            while True:  # in its grace it still serves
                async with session.get(f"{supervised.url}/v1/models") as answer:
                    assert answer.status == 200
        assert not stream.content.at_eof()
        assert (await stream.content.read()).endswith(b"data: [DONE]\n\n")


async def test_without_its_supervisor_a_process_goes_on(supervised: Supervised) -> None:
    worker = supervised.worker
    supervised.process.kill()
    await supervised.until(re.compile(rb"the supervisor has ended"))
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{supervised.url}/v1/models") as answer,
    ):
        assert answer.status == 200
    status, said = await supervised.restart()
    assert (status, "no supervisor" in said) == (1, True), said
    os.kill(worker, signal.SIGTERM)


async def test_a_restart_without_a_supervisor_says_what_to_do(
    simulate: Simulate, serve: Any
) -> None:
    penstock = await serve(await simulate())
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{penstock.admin_url}/api/v1/restart") as answer,
    ):
        assert answer.status == 409
        assert "serve --supervised" in (await answer.json())["error"]["message"]
