"""A real proxy process, and what it holds: memory, descriptors, tasks, counters."""

import asyncio
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import aiohttp
import orjson

# Where the packages are: the proxy that is measured is the one that this belongs to.
ROOT: Final = Path(__file__).parents[2]
START_S: Final = 20.0
# What a backend's listing must be when nothing is in flight.
COUNTS: Final = (
    "requests_in_flight",
    "queued_prefill_tokens",
    "active_decode_tokens",
    "streams",
)
_LISTENING: Final = re.compile(rb"listening on [^ ]*:(\d+), admin on [^ ]*:(\d+)")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Held:
    """What a process holds at a moment."""

    resident_bytes: int
    descriptors: int
    tasks: int


class ProxyProcess:
    """`async with ProxyProcess(urls, timeouts={…}) as proxy:` - ready when it begins."""

    def __init__(
        self, urls: Sequence[str], command: Sequence[str] = ("proxy",), **config: Any
    ) -> None:
        """Other keyword arguments are top-level keys of the configuration.

        `command`: the module that serves, and what comes before `serve`.
        """
        self._command = command
        backends = [{"name": f"b{i}", "url": url} for i, url in enumerate(urls)]
        self._backends = len(backends)
        self._config = {
            "listen": {"host": "127.0.0.1", "port": 0},
            "admin": {"host": "127.0.0.1", "port": 0},
            "pools": [{"name": "default", "backends": backends}],
            "drain": {"grace_s": 0, "timeout_s": 5},
            "log": {"level": "error"},
            **config,
        }
        self.port = 0
        self.admin_port = 0

    async def __aenter__(self) -> "ProxyProcess":
        with TemporaryDirectory(prefix="penstock-bench-") as folder:
            path = Path(folder) / "penstock.yaml"
            path.write_bytes(orjson.dumps(self._config))  # JSON is YAML
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                *self._command,
                "serve",
                "--config",
                str(path),
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                env={k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")},
                cwd=ROOT,
            )
            assert self._process.stderr is not None
            async with asyncio.timeout(START_S):
                match, said = None, b""
                while match is None and (line := await self._process.stderr.readline()):
                    match, said = _LISTENING.search(line), said + line
        if match is None:
            raise SystemExit(f"penstock bench: the proxy did not start:\n{said.decode()}")
        self.port, self.admin_port = map(int, match.groups())
        self._rest = asyncio.create_task(self._process.stderr.read())
        self._session = aiohttp.ClientSession(f"http://127.0.0.1:{self.admin_port}")
        async with asyncio.timeout(START_S):
            while sum(each["state"] == "ready" for each in await self.backends()) < self._backends:
                await asyncio.sleep(0.05)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._session.close()
        if self._process.returncode is None:
            self._process.terminate()
        await self._process.wait()
        said = await self._rest
        if b"Traceback" in said:
            raise SystemExit(f"penstock bench: the proxy failed:\n{said.decode()[-2_000:]}")

    @property
    def pid(self) -> int:
        return self._process.pid

    async def backends(self) -> list[dict[str, Any]]:
        async with self._session.get("/api/v1/backends") as answer:
            listing: list[dict[str, Any]] = orjson.loads(await answer.read())
            return listing

    async def metrics(self) -> dict[str, float]:
        """Every sample of /metrics by its name and labels, as they are spelt there."""
        async with self._session.get("/metrics") as answer:
            lines = (await answer.text()).splitlines()
        pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name: float(value) for name, _, value in pairs}

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


def resident_bytes(pid: int) -> int:
    """The resident set of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))
