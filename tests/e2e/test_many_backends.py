"""Fleets of many backends: they start, those that hang hold up nobody, and idle ones rest."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest

from tests.e2e.listening import stop_listening
from tests.e2e.process import Serve

MODELS = b'{"object":"list","data":[{"id":"sim-model","object":"model"}]}'


class ManyBackends:
    """Backends on ports of their own, in one loop; those in `hung` take connections and no more."""

    def __init__(self) -> None:
        self._servers: list[asyncio.Server] = []
        self.urls: list[str] = []
        self.hung: set[int] = set()
        self.asked: Counter[int] = Counter()

    async def start(self, count: int) -> None:
        loop = asyncio.get_running_loop()
        for number in range(count):
            server = await loop.create_server(partial(Quick, self, number), "127.0.0.1", 0)
            self._servers.append(server)
            self.urls.append(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")

    async def stop(self) -> None:
        await stop_listening(*self._servers)


class Quick(asyncio.Protocol):
    """One connection: whatever is asked is answered at once, with the list of models."""

    def __init__(self, backends: ManyBackends, number: int) -> None:
        self._backends = backends
        self._number = number

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._backends.asked[self._number] += data.startswith(b"GET /health ")
        if self._number not in self._backends.hung:
            head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(MODELS)
            self._transport.write(head + MODELS)


@pytest.fixture
async def backends() -> AsyncIterator[ManyBackends]:
    many = ManyBackends()
    yield many
    await many.stop()


async def test_many_start_though_a_third_of_them_hang(serve: Serve, backends: ManyBackends) -> None:
    await backends.start(240)
    backends.hung = set(range(0, 240, 3))
    penstock = await serve(backends.urls, ready=0, health={"interval_s": 0.2, "timeout_s": 1})
    await penstock.until_ready(160, 15)
    assert b"ejected" not in b"".join(penstock.log)
    # Those that have no requests rest: in this fleet for 12 s at least.
    before = backends.asked.copy()
    await asyncio.sleep(3.0)
    asked = backends.asked - before
    assert sum(asked[number] for number in range(240) if number % 3) <= 160
    assert sum(asked[number] for number in backends.hung) >= 40
    # What answers again is taken in, beside the others that hang.
    backends.hung -= set(range(0, 120, 3))
    await penstock.until_ready(200, 15)
