"""What the page costs: ten viewers hardly anything, and nobody nothing."""

import asyncio
import os
from typing import Final

import aiohttp
import pytest

from penstock.bench.meter import cpu_ns
from tests.e2e.process import Penstock, Serve, Simulate

MEASURED_S: Final = float(os.environ.get("TEST_VIEWERS_S", "8"))


async def cpu_share(penstock: Penstock) -> float:
    """The share of a core that the process takes now."""
    before_ns = cpu_ns(penstock.process.pid)
    await asyncio.sleep(MEASURED_S)
    return (cpu_ns(penstock.process.pid) - before_ns) / 1e9 / MEASURED_S


@pytest.mark.alone
@pytest.mark.once
@pytest.mark.timeout(120)
async def test_ten_viewers_cost_less_than_a_fiftieth_of_a_core(
    simulate: Simulate, serve: Serve
) -> None:
    # Probes as rare as they are by default: the rest of the process shall be quiet.
    penstock = await serve(await simulate(3), health={"interval_s": 2})
    nobody = await cpu_share(penstock)

    async def look(session: aiohttp.ClientSession) -> int:
        bytes_read = 0
        async with session.get("/api/v1/events") as stream:
            async for piece in stream.content.iter_any():
                bytes_read += len(piece)
        return bytes_read

    async with aiohttp.ClientSession(penstock.admin_url) as session:
        looking = [asyncio.create_task(look(session)) for _ in range(10)]
        await asyncio.sleep(1.0)
        ten = await cpu_share(penstock)
        for each in looking:
            each.cancel()
        await asyncio.gather(*looking, return_exceptions=True)
    await asyncio.sleep(2.0)
    again = await cpu_share(penstock)
    print(f"CPU of a core: nobody {nobody:.2%}, ten viewers {ten:.2%}, nobody again {again:.2%}")
    assert ten - nobody < 0.02
    assert again < nobody + 0.01
