"""A running penstock process, as the end-to-end tests see it."""

import asyncio
import contextlib
import re
import signal
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, Final

import aiohttp
import orjson

from penstock.bench.meter import resident_bytes
from penstock.bench.sim.server import SimServer
from tests.e2e.forked import ROOT as ROOT
from tests.e2e.forked import Forked, SimProcess

REST_WITHIN_S = 3.0
_LISTENING: Final = re.compile(rb"listening on [^ \n]*:(\d+), admin on [^ \n]*:(\d+)")


def pool_of(name: str, backends: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    """A pool of the configuration; its backends by their names: servers, or their URLs."""
    listed = [
        {"name": each, "url": to if isinstance(to, str) else to.url}
        for each, to in backends.items()
    ]
    return {"name": name, "backends": listed, **fields}


async def until(holds: Callable[[], object], within_s: float = 5.0) -> float:
    """Wait for a condition; how long it took."""
    began_s = monotonic()
    async with asyncio.timeout(within_s):
        while not holds():
            await asyncio.sleep(0.005)
    return monotonic() - began_s


COUNTS = ("requests_in_flight", "queued_prefill_tokens", "active_decode_tokens", "streams")


@dataclass
class Penstock:
    """A running process; `port` is its data port, `log` what it wrote to stderr."""

    process: asyncio.subprocess.Process | Forked
    port: int
    admin_port: int
    token: str = ""
    config: Path = Path()
    log: list[bytes] = field(default_factory=list)
    access_lines: list[dict[str, Any]] = field(default_factory=list)
    scraped_s: float = 0.0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self.admin_port}"

    @property
    def resident_bytes(self) -> int:
        return resident_bytes(self.process.pid)

    async def read_log(self, listening: asyncio.Event) -> None:
        """Collect its log to the end; `listening` is set once its ports are known, or it ends."""
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.log.append(line)
            if match := _LISTENING.search(line):
                self.port, self.admin_port = map(int, match.groups())
                listening.set()
        listening.set()

    async def until_logged(self, text: str, within_s: float = 5.0) -> str:
        """Wait until the log has this text. Returns the log."""
        await until(lambda: text in b"".join(self.log).decode(), within_s)
        return b"".join(self.log).decode()

    async def lines(self, count: int, within_s: float = 5.0) -> list[dict[str, Any]]:
        """The access lines, once there are so many."""
        await until(lambda: len(self.access_lines) >= count, within_s)
        return self.access_lines

    async def ask_admin(self, path: str, method: str = "GET", **options: Any) -> tuple[int, Any]:
        """Status and JSON of a path of the admin port. `options` are aiohttp's."""
        headers = {"authorization": f"Bearer {self.token}"} if self.token else {}
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.request(method, self.admin_url + path, **options) as answer,
        ):
            return answer.status, orjson.loads(await answer.read())

    async def admin(self, path: str, method: str = "GET", **options: Any) -> Any:
        """The JSON of a path below /api/v1/, which must be answered with a 200."""
        status, told = await self.ask_admin(f"/api/v1/{path}", method, **options)
        assert status == 200, told
        return told

    async def backends(self) -> list[dict[str, Any]]:
        listing: list[dict[str, Any]] = await self.admin("backends")
        return listing

    async def metrics(self) -> str:
        """The exposition, past the second that the one before is kept."""
        await asyncio.sleep(max(0.1, self.scraped_s + 1.05 - monotonic()))
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{self.admin_url}/metrics") as answer,
        ):
            text = await answer.text()
        self.scraped_s = monotonic()
        return text

    async def until(self, holds: Callable[[list[dict[str, Any]]], bool], within_s: float) -> None:
        """Wait until the listing of backends satisfies a condition."""
        listing: list[dict[str, Any]] = []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while not holds(listing := await self.backends()):
                    await asyncio.sleep(0.02)
                return
        seen = [(each["name"], each["state"], each["reason"]) for each in listing]
        raise AssertionError(f"not within {within_s} s: {seen}")

    async def until_ready(self, count: int, within_s: float = 10.0) -> None:
        await self.until(
            lambda listing: sum(each["state"] == "ready" for each in listing) == count, within_s
        )

    async def until_at_rest(self) -> None:
        await self.until(
            lambda listing: not any(each[name] for each in listing for name in COUNTS),
            REST_WITHIN_S,
        )

    def configure(self, **changes: Any) -> None:
        """Write top-level keys of the configuration anew; the process is not told."""
        settings = orjson.loads(self.config.read_bytes())
        self.config.write_bytes(orjson.dumps(settings | changes))

    async def reload(self, **changes: Any) -> tuple[int, Any]:
        """Write keys anew and have the file read: the status and body of the answer."""
        self.configure(**changes)
        return await self.ask_admin("/api/v1/reload", "POST")

    async def stop(self) -> int:
        """SIGTERM; returns the exit status."""
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(15):
            return await self.process.wait()


Serve = Callable[..., Awaitable[Penstock]]
# Servers, and the proxy before them.
Fleet = Callable[..., Awaitable[tuple[list[SimServer], Penstock]]]
Simulate = Callable[..., Awaitable[list[SimServer]]]
StartSim = Callable[..., Awaitable[SimProcess]]
