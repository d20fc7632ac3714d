"""Simulated servers in processes of their own, which can be killed, and proxies before them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import aiohttp
import orjson

from tests.e2e.forked import Forked, SimProcess
from tests.e2e.process import Penstock

# 10 tokens a second on every stream, however many there are.
SIM: Final = ("--profile", "steady-50", "--speedup", "0.2")


class Server(SimProcess):
    """One that makes faults, and tells what came to it."""

    def __init__(self) -> None:
        super().__init__(*SIM)

    async def fault(self, kind: str, **options: Any) -> None:
        await self._control({"clear": True, "set": [{"kind": kind, **options}]})

    async def also(self, kind: str, **options: Any) -> None:
        """One more fault beside those that are on."""
        await self._control({"set": [{"kind": kind, **options}]})

    async def mixed(self) -> int:
        """Of the last requests that came here, those whose bytes are not what was sent."""
        limit = aiohttp.ClientTimeout(5)
        try:
            async with (
                aiohttp.ClientSession(timeout=limit) as session,
                session.get(f"{self.url}/sim/state") as got,
            ):
                seen = (await got.json())["requests"]
        except (aiohttp.ClientError, TimeoutError):
            return 0  # it was killed, or its fault is to take no connections
        wrong = 0
        for request in seen:
            check = dict(request["headers"]).get("x-check")
            wrong += check is not None and check != request["body_sha256"]
        return wrong

    async def _control(self, body: dict[str, Any]) -> None:
        async with (
            asyncio.timeout(20),
            aiohttp.ClientSession() as session,
            session.post(f"{self.url}/sim/faults", json=body) as answer,
        ):
            assert answer.status == 200, await answer.text()


@contextlib.asynccontextmanager
async def proxy(servers: list[Server], folder: Path, **config: Any) -> AsyncIterator[Penstock]:
    """A penstock before these servers, all of them ready."""
    backends = [{"name": f"b{i}", "url": server.url} for i, server in enumerate(servers)]
    settings = {
        "listen": {"host": "127.0.0.1", "port": 0},
        "admin": {"host": "127.0.0.1", "port": 0},
        "pools": [{"name": "default", "backends": backends}],
        "health": {"interval_s": 0.5, "deep": {"interval_s": 5}, "slow_start_s": 0},
        "drain": {"grace_s": 0, "timeout_s": 1},
        "log": {"access": False},
        **config,
    }
    path = folder / f"penstock-{servers[0].url.rpartition(':')[2]}-{len(servers)}.yaml"
    path.write_bytes(orjson.dumps(settings))
    process = await Forked.start(("serve", "--config", str(path)))
    penstock = Penstock(process, 0, 0)
    listening = asyncio.Event()
    reader = asyncio.create_task(penstock.read_log(listening))
    try:
        async with asyncio.timeout(60):
            await listening.wait()
        await penstock.until_ready(len(servers), 30)
        yield penstock
    finally:
        await penstock.stop()
        await reader
    assert b"Traceback" not in b"".join(penstock.log), b"".join(penstock.log).decode()
