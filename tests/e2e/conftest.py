"""A real penstock process in front of simulated servers, each on a port of its own.

Whatever a test does, its proxy must come back to rest: all counters at zero,
asserted when the test is over.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from penstock.bench.sim.server import SimServer
from tests.certificates import Files, issue
from tests.e2e.forked import Forked, SimProcess
from tests.e2e.process import ROOT, Fleet, Penstock, Serve, Simulate, StartSim
from tests.e2e.raw_backend import RawBackend, RawBackends
from tests.e2e.span_receiver import SpanReceiver
from tests.e2e.tls import TlsClient
from tests.e2e.told import FakeExporter
from tests.e2e.wire import KEY, PROMPT, Client, Guard, RawClient


@pytest.fixture
async def simulate() -> AsyncIterator[Simulate]:
    """Start simulated servers: `await simulate(2, profile="instant")`."""
    started: list[SimServer] = []

    async def start(count: int = 1, **options: Any) -> list[SimServer]:
        options.setdefault("profile", "instant")
        servers = [SimServer(name=f"sim-{i}", seed=i, **options) for i in range(count)]
        for server in servers:
            await server.start()
            started.append(server)
        return servers

    yield start
    for server in started:
        await server.stop()


@pytest.fixture
async def serve(tmp_path: Path, simulate: Simulate) -> AsyncIterator[Serve]:
    """Start penstock before servers: `await serve(servers, timeouts={"hold_s": 0.2})`.

    Keyword arguments are top-level keys of the configuration. `at_rest=False`
    leaves out the check at the end, `ready` is how many backends to wait for,
    `descriptors` limits what the process may open, `environment` has further variables,
    `modules` is a folder whose modules are imported instead of others.
    """
    running: list[tuple[Penstock, bool]] = []
    readers: list[asyncio.Task[None]] = []

    async def start(
        servers: list[SimServer] | list[str],
        *,
        ready: int | None = None,
        at_rest: bool = True,
        pool: dict[str, Any] | None = None,
        modules: Path | None = None,
        environment: dict[str, str] | None = None,
        descriptors: int | None = None,
        **config: Any,
    ) -> Penstock:
        urls = [server if isinstance(server, str) else server.url for server in servers]
        backends = [{"name": f"b{i}", "url": url} for i, url in enumerate(urls)]
        settings = {
            "listen": {"host": "127.0.0.1", "port": 0},
            "admin": {"host": "127.0.0.1", "port": 0},
            "pools": [{"name": "default", "backends": backends, **(pool or {})}],
            # Deep probes would meet the faults that are set for a test's own requests.
            "health": {"interval_s": 0.2, "deep": {"interval_s": 600}, "slow_start_s": 0}
            | config.pop("health", {}),
            "drain": {"grace_s": 0, "timeout_s": 5},
            **config,
        }
        path = tmp_path / f"penstock-{len(running)}.yaml"
        path.write_bytes(orjson.dumps(settings))  # JSON is YAML
        arguments = ["serve", "--config", str(path)]
        process: asyncio.subprocess.Process | Forked
        if modules is None:
            process = await Forked.start(arguments, environment, descriptors)
        else:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "proxy", *arguments),
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": str(modules)},
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        penstock = Penstock(process, 0, 0, config.get("admin", {}).get("token", ""), path)
        running.append((penstock, at_rest))
        listening = asyncio.Event()
        readers.append(asyncio.create_task(penstock.read_log(listening)))
        readers.append(asyncio.create_task(_read_access(penstock)))
        async with asyncio.timeout(30):
            await listening.wait()
        assert penstock.port, b"".join(penstock.log).decode()
        if ready != 0:
            await penstock.until_ready(len(urls) if ready is None else ready)
        return penstock

    yield start
    try:
        for penstock, at_rest in running:
            if at_rest and penstock.process.returncode is None:
                await penstock.until_at_rest()
    finally:
        for penstock, _ in running:
            if penstock.process.returncode is None:
                await penstock.stop()
        await asyncio.gather(*readers)
    for penstock, _ in running:
        assert b"Traceback" not in b"".join(penstock.log), b"".join(penstock.log).decode()


# Of these a simulated server is told; the rest is penstock's configuration.
SIM_OPTIONS = {"profile", "model", "api_key", "clock", "max_queued", "keep_alive_s"}


@pytest.fixture
def fleet(simulate: Simulate, serve: Serve) -> Fleet:
    """Simulated servers and penstock: `servers, penstock = await fleet(2, profile="default")`."""

    async def start(count: int = 1, **options: Any) -> tuple[list[SimServer], Penstock]:
        told = {name: options.pop(name) for name in SIM_OPTIONS & options.keys()}
        servers = await simulate(count, **told)
        return servers, await serve(servers, **options)

    return start


@pytest.fixture
async def sim_process() -> AsyncIterator[StartSim]:
    """Start a server that can be killed: `await sim_process("--profile", "instant")`."""
    started: list[SimProcess] = []

    async def start(*flags: str) -> SimProcess:
        started.append(SimProcess(*flags))
        await started[-1].start()
        return started[-1]

    yield start
    for server in started:
        await server.kill()


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """A certificate for localhost, its key and its authority."""
    return issue(tmp_path)


@pytest.fixture
async def raw_backends() -> AsyncIterator[RawBackends]:
    """Start scripted backends: `await raw_backends(2)`."""
    started: list[RawBackend] = []

    async def start(count: int = 1) -> list[RawBackend]:
        for _ in range(count):
            started.append(RawBackend())
            await started[-1].start()
        return started

    yield start
    for backend in started:
        await backend.stop()


@pytest.fixture
async def raw_backend(raw_backends: RawBackends) -> RawBackend:
    (backend,) = await raw_backends()
    return backend


def close_all() -> None:
    """Close every client that is open."""
    for kind in (Client, RawClient, TlsClient):
        for client in [*kind.opened]:
            client.close()
        kind.opened.clear()


@pytest.fixture(autouse=True)
async def close_clients() -> AsyncIterator[None]:
    yield
    close_all()
    await asyncio.sleep(0.01)  # until their sockets are


@pytest.fixture
async def guard(simulate: Simulate, serve: Serve) -> AsyncIterator[Guard]:
    """One server behind a proxy that must not have told anybody the key or the prompt."""
    started: list[Penstock] = []

    async def start(profile: str = "instant", **config: Any) -> tuple[SimServer, Penstock]:
        (server,) = await simulate(profile=profile)
        started.append(await serve([server], log={"level": "debug"}, **config))
        return server, started[-1]

    yield start
    close_all()
    for penstock in started:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{penstock.admin_url}/metrics") as answer,
        ):
            said = await answer.text()
        await penstock.until_at_rest()
        assert await penstock.stop() == 0
        await asyncio.sleep(0.05)
        assert penstock.access_lines
        said += b"".join(penstock.log).decode() + str(penstock.access_lines)
        assert KEY not in said
        assert PROMPT not in said


async def _read_access(penstock: Penstock) -> None:
    assert penstock.process.stdout is not None
    async for line in penstock.process.stdout:
        as_json = line.startswith(b"{")
        penstock.access_lines.append(orjson.loads(line) if as_json else {"text": line.decode()})


@pytest.fixture
async def exporters() -> AsyncIterator[list[FakeExporter]]:
    """Five exporters of GPU metrics."""
    fakes = [FakeExporter() for _ in range(5)]
    for fake in fakes:
        await fake.start()
    yield fakes
    for fake in fakes:
        await fake.stop()


@pytest.fixture
def exporter(exporters: list[FakeExporter]) -> FakeExporter:
    return exporters[0]


@pytest.fixture
async def receiver() -> AsyncIterator[SpanReceiver]:
    """A receiver of spans."""
    one = SpanReceiver()
    await one.start()
    yield one
    await one.stop()
