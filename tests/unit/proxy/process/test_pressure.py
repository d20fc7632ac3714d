"""Memory is short: who and what gives way before a request with a key is refused."""

import asyncio
import contextlib
import platform
from collections.abc import AsyncIterator
from random import Random
from typing import Any, cast

import pytest
from aiohttp import web

from penstock.balancing.fair_table import KeyTable
from penstock.balancing.response_owners import OWNERS_MAX
from penstock.conf.settings import Settings
from penstock.health.monitor import Monitor
from penstock.proxy.admin.listings import REFUSING_S
from penstock.proxy.admin.server import Admin
from penstock.proxy.data.bodies import HELD_S
from penstock.proxy.data.ending import TLS_BYTES
from penstock.proxy.data.listener import ClientConnection
from penstock.proxy.data.memory import ENTRY_BYTES, TABLES_SHARE
from penstock.proxy.process.pressure import PERIOD_S, Pressure, keep_pages
from tests.unit.proxy.data.test_listener import Wire
from tests.unit.proxy.data.test_waiting_bodies import plane

LIMIT_BYTES = 100_000_000
BASE_BYTES = 40_000_000
EACH_BYTES = 2 * TLS_BYTES
UNSENT_BYTES = 262_144
KEY = "k" * 40
OTHER_KEY = "o" * 40
HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer %b\r\n" % KEY.encode()
MODELS = b"GET /v1/models HTTP/1.1\r\nhost: x\r\nauthorization: Bearer %b\r\n\r\n"
REQUEST = HEAD + b'content-length: 14\r\n\r\n{"prompt":"x"}'


class Process:
    """A process whose memory is held by its clients' connections."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.plane = plane(
            lambda: self.now_s,
            limits={"memory_bytes": LIMIT_BYTES},
            tenants=[
                {"name": "t", "keys": [{"key": KEY}]},
                {"name": "other", "keys": [{"key": OTHER_KEY}]},
            ],
        )
        self.wires: list[Wire] = []
        self.connections: list[ClientConnection] = []
        self.pressure = Pressure(self.plane, resident=self.resident_bytes)

    def resident_bytes(self) -> int:
        return BASE_BYTES + EACH_BYTES * sum(not wire.closed for wire in self.wires)

    def connect(self, address: str, data: bytes = b"") -> Wire:
        wire, connection = Wire(address), ClientConnection(self.plane)
        connection.connection_made(wire)
        connection.data_received(data)
        self.wires.append(wire)
        self.connections.append(connection)
        return wire

    async def heads(self) -> None:
        """Let the heads be read that wait for their turn."""
        while len(self.plane.scheduler):
            await asyncio.sleep(0)

    async def tick(self) -> str:
        await self.pressure.make_room()
        self.pressure.observe(self.now_s, 0.0, 0.0)
        return self.plane.overload.reason

    def close(self) -> None:
        for connection in self.connections:
            connection.connection_lost(None)


@pytest.fixture
async def it() -> AsyncIterator[Process]:
    with contextlib.closing(Process()) as process:
        yield process


@pytest.mark.parametrize("asked", [b"", HEAD[:40], b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"])
async def test_strangers_go_before_a_request_with_a_key_is_refused(
    it: Process, asked: bytes
) -> None:
    kept = it.connect("192.0.2.9", REQUEST)
    strangers = [it.connect(f"10.0.{i % 250}.1", asked) for i in range(1_000)]
    await it.heads()
    it.now_s += HELD_S
    newcomer = it.connect("192.0.2.9")
    assert it.resident_bytes() > 0.9 * LIMIT_BYTES
    assert await it.tick() == ""
    gone = sum(wire.closed for wire in strangers)
    assert 0 < gone < len(strangers)
    assert (kept.closed, newcomer.closed) == (False, False)
    newcomer.sent = b""
    it.connections[-1].data_received(REQUEST)
    assert not newcomer.sent.startswith(b"HTTP/1.1 429 ")
    await it.tick()
    assert sum(wire.closed for wire in strangers) == gone  # no more than need be


async def test_whose_request_waits_for_its_turn_is_no_idle_stranger(it: Process) -> None:
    strangers = [it.connect("10.0.0.1") for _ in range(1_000)]
    await it.heads()
    for wire in strangers[:500]:
        wire.reading = False
    it.now_s += HELD_S
    await it.tick()
    assert not any(wire.closed for wire in strangers[:500])
    assert any(wire.closed for wire in strangers[500:])


async def test_nobody_goes_while_there_is_memory(it: Process) -> None:
    strangers = [it.connect("10.0.0.1") for _ in range(700)]
    it.now_s += HELD_S
    assert await it.tick() == ""
    assert not any(wire.closed for wire in strangers)


async def test_who_has_shown_a_key_stays_and_new_requests_are_refused(it: Process) -> None:
    it.plane.scheduler.left_s = 1.0  # all heads are read at once
    known = [it.connect("10.0.0.1", REQUEST) for _ in range(1_000)]
    it.now_s += HELD_S / 2
    assert await it.tick() == "memory"
    assert not any(wire.closed for wire in known)
    assert it.connect("192.0.2.9", REQUEST).sent.startswith(b"HTTP/1.1 429 ")


async def test_idle_connections_of_the_tenant_with_most_go_before_a_request_is_refused(
    it: Process,
) -> None:
    others = [it.connect("192.0.2.9", MODELS % OTHER_KEY.encode()) for _ in range(20)]
    known = [it.connect("192.0.2.9", MODELS % KEY.encode()) for _ in range(1_000)]
    await it.heads()
    it.now_s += HELD_S
    assert it.resident_bytes() > 0.9 * LIMIT_BYTES
    assert await it.tick() == ""
    assert not any(wire.closed for wire in others)
    assert 0 < sum(wire.closed for wire in known) < len(known)


async def test_unread_answers_have_a_part_of_the_memory_and_readers_keep_theirs(
    it: Process,
) -> None:
    """Most of them are of the tenant that reads."""
    known = [it.connect("192.0.2.9", MODELS % KEY.encode()) for _ in range(80)]
    others = [it.connect("192.0.2.9", MODELS % OTHER_KEY.encode()) for _ in range(140)]
    for wire, connection in zip(it.wires, it.connections, strict=True):
        wire.unsent_bytes = UNSENT_BYTES
        connection.pause_writing()
        await asyncio.sleep(0)
        it.now_s += 0.03
        for reader in known:
            reader.unsent_bytes = min(reader.unsent_bytes, 20_000)
    kept_bytes = sum(wire.unsent_bytes for wire in it.wires if not wire.closed)
    assert LIMIT_BYTES / 7 < kept_bytes <= 0.9 * LIMIT_BYTES / 4
    assert not any(wire.closed for wire in known)
    assert any(wire.closed for wire in others)


def test_glibc_takes_both_limits() -> None:
    assert keep_pages() is (platform.libc_ver()[0] == "glibc")


# What is remembered of sessions and stored responses ----------------------------------------------


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


def fill(table: KeyTable[Any]) -> int:
    """More than it may hold. Returns what it held."""
    for number in range(3_000):
        table.put(f"s{number}", "b", "x")
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
    known = cast("Any", lambda: None)
    admin = Admin(process.plane, monitor, unused, known, unused, unused, unused, unused)

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
