"""What exporters tell of GPUs, and what broken ones cannot do."""

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import orjson
import pytest

from tests.e2e.gpu_exporter import MIB, FakeExporter
from tests.e2e.process import Serve, Simulate
from tests.e2e.told import complete, told, until


@pytest.fixture
async def exporter() -> AsyncIterator[FakeExporter]:
    fake = FakeExporter()
    await fake.start()
    yield fake
    await fake.stop()


async def test_gpus_are_told_and_the_exporter_gets_no_key(
    simulate: Simulate, serve: Serve, exporter: FakeExporter
) -> None:
    (server,) = await simulate()
    exporter.tell(42.0)
    backend = {"name": "b0", "url": server.url, "gpu_metrics_url": exporter.url}
    penstock = await serve([server], pool={"backends": [backend], "api_key": "sk-pool-key"})
    name = "penstock_backend_gpu_utilization_ratio{backend=b0}"
    found = await until(penstock, lambda found: name in found, 5)
    assert found[name] == 0.42
    assert found["penstock_backend_gpu_memory_used_bytes{backend=b0}"] == 70_000 * MIB
    assert found["penstock_backend_gpu_memory_free_bytes{backend=b0}"] == 1_000 * MIB
    assert all(head.startswith(b"GET /metrics HTTP/1.1\r\n") for head in exporter.asked)
    assert not any(b"sk-pool-key" in head for head in exporter.asked)
    pool = orjson.loads(penstock.config.read_bytes())["pools"][0]
    plain = {"name": "b0", "url": server.url}
    assert (await penstock.reload(pools=[pool | {"backends": [plain]}]))[0] == 200
    assert name not in await told(penstock)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (None, "timeout"),
        (b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n", "status_404"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nup 1\n", "no_gpus"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * (2 * MIB), "too_large"),
        (b"nonsense", "unreachable"),
    ],
)
async def test_a_broken_exporter_harms_no_backend_and_is_told_once(
    simulate: Simulate, serve: Serve, exporter: FakeExporter, answer: bytes | None, reason: str
) -> None:
    (server,) = await simulate()
    exporter.answer = answer
    backend = {"name": "b0", "url": server.url, "gpu_metrics_url": exporter.url}
    penstock = await serve([server], pool={"backends": [backend]})
    line = f"GPU metrics cannot be read name=b0 reason={reason}".encode()
    async with asyncio.timeout(8):
        while not any(line in each for each in penstock.log):
            await asyncio.sleep(0.05)
    (listed,) = await penstock.backends()
    assert (listed["state"], listed["last_probe"]["live"]["passed"]) == ("ready", True)
    async with aiohttp.ClientSession() as session:
        assert await complete(penstock, session) == 200
    log = b"".join(penstock.log)
    assert log.count(b"GPU metrics") == 1
    assert exporter.url.encode() not in log


async def test_idle_gpus_count_while_requests_wait(
    simulate: Simulate, serve: Serve, exporter: FakeExporter
) -> None:
    """Of two backends one has no requests: the other takes all, and more wait for it."""
    servers = await simulate(2, profile="steady-50")
    backends = [
        {"name": "busy", "url": servers[0].url, "max_requests": 1},
        {"name": "idle", "url": servers[1].url, "max_requests": 1},
    ]
    servers[1].faults.set("hang_before_headers")
    penstock = await serve(
        servers, pool={"backends": backends}, admission={"enabled": True}, at_rest=False
    )
    async with aiohttp.ClientSession() as session:
        asked = [
            asyncio.create_task(complete(penstock, session, max_tokens=400, stream=True))
            for _ in range(4)
        ]
        exporter.tell(1.0)
        pool = orjson.loads(penstock.config.read_bytes())["pools"][0]
        backends[1]["gpu_metrics_url"] = exporter.url
        assert (await penstock.reload(pools=[pool | {"backends": backends}]))[0] == 200
        name = "penstock_backend_gpu_floor_seconds_total{backend=%s}"
        found = await until(penstock, lambda found: found[name % "idle"] >= 2.0, 10)
        assert found[name % "busy"] == 0.0
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
