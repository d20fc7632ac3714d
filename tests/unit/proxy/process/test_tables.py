"""What is remembered of sessions and stored responses gives way when memory stays short."""

import contextlib
from collections.abc import AsyncIterator
from random import Random
from typing import Any, cast

import pytest
from aiohttp import web

from penstock.balancing.response_owners import OWNERS_MAX, ResponseOwners
from penstock.balancing.session_homes import SessionHomes
from penstock.conf.settings import Settings
from penstock.health.monitor import Monitor
from penstock.proxy.admin.listings import REFUSING_S
from penstock.proxy.admin.server import Admin
from penstock.proxy.data.memory import ENTRY_BYTES, TABLES_SHARE
from penstock.proxy.process.pressure import PERIOD_S
from tests.unit.proxy.process.test_pressure import BASE_BYTES, LIMIT_BYTES, Process

REMEMBERED_BYTES = 60_000_000


class Full(Process):
    """A process whose memory is held by full tables."""

    def __init__(self) -> None:
        super().__init__()
        self.most = sum(fill(table) for table in self.plane.tables)
        self.others_bytes = 0

    def resident_bytes(self) -> int:
        share = sum(len(table) for table in self.plane.tables) / self.most
        return BASE_BYTES + self.others_bytes + int(REMEMBERED_BYTES * share)

    async def pass_s(self, seconds: float) -> str:
        for _ in range(int(seconds / PERIOD_S)):
            self.now_s += PERIOD_S
            await self.tick()
        return self.plane.overload.reason


def fill(table: SessionHomes | ResponseOwners) -> int:
    """More than it may hold. Returns what it held."""
    for number in range(3_000):
        if isinstance(table, SessionHomes):
            table.put(f"s{number}", "b", "x")
        else:
            table.put(f"resp_{number}", "b", 0.0, client="x")
    return len(table)


def limited(process: Process, memory_bytes: int | None) -> list[int]:
    """What the tables hold when they are filled after a reload."""
    settings = process.plane.settings.model_dump(by_alias=True)
    process.plane.limits = Settings.model_validate(
        settings | {"limits": {"memory_bytes": memory_bytes}}
    ).limits
    process.plane._share_memory()
    return [len(table) for table in process.plane.tables]


@pytest.fixture
async def process() -> AsyncIterator[Full]:
    with contextlib.closing(Full()) as process:
        yield process


async def test_all_tables_together_have_a_share_of_the_memory(process: Full) -> None:
    assert len(process.plane.tables) == 2
    share_bytes = 0.9 * LIMIT_BYTES * TABLES_SHARE
    assert 0.99 * share_bytes < process.most * ENTRY_BYTES <= share_bytes


async def test_a_reload_that_lowers_the_limit_shrinks_them(process: Full) -> None:
    before = [len(table) for table in process.plane.tables]
    assert limited(process, LIMIT_BYTES // 2) == [size // 2 for size in before]
    limited(process, None)
    assert [fill(table) for table in process.plane.tables] == [3_000, 3_000]
    assert OWNERS_MAX > 3_000


async def test_requests_are_not_refused_for_ever(process: Full) -> None:
    assert await process.tick() == "memory"
    assert await process.pass_s(4.0) == "memory"  # closing connections and the like come first
    assert process.resident_bytes() == BASE_BYTES + REMEMBERED_BYTES
    assert await process.pass_s(4.0) == ""
    left_bytes = process.resident_bytes()
    assert left_bytes == pytest.approx(BASE_BYTES + REMEMBERED_BYTES / 2, rel=0.001)
    await process.pass_s(60.0)
    assert process.resident_bytes() == left_bytes  # no more than need be


@pytest.mark.parametrize("limit_bytes", [LIMIT_BYTES, 0])
async def test_who_refuses_for_long_gets_no_traffic_until_it_accepts_again(
    process: Full, limit_bytes: int
) -> None:
    process.others_bytes = LIMIT_BYTES
    process.plane.memory.limit_bytes = limit_bytes
    monitor, unused = Monitor(Random(1)), cast("Any", None)
    monitor.started.set()
    admin = Admin(process.plane, monitor, unused, cast("Any", lambda: None), unused, unused)

    async def status() -> int:
        return (await admin._readyz(cast("web.Request", None))).status

    await process.tick()
    assert await process.pass_s(REFUSING_S) == ("memory" if limit_bytes else "")
    assert await status() == 200
    await process.pass_s(1.0)
    assert await status() == (503 if limit_bytes else 200)
    process.others_bytes = 0
    await process.pass_s(1.0)
    assert await status() == 200
