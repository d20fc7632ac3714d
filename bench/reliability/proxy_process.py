"""A real proxy process, and what it holds: memory, descriptors, tasks, counters."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple, Self

import orjson

from penstock.bench.client import METRICS, Clients, get, samples
from penstock.bench.meter import descriptors, resident_bytes
from penstock.bench.processes import START_S, start_penstock, stop
from penstock.bench.report import BenchError

# What a backend's listing must be when nothing is in flight.
COUNTS: Final = (
    "requests_in_flight",
    "queued_prefill_tokens",
    "active_decode_tokens",
    "streams",
)
# `health` without a probe after the first one: what is measured is the clients' alone.
QUIET: Final = {"interval_s": 600, "timeout_s": 5, "deep": {"interval_s": 600}}


class Held(NamedTuple):
    """What a process holds at a moment."""

    resident_bytes: int
    descriptors: int
    tasks: int


class ProxyProcess:
    """`async with ProxyProcess(urls, timeouts={…}) as proxy:` - ready when it begins."""

    def __init__(
        self,
        urls: Sequence[str],
        module: Sequence[str] = ("penstock.proxy",),
        *,
        ready: bool = True,
        **config: Any,
    ) -> None:
        """Other keyword arguments are top-level keys of the configuration.

        `module`: the one that serves, and what comes before `serve`. `ready`: wait until all
        backends are.
        """
        self._module = module
        self._ready = ready
        backends = [{"name": f"b{i}", "url": url} for i, url in enumerate(urls)]
        self._config = {
            "listen": {"host": "127.0.0.1", "port": 0},
            "admin": {"host": "127.0.0.1", "port": 0},
            "pools": [{"name": "default", "backends": backends}],
            "drain": {"grace_s": 0, "timeout_s": 5},
            "log": {"level": "error"},
            **config,
        }
        self.port = self.admin_port = 0

    async def __aenter__(self) -> Self:
        with TemporaryDirectory(prefix="penstock-bench-") as folder:
            path = Path(folder) / "penstock.yaml"
            path.write_bytes(orjson.dumps(self._config))  # JSON is YAML
            self._process, self.port, self.admin_port = start_penstock(
                self._module, "--config", str(path)
            )
        self._admin = Clients(self.admin_port)
        try:
            async with asyncio.timeout(START_S):
                while self._ready and any(
                    each["state"] != "ready" for each in await self.backends()
                ):
                    await asyncio.sleep(0.05)
        except BaseException:
            stop(self._process)
            raise
        assert self._process.stderr is not None
        # In a thread, and to its end: a full pipe would hold the proxy up.
        self._said = asyncio.create_task(asyncio.to_thread(self._process.stderr.read))
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._admin.close()
        self._process.terminate()
        said = await self._said
        stop(self._process)
        if b"Traceback" in said:
            raise BenchError(f"the proxy failed:\n{said.decode()[-2_000:]}")

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ask(self, path: str) -> bytes:
        """What the admin port answers to GET."""
        return bytes((await self._admin.ask(get(path))).body)

    async def backends(self) -> list[dict[str, Any]]:
        listing: list[dict[str, Any]] = orjson.loads(await self.ask("/api/v1/backends"))
        return listing

    async def metrics(self) -> dict[str, float]:
        """Every sample of /metrics by its name and labels."""
        return samples(await self.ask(METRICS))

    async def held(self) -> Held:
        tasks = (await self.metrics())["penstock_tasks"]
        return Held(resident_bytes(self.pid), descriptors(self.pid), int(tasks))

    async def until_at_rest(self, within_s: float) -> dict[str, int]:
        """Wait for all counters to be zero; those that are not by then."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + within_s
        while True:
            listing = await self.backends()
            left = {name: sum(each[name] for each in listing) for name in COUNTS}
            left = {name: count for name, count in left.items() if count}
            if not left or loop.time() > until_s:
                return left
            await asyncio.sleep(0.02)
